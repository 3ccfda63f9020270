"""Backup, restore, repartition and move of a service with two inputs, by its commands on real brokers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support import verify
from tests.support.apps.chained import following
from tests.support.apps.keyed import KeyLink
from tests.support.apps.keyed import keyed as keyed_handler
from tests.support.brokers import started
from tests.support.processes import Process, await_true
from tests.support.stage import Feeder, Stage, StageFactory
from tests.system.test_dead_letter_requests import statehold
from tests.system.test_several_inputs import SHORT, Pair

from statehold import Service
from statehold.admin.inspection.topic_view import topic_view
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.dev import Cluster
from statehold.errors import TopicMismatch
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin

pytestmark = pytest.mark.kafka

TARGET = "tests.support.apps.keyed_service:service"
WHY = ("--why", "a test")
#: the keys of windows and joins begin with the record's key
KEYS = [f"--key={table}=tests.support.apps.keyed:first_of" for table in ("minutes", "pairs")]


class KeyedProcess(Process):
    command = ("-m", "statehold.ops.cli.entry", "run", TARGET, "--set", "log.format=json")


class Keyed(Pair):
    """A pair of inputs whose records have keys; both inputs have the same keys."""

    def process(self, name: str, **more: str) -> Process:
        environment = self.stage.environment(PROBE_SECOND=self.second, **SHORT, **more)
        return self.stage.processes.setdefault(name, KeyedProcess(name, self.stage.directory, environment))

    def rename(self, names: Names) -> None:
        """Use other topics."""
        self.stage.names = self.names = names
        self.stage.group = verify.Group(self.stage.servers, names.group)
        self.renew_feeders()
        for feeder in self.feeders.values():
            feeder.fed = 0

    def renew_feeders(self) -> None:
        """New producers, which see new topics and partitions; they continue to count."""
        fed = {topic: feeder.fed for topic, feeder in self.feeders.items()}
        self.feeders = {topic: Feeder(self.stage.servers, topic) for topic in self.names.inputs}
        for topic, feeder in self.feeders.items():
            feeder.fed = fed.get(topic, 0)

    def service(self, **more: str) -> Service:
        handler = keyed_handler(self.names.input, self.second, self.stage.output)
        settings = self.stage.settings(**more)
        return Service(self.names.service, inputs=self.names.inputs, handler=handler, settings=settings)

    def feed(self, count: int) -> None:
        for feeder in self.feeders.values():
            feeder.feed(count, keys=40)

    def command(self, *words: str, code: int = 0) -> str:
        return statehold(self.stage, *words, TARGET, code=code, PROBE_SECOND=self.second)

    def ask(self, *words: str) -> Any:
        """Return the JSON that a command prints."""
        return json.loads(self.command(*words, "--json"))

    def run(self, name: str, **more: str) -> None:
        """Handle everything and stop."""
        process = self.process(name, **more).start()
        process.await_live(*range(self.stage.partitions))
        self.await_all()
        assert process.stop() == 0

    def key_links(self) -> dict[str, list[KeyLink]]:
        found: dict[str, list[KeyLink]] = defaultdict(list)
        for rows in verify.read_all(self.stage.servers, self.stage.output).values():
            for row in rows:
                found[row.key].append(msgspec.json.decode(row.value, type=KeyLink))
        return found

    def tables(self) -> list[dict[str, dict[Any, bytes]]]:
        """Return the tables of each partition, as its topics hold them."""
        with topic_view(self.stage.settings(), self.names) as view:
            return [view.state(p, "latest").contents.tables for p in range(self.stage.partitions)]

    def check(self, *inputs: str) -> None:
        """Each record of the inputs has one output, and the chain of each key is unbroken."""
        links, inputs = self.key_links(), inputs or self.names.inputs
        wanted = sorted(
            (topic, partition, row.offset)
            for topic in inputs
            for partition, rows in verify.read_all(self.stage.servers, topic).items()
            for row in rows
        )
        assert sorted((each.topic, each.partition, each.offset) for chain in links.values() for each in chain) == wanted
        for chain in links.values():
            link = 1
            for each in chain:
                link = following(link, each.topic, each.offset, each.amount)
                assert each.link == link, each


@pytest.fixture
def keyed(stages: StageFactory) -> Keyed:
    """A service that has processed 400 records of each of two inputs, and stopped."""
    pair = Keyed(stages(2))
    pair.create_topics()
    pair.feed(400)
    pair.run("first")
    return pair


def positions(pair: Pair) -> dict[tuple[str, int], int]:
    return {(topic, p): at for topic in pair.names.inputs for p, at in pair.stage.group.positions(topic).items()}


def keys_of(tables: dict[str, dict[Any, bytes]], name: str) -> set[str]:
    return {key if name == "links" else key[0] for key in tables[name]}


def require_moved(pair: Keyed, before: list[dict[str, dict[Any, bytes]]]) -> None:
    """Every row is there once, in the partition of its key."""
    after = pair.tables()
    for name in ("links", "minutes", "pairs"):
        assert {key: value for each in after for key, value in each[name].items()} == {
            key: value for each in before for key, value in each[name].items()
        }
        for partition, each in enumerate(after):
            assert {murmur2(key.encode(), len(after)) for key in keys_of(each, name)} == {partition}


def partitions_of(admin: Admin, topic: str) -> int:
    found = admin.describe([topic])[topic]
    return 0 if found is None else found.partitions


@pytest.mark.long
def test_a_repartition_grows_both_inputs_and_moves_windows_and_joins(keyed: Keyed) -> None:
    words = ("state", "repartition", "--to", "3", "--quiet", "0.2", *WHY, "--yes")
    assert "add --key minutes=MODULE:FUNCTION" in keyed.command(*words, code=1)
    for number, (topic, feeder) in enumerate(keyed.feeders.items()):  # an unread record of either input is found
        feeder.send(b'{"id":400,"amount":1}', 0, key_of(0, 2))
        feeder.fed += 1
        said = keyed.command(*words, *KEYS, code=1)
        assert f"{topic}: records are not processed yet: partition 0 at" in said
        keyed.run(f"rest-{number}")
    before = keyed.tables()
    admin = Admin(keyed.stage.settings(), keyed.names.group)
    TopicAdmin(admin).grow(keyed.second, 3)  # as an operator, or a killed run
    await_true(lambda: partitions_of(admin, keyed.second) == 3, "the added partitions", 30)
    with pytest.raises(TopicMismatch, match="state repartition MODULE:SERVICE --to 3"):
        keyed.service().start()
    done = keyed.ask(*words, *KEYS)
    assert (done["before"], done["after"], done["partitions"][2]["position"]) == (2, 3, 0)
    keyed.stage.partitions = 3
    require_moved(keyed, before)
    assert {at for at in positions(keyed).values() if at > 0} != set()
    keyed.renew_feeders()
    keyed.feed(300)
    keyed.run("after")
    keyed.check()


@pytest.mark.long
def test_the_state_moves_to_new_topics_for_both_inputs(keyed: Keyed, stages: StageFactory) -> None:
    ends = ",".join(f"{topic}:{p}={at}" for (topic, p), at in positions(keyed).items())
    words = ("state", "repartition", "--to", "3", "--quiet", "0.2", *WHY, *KEYS, "--yes")
    into = f"{keyed.names.input}-wide,{keyed.second}-wide"
    said = keyed.command(*words, "--into", f"{keyed.names.input}-wide", "--barrier", "end", code=1)
    assert "name a new topic for each, in this order" in said
    assert f"{keyed.second} is a current input" in keyed.command(
        *words, "--into", f"{keyed.names.input}-wide,{keyed.second}", "--barrier", "end", code=1
    )
    assert "name each of the partitions 0 to 1 of" in keyed.command(
        *words, "--into", into, "--barrier", "0=100,1=100", code=1
    )
    feeder = keyed.feeders[keyed.second]
    feeder.send(b'{"id":400,"amount":1}', 0, key_of(0, 2))
    feeder.fed += 1
    said = keyed.command(*words, "--into", into, "--barrier", ends, code=1)
    assert f"{keyed.second}: partition 0: 1 records from offset" in said
    assert f"Write them to {keyed.second}-wide" in said
    keyed.run("rest")
    before = keyed.tables()
    done = keyed.ask(*words, "--into", into, "--barrier", "end")
    assert (done["into"], done["after"]) == (into, 3)

    failing = keyed.process("failing").start()
    assert f"has moved to the input {into}" in failing.await_event("failed")["cause"]
    failing.stop()
    other = Keyed(stages(3, of=keyed.stage))
    other.stage.output, other.second = keyed.stage.output, f"{keyed.second}-wide"
    other.rename(Names(keyed.names.service, f"{keyed.names.input}-wide", "", (other.second,)))
    require_moved(other, before)
    other.feed(300)
    other.run("after")
    other.check(*keyed.names.inputs, *other.names.inputs)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """Another cluster, which has seen nothing."""
    with started(Cluster) as cluster:
        yield cluster.bootstrap_servers


@pytest.mark.long
def test_a_backup_of_both_inputs_continues_on_another_cluster(keyed: Keyed, elsewhere: str, tmp_path: Path) -> None:
    keyed.stage.delete_records(keyed.second, 0, 30)  # so that the offsets of the second input change
    rows = {topic: verify.read_all(keyed.stage.servers, topic) for topic in keyed.names.inputs}
    at = positions(keyed)
    keyed.feed(100)
    made = keyed.ask("snapshot", "backup", "--with-input", "--to", str(tmp_path / "files"))
    assert (made["format"], made["others"]) == (2, [keyed.second])
    assert sorted(file["name"] for file in made["files"] if file["role"] == "input") == [
        "input-0.jsonl",
        "input-1.jsonl",
        "input2-0.jsonl",
        "input2-1.jsonl",
    ]
    (tmp_path / "new").mkdir()
    other = Keyed(Stage(elsewhere, tmp_path / "new", 2, of=keyed.stage))
    done = other.ask("snapshot", "restore", "--from", str(tmp_path / "files"), *WHY, "--yes")
    moved = {(keyed.second, 0): 30}
    wanted = [{topic: at[topic, p] - moved.get((topic, p), 0) for topic in keyed.names.inputs} for p in range(2)]
    assert [each["positions"] for each in done["partitions"]] == wanted
    assert [each["old_position"] for each in done["partitions"]] == [
        sum(at[topic, p] for topic in keyed.names.inputs) for p in range(2)
    ]
    maps = msgspec.json.decode(Path(done["offsets"]).read_bytes())
    assert {(each["topic"], each["partition"]): each["segments"][0][:2] for each in maps}[keyed.second, 0] == [30, 0]
    assert other.tables() == keyed.tables()
    for topic, feeder in other.feeders.items():
        feeder.fed = sum(len(r) for r in verify.read_all(elsewhere, topic).values())
        assert feeder.fed == sum(map(len, rows[topic].values())) + 100
    other.run("restored")
    tail = sorted((each.topic, each.offset) for chain in other.key_links().values() for each in chain)
    assert len(tail) == 200
    other.stage.close()


def test_a_backup_continues_in_inputs_that_exist(keyed: Keyed, stages: StageFactory, tmp_path: Path) -> None:
    """An earlier state in another namespace: outputs of the records since then are those of the first run."""
    files = str(tmp_path / "files")
    keyed.command("snapshot", "backup", "--to", files)
    other = Keyed(stages(2, namespace="rewound.", of=keyed.stage))
    words = ("snapshot", "restore", "--from", files, "--to-offset", "300", *WHY, "--yes")
    assert "without --with-input" in other.command(*words, code=1)
    assert f"such as {keyed.names.input}:0=120," in other.command(*words, "--input-at", "120", code=1)
    done = other.ask(*words, "--input-at", "same")
    cut = {p: each["positions"] for p, each in enumerate(done["partitions"])}
    assert all(0 < sum(each.values()) <= 300 for each in cut.values())
    for topic, feeder in other.feeders.items():
        feeder.fed = keyed.feeders[topic].fed
    other.run("rewound")
    assert other.tables() == keyed.tables()
    wanted = {
        key: [each for each in chain if each.offset >= cut[each.partition][each.topic]]
        for key, chain in keyed.key_links().items()
    }
    assert other.key_links() == {key: chain for key, chain in wanted.items() if chain}


def key_of(partition: int, partitions: int) -> str:
    """Return one of the fed keys that is in this partition."""
    return next(key for n in range(40) if murmur2((key := f"key-{n}").encode(), partitions) == partition)
