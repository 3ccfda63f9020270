"""The commands an operator uses on a running service with two inputs, on a real broker: each knows both inputs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.support import verify
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory
from tests.system.test_moving_inputs import Keyed

from statehold.ops.reports.top_model import Watch

pytestmark = pytest.mark.kafka


@pytest.fixture
def live(stages: StageFactory) -> Iterator[Keyed]:
    """A running service that has processed 100 records of each input."""
    pair = Keyed(stages(2))
    pair.create_topics()
    pair.feed(100)
    process = pair.process("live").start()
    process.await_live(0, 1)
    pair.await_all()
    yield pair
    assert process.stop() == 0


def ends_of(pair: Keyed, topic: str) -> dict[int, int]:
    return {p: len(rows) for p, rows in verify.read_all(pair.stage.servers, topic).items()}


def configure(stage: Stage, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    stage.admin.incremental_alter_configs([resource])[resource].result(30)


def findings(pair: Keyed, check: str, code: int) -> list[tuple[str, str]]:
    """Return what a check of the doctor says: level and subject."""
    said = pair.command("doctor", "--json", "--only", check, code=code)
    return [(each["level"], each["about"]) for each in json.loads(said)["findings"]]


def test_commands_show_both_inputs_of_a_running_service(live: Keyed, tmp_path: Path) -> None:
    first, second = live.names.inputs
    rows = live.ask("lag")
    assert [each["inputs"] for each in rows] == [{first: 0, second: 0}] * 2
    assert f"reads {first}, {second} of" in live.command("status")
    (status,) = live.ask("status")
    assert status["inputs"] == [first, second]
    for row in status["partitions"]:
        assert [each["topic"] for each in row["inputs"]] == [first, second]
        assert sum(each["position"] for each in row["inputs"]) == row["position"]
    with closing(Watch(live.stage.settings(), live.names)) as watch:
        sample = watch.sample()
    assert (sample.input, sample.behind, sum(row.phase == "live" for row in sample.rows)) == (
        f"{first}, {second}",
        0,
        2,
    )

    checked = {each["topic"]: each["state"] for each in live.ask("topics", "check")}
    assert {checked[first], checked[second]} == {"ok"}
    rights = live.command("topics", "acl", "--principal", "User:risk")
    for topic in (first, second):
        assert f"--operation Read --topic {topic}" in rights
        assert f"--operation Write --topic {topic}" in rights, "of the producers"
    document = live.ask("schema")
    received = [each for each in document["operations"].values() if each["action"] == "receive"]
    assert {document["channels"][each["channel"]["$ref"].rsplit("/", 1)[1]]["address"] for each in received} >= {
        first,
        second,
    }
    (line, *_) = live.command("cat", second, "-n", "1").split("} {")
    assert f'"topic": "{second}"' in line
    assert '"amount"' in line, "by the type of the second input"

    live.command("support-bundle", "--to", str(tmp_path / "bundle.tar.gz"))
    with tarfile.open(tmp_path / "bundle.tar.gz") as bundle:
        for name in ("lag.json", "doctor.json"):
            (file,) = [bundle.extractfile(each) for each in bundle.getmembers() if each.name.endswith(name)]
            assert file is not None
            assert second in file.read().decode(), name


def test_a_command_goes_to_the_first_input_only(live: Keyed) -> None:
    first, second = live.names.inputs
    ends = {topic: ends_of(live, topic) for topic in (first, second)}
    said = live.command("snapshot", "take")
    assert "full snapshot at" in said
    assert ends_of(live, second) == ends[second]
    assert {p: end - ends[first][p] for p, end in ends_of(live, first).items()} == {0: 1, 1: 1}
    live.feeders[first].fed += 2
    # the same header in the second input is data
    producer = Producer({"bootstrap.servers": live.stage.servers})
    producer.produce(second, b'{"id":100,"amount":1}', b"key-1", 0, headers=[("statehold-command", b"take")])
    assert producer.flush(30) == 0
    live.feeders[second].fed += 1
    live.await_all()
    assert [each.id for chain in live.key_links().values() for each in chain if each.topic == second].count(100) == 1


@pytest.mark.long
def test_an_open_transaction_of_the_second_input_is_found_and_aborted(live: Keyed) -> None:
    second = live.second
    producer = Producer({"bootstrap.servers": live.stage.servers, "transactional.id": f"hanging-{second}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(second, b'{"id":7,"amount":7}', b"key-1", 0)
    producer.flush(30)
    found = live.ask("txn", "list", "--older-than", "0")["held"]
    assert [(each["topic"], each["partition"]) for each in found] == [(second, 0)]
    live.feeders[second].send(b'{"id":100,"amount":1}', 0, "key-1")
    (row,) = [each for each in live.ask("lag") if each["partition"] == 0]
    assert (row["inputs"][second], row["hidden"]) == (0, 2), "both records are hidden"
    producer.abort_transaction(30)
    live.feeders[second].fed += 1
    live.await_all()


def test_the_doctor_examines_the_second_input(live: Keyed) -> None:
    second = live.second
    configure(live.stage, second, max_message_bytes="100000")
    assert {level for level, _ in findings(live, "message-size", 0)} == {"PASS"}, (
        "an input may take less than an output"
    )
    configure(live.stage, second, cleanup_policy="compact,delete")
    assert findings(live, "cleanup-policy", 10) == [("WARN", second)]
    configure(live.stage, second, cleanup_policy="delete", retention_ms="60000")
    assert second in {about for _, about in findings(live, "input-retention", 12)}


def test_the_retention_of_the_second_input_is_in_the_status(stages: StageFactory) -> None:
    pair = Keyed(stages(1))
    pair.create_topics()
    configure(pair.stage, pair.names.input, retention_ms="-1")
    configure(pair.stage, pair.second, retention_ms="7200000")
    process = pair.process("live").start()
    process.await_live(0)

    def hours() -> float | None:
        (status,) = pair.ask("status")
        return status["partitions"][0]["retention_hours"]  # type: ignore[no-any-return]

    await_true(lambda: hours() is not None, "the retention is measured", 90)
    assert hours() == pytest.approx(2.0, abs=0.1)
    assert process.stop() == 0
