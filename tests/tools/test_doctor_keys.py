"""The doctor says which partitioner the keys of each input follow, by records of librdkafka's own producers."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.ending import ending
from tests.tools.recorded import FAST, Ledger

from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config import load
from statehold.dev import Cluster
from statehold.kafka.survey.partitioners import KeySample, mismatches
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding, Level

PARTITIONS = 5
KEYS = [f"key-{number}" for number in range(60)]

APP = """
from statehold import Handler, Record, Service, Table, on


class Risk(Handler):
    prices = Table(key=str, value=bytes)

    @on("{trades}", value=bytes)
    def trade(self, record: Record[bytes]) -> None: ...

    @on("{prices}", value=bytes)
    def price(self, record: Record[bytes]) -> None: ...


service = Service("{name}", inputs=["{trades}", "{prices}"], handler=Risk)
"""


class Inputs:
    """A service of two inputs; its topics are on the shared broker."""

    def __init__(self, servers: str) -> None:
        name = f"risk-{uuid.uuid4().hex[:8]}"
        self.name, self.servers, self.topics = name, servers, [f"{name}.trades", f"{name}.prices"]
        self.names = Names(name, self.topics[0], others=(self.topics[1],))
        self.environment = {"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers} | FAST
        self.settings = load(env=self.environment)
        ServiceTopics(self.settings, self.names, []).create("beginning", PARTITIONS)

    def feed(self, topic: str, partitioner: str, keys: list[str] = KEYS, partition: int = -1) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "partitioner": partitioner})
        for key in keys:
            producer.produce(topic, b"x", key, partition)
        assert producer.flush(30) == 0

    def look(self) -> list[Finding]:
        found = examine(Case(self.settings, self.names, probes=False), ["key-partitioners"])
        assert all(each.fix for each in found if each.level is not Level.PASS)
        return found


@pytest.fixture
def inputs(kafka: Cluster) -> Inputs:
    return Inputs(kafka.bootstrap_servers)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("partitioner", "text"),
    [
        ("murmur2_random", "follow murmur2, as of Java's"),
        ("consistent_random", "follow CRC32, librdkafka's default"),
        ("fnv1a_random", "follow FNV-1a"),
    ],
)
def test_it_names_the_partitioner(inputs: Inputs, partitioner: str, text: str) -> None:
    for topic in inputs.topics:
        inputs.feed(topic, partitioner)

    found = inputs.look()

    assert [(each.about, each.level) for each in found] == [(topic, Level.PASS) for topic in inputs.topics]
    assert all(text in each.reason for each in found)


@pytest.mark.kafka
def test_keys_of_two_inputs_that_do_not_meet(inputs: Inputs) -> None:
    trades, prices = inputs.topics
    inputs.feed(trades, "murmur2_random")
    inputs.feed(prices, "consistent_random")

    *each, apart = inputs.look()

    assert [one.level for one in each] == [Level.PASS, Level.PASS]
    assert (apart.level, apart.about) == (Level.FAIL, f"{trades}, {prices}")
    assert f"of {trades}, in partition " in apart.reason
    assert "murmur2_random" in apart.fix


@pytest.mark.kafka
def test_other_keys_in_both_are_compared_by_their_partitioners(inputs: Inputs) -> None:
    trades, prices = inputs.topics
    inputs.feed(trades, "murmur2_random")
    inputs.feed(prices, "consistent_random", [f"other-{key}" for key in KEYS])

    assert f"{trades} and {prices} follow different partitioners" in inputs.look()[-1].reason


@pytest.mark.kafka
def test_two_producers_of_one_input(inputs: Inputs) -> None:
    inputs.feed(inputs.topics[0], "murmur2_random")
    inputs.feed(inputs.topics[0], "consistent_random")

    scattered, empty = inputs.look()

    assert (scattered.level, "keys are in several partitions" in scattered.reason) == (Level.WARN, True)
    assert (empty.level, empty.reason) == (Level.PASS, "no keys in its newest records")


@pytest.mark.kafka
def test_a_partitioner_that_it_does_not_know_and_too_few_keys(inputs: Inputs) -> None:
    inputs.feed(inputs.topics[0], "murmur2_random", partition=3)
    inputs.feed(inputs.topics[1], "murmur2_random", KEYS[:2])

    own, few = [each for each in inputs.look() if each.level is Level.PASS]

    assert "60 keys follow no partitioner that statehold knows (murmur2 " in own.reason
    assert few.reason == "2 keys are too few to know their partitioner"


@pytest.mark.kafka
def test_a_custom_partitioner_of_one_input_is_no_fault(ledger: Ledger) -> None:
    case = Case(ledger.settings(), ledger.names, probes=False)

    assert {each.level for each in examine(case, ["key-partitioners"])} == {Level.PASS}


@pytest.mark.kafka
@pytest.mark.parametrize("at_start", ["off", "fail"])
def test_a_service_that_joins_them_warns_or_does_not_start(
    inputs: Inputs, tmp_path: Path, ledger: Ledger, at_start: str
) -> None:
    trades, prices = inputs.topics
    inputs.feed(trades, "murmur2_random")
    inputs.feed(prices, "consistent_random")
    module = inputs.name.replace("-", "_")
    text = APP.replace("{name}", inputs.name).replace("{trades}", trades).replace("{prices}", prices)
    (tmp_path / f"{module}.py").write_text(text)
    words = ledger.command("run", f"{module}:service", "--json", "--set", f"doctor.at_start={at_start}")
    checks: dict[str, str] = {}
    events: set[str] = set()
    shell = ledger.shell() | inputs.environment
    process = subprocess.Popen(words, cwd=tmp_path, env=shell, stderr=subprocess.PIPE, text=True)
    with process, ending(process):
        for line in process.stderr or ():
            event = json.loads(line)
            events.add(event["event"])
            if event["event"] == "doctor":
                checks[event["check"]] = event["result"]
            if {"live", "doctor"} <= events:
                process.terminate()

    assert checks["key-partitioners"] == "FAIL"
    if at_start == "off":
        assert (process.returncode, set(checks)) == (0, {"key-partitioners"})
    else:
        assert (process.returncode, "live" in events) == (1, False)


def test_inputs_of_different_widths_are_left_to_another_check() -> None:
    one, other = KeySample("a", 2, {b"k": {0}}), KeySample("b", 3, {b"k": {1}})

    assert list(mismatches([one, other])) == []


def test_a_key_that_both_have_somewhere_is_no_difference() -> None:
    one, other = KeySample("a", 2, {b"k": {0, 1}}), KeySample("b", 2, {b"k": {1}})

    assert list(mismatches([one, other])) == []
