"""`statehold state inputs` on a real broker: inputs are added, removed, renamed and reordered, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import NewTopic
from tests.support import verify
from tests.support.apps.chained import Link, following
from tests.support.apps.changing import changing
from tests.support.local_service import Local
from tests.support.processes import ROOT, await_true
from tests.support.stage import Feeder, Stage, StageFactory
from tests.system.test_dead_letter_requests import statehold
from tests.system.test_several_inputs import event

from statehold import Service
from statehold.admin.backup.backup import backup
from statehold.admin.backup.cut_offsets import CutOffPositions
from statehold.admin.dead_letters import DeadLetters
from statehold.admin.inputs.change import change
from statehold.admin.inputs.report import ChangedInputs
from statehold.admin.inputs.requested import request_of
from statehold.admin.inspection.replay_check import replay
from statehold.admin.inspection.topic_view import topic_view
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.errors import InputsChanged, StateMoved, ToolRefused, TopicMissing, UsageError
from statehold.messages.dead_letter import DISCARD
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import proof
from statehold.snapshot.state_replacement import ReplacementReason
from statehold.state import digest

pytestmark = pytest.mark.kafka

TARGET = "tests.support.apps.changing:service"
REASON = ReplacementReason(tool="test", who="ann", why="prices come, too")


class Changing:
    """A stage whose service reads the topics `a` to `d`, as its code says at that moment."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.run = stage, stage.names.input.removeprefix("events-")
        self.feeders: dict[str, Feeder] = {}
        self.inputs: tuple[str, ...] = ()

    def read(self, *short: str) -> Changing:
        """Change the code: from now on the service reads these topics, which exist then."""
        self.inputs = tuple(map(self.topic, short))
        for topic in self.inputs:
            if topic not in self.feeders:
                self.stage.create_by_hand(topic)
                self.feeders[topic] = Feeder(self.stage.servers, topic)
        return self

    def topic(self, short: str) -> str:
        return f"{short}-{self.run}"

    @property
    def names(self) -> Names:
        first, *others = self.inputs
        return Names(self.stage.names.service, first, "", tuple(others))

    def create_topics(self) -> Changing:
        dead = [self.names.dead] if "PROBE_DEAD_LETTERS" in os.environ else []
        topics = ServiceTopics(self.stage.settings(), self.names, [self.stage.output, *dead])
        assert all(each.good for each in topics.create("beginning", partitions=self.stage.partitions))
        return self

    def feed(self, **counts: int) -> None:
        for short, count in counts.items():
            self.feeders[self.topic(short)].feed(count, keys=40)

    def service(self, **more: str) -> Service:
        return Service(
            self.stage.names.service,
            inputs=self.inputs,
            handler=changing(self.inputs, self.stage.output),
            settings=self.stage.settings(**more),
        )

    def handle_all(self, **more: str) -> None:
        """Start the service, let it handle everything, and stop it."""
        with Local(self, **more) as local:
            local.await_live(*range(self.stage.partitions))
            await_true(self.has_committed_all, "everything is committed", 60)

    def has_committed_all(self) -> bool:
        positions = [self.stage.group.positions(topic) for topic in self.inputs]
        with topic_view(self.stage.settings(), self.names) as view:
            return all(
                at.get(partition, 0) >= view.reader.bounds(topic, partition)[1]
                for topic, at in zip(self.inputs, positions, strict=True)
                for partition in range(self.stage.partitions)
            )

    def change(self, *options: str, **more: Any) -> ChangedInputs:
        """Change the inputs as the command does; `--add` and so on are pairs."""
        given: dict[str, list[str]] = defaultdict(list)
        for option in options:
            name, _, value = option.partition(" ")
            given[name].append(value)
        request = request_of(
            given["--add"],
            given["--remove"],
            given["--rename"],
            reorder="--reorder" in given,
            discard="--discard" in given,
        )
        handler = changing(self.inputs, self.stage.output)
        more = {"quiet": 0.2} | more
        return change(self.stage.settings(), self.names, handler, request, REASON, **more)

    def command(self, *words: str, code: int = 0) -> str:
        return statehold(
            self.stage, "state", "inputs", TARGET, *words, "--why", "a test", code=code, PROBE_INPUTS=self.joined
        )

    @property
    def joined(self) -> str:
        return ",".join(self.inputs)

    def links(self) -> dict[int, list[Link]]:
        found: dict[int, list[Link]] = defaultdict(list)
        for rows in verify.read_all(self.stage.servers, self.stage.output).values():
            for row in rows:
                each = msgspec.json.decode(row.value, type=Link)
                found[each.partition].append(each)
        return found

    def check(self, **starts: int) -> None:
        """Each record of every topic has one output, the chain is unbroken. `starts`: first offset of a topic."""
        links, wanted = self.links(), []
        first = {self.topic(short): at for short, at in starts.items()}
        amounts = {}
        for topic in self.feeders:
            for partition, rows in verify.read_all(self.stage.servers, topic).items():
                for row in rows:
                    amounts[topic, partition, row.offset] = event(row).amount
                    if row.offset >= first.get(topic, 0):
                        wanted.append((topic, partition, row.offset))
        assert sorted((e.topic, e.partition, e.offset) for chain in links.values() for e in chain) == sorted(wanted)
        for chain in links.values():
            link = 1
            for each in chain:
                link = following(link, each.topic, each.offset, amounts[each.topic, each.partition, each.offset])
                assert each.link == link, each
        verify.require_unique_origins(self.stage.servers, self.stage.output)

    def commit_records(self) -> list[CommitRecord]:
        with topic_view(self.stage.settings(), self.names) as view:
            found = [view.survey(partition)[0].commit_record for partition in range(self.stage.partitions)]
        assert all(found)
        return [each for each in found if each is not None]

    def digests(self) -> list[bytes]:
        return [each.digest for each in self.commit_records()]


@pytest.fixture
def service(stages: StageFactory) -> Changing:
    """A service with the one input `a`, which has handled 60 records and stopped."""
    found = Changing(stages(2)).read("a").create_topics()
    found.feed(a=60)
    found.handle_all()
    return found


def test_an_input_is_added_and_later_removed(service: Changing, tmp_path: Path) -> None:
    before = service.digests()
    service.read("a", "b").feed(b=50)
    with Local(service) as local:
        advice = f"statehold state inputs MODULE:SERVICE --add {service.topic('b')}=beginning|end|TIME --why TEXT"
        assert advice in local.await_failed(0, InputsChanged)
    said = service.command("--add", f"{service.topic('b')}=beginning", "--dry-run")
    assert "digest of all" in said
    assert "as before nothing was changed; --yes does it" in said
    service.read("a")
    assert service.commit_records()[0].inputs == ()
    service.read("a", "b")

    said = service.command("--add", f"{service.topic('b')}=beginning", "--yes")
    assert "as before changed, state generation" in said
    assert service.digests() == before
    assert {each.inputs for each in service.commit_records()} == {service.inputs}
    with pytest.raises(ToolRefused, match=r"already has the inputs a-\w+, b-\w+ \(state generation"):
        service.change(f"--add {service.topic('b')}=beginning")
    service.feed(a=20)
    service.handle_all()
    service.check()
    n = service.commit_records()[0].n
    with topic_view(service.stage.settings(), service.names) as view:
        with pytest.raises(UsageError, match=r"a position counts the records of a-\w+, b-\w+, and earlier states had"):
            view.state(0, "5")
        assert view.state(0, "n:1").inputs == (service.topic("a"),)

    require_tools_to_know_both_sides(service, tmp_path)

    service.read("a")
    with Local(service) as local:
        assert f"--remove {service.topic('b')} --why TEXT" in local.await_failed(0, InputsChanged)
    service.feed(b=7)
    with pytest.raises(ToolRefused, match=r"b-\w+\[\d\]@\d+: \d records are not processed yet. Nothing was changed"):
        service.change(f"--remove {service.topic('b')}")
    before = service.read("a", "b").digests()
    service.read("a")
    said = service.command("--remove", service.topic("b"), "--discard", "--dry-run")
    assert "never processed" in said
    assert "pairs: 80 left and 50 right rows stay until their time is over" in said
    assert "7 unread records of removed inputs are never processed nothing was changed" in said
    done = service.change(f"--remove {service.topic('b')}", "--discard")
    assert (done.total("removed", "unread"), done.old_digest) == (7, done.digest)
    assert service.digests() == before
    rows = [(each.table, each.left + each.right) for partition in done.partitions for each in partition.joins]
    assert sum(count for _, count in rows) == 130
    service.feed(a=10)
    service.handle_all()
    assert sum(map(len, service.links().values())) == 60 + 50 + 20 + 10
    with topic_view(service.stage.settings(), service.names) as view:  # a point before the change
        assert view.state(0, f"n:{n}").positions[service.topic("b")] > 0


def require_tools_to_know_both_sides(service: Changing, directory: Path) -> None:
    """A backup has the added input, and no tool takes the state before the change for one of the present inputs."""
    settings, names, handler = service.stage.settings(), service.names, changing(service.inputs, service.stage.output)
    made = backup(settings, names, [service.stage.output], directory / "backup", with_input=True)
    files = [(each.role, each.start) for each in made.files if each.role == "input"]
    assert files == [("input", 0)] * 4  # both inputs of both partitions, from the first record
    cut_offs = CutOffPositions(names, directory / "backup", made)
    with topic_view(settings, names) as view:
        with pytest.raises(UsageError, match=r"the state had the inputs a-\w+ then, not a-\w+, b-\w+"):
            cut_offs.find_time(view.state(0, "n:1").time + 500)
        with pytest.raises(UsageError, match="a command has replaced the state between them"):
            replay(view, handler, 0, "n:1", None)
        replayed = replay(view, handler, 0, None, None)
        assert (replayed.records > 0, replayed.differences) == (True, [])
        with pytest.raises(
            UsageError, match="Next: choose a later point, or use a backup that was made before the change"
        ):
            proof.partition(0, view.state(0, "n:1"), names.inputs)


def test_the_first_input_gets_another_name_after_a_killed_command(service: Changing) -> None:
    """The command is killed when it has written the new full snapshots, and waits for silent producers."""
    before, old = service.digests(), service.names
    rename = f"{service.topic('a')}={service.topic('c')}"
    service.read("c")
    words = ("state", "inputs", TARGET, "--rename", rename, "--why", "a test", "--yes")
    killed = subprocess.Popen(
        [sys.executable, "-m", "statehold.ops.cli.entry", *words, "--quiet", "600"],
        cwd=ROOT,
        env={
            **os.environ,
            **service.stage.environment(PROBE_COMMAND="1", PROBE_INPUTS=service.joined),
            "PYTHONPATH": str(ROOT),
        },
    )
    try:
        await_true(lambda: written(service), "the full snapshots are written")
    finally:
        killed.kill()
        killed.wait()
    service.read("a")
    service.feed(a=12)
    service.handle_all()  # nothing has changed: the former code continues
    before = service.digests()
    service.read("c").feed(c=30)
    said = service.command("--rename", rename, "--quiet", "0.2", "--yes")
    assert f"statehold's topics get the name of {service.topic('c')}; those of {service.topic('a')} are closed" in said
    assert service.digests() == before
    service.handle_all()
    service.check()
    with pytest.raises(ToolRefused, match="already has the inputs c-"):
        service.change(f"--rename {rename}")

    service.read("a")
    assert service.names == old
    with Local(service) as local:
        assert f"the state has moved to the input {service.topic('c')}" in local.await_failed(0, StateMoved)


def written(service: Changing) -> bool:
    """Return whether each partition's new snapshot topic holds a full snapshot."""
    names = service.names
    if names.snapshot not in service.stage.topics():
        return False
    with topic_view(service.stage.settings(), names) as view:
        return all(view.reader.end(names.snapshot, p) > 0 for p in range(service.stage.partitions))


@pytest.mark.long
def test_inputs_are_reordered_and_exchanged_in_one_step(service: Changing) -> None:
    """From a to a, b, d; then to d, c: d comes first, b is renamed to c, and a ends."""
    a, b, c, d = map(service.topic, "abcd")
    service.read("a", "b", "d").feed(b=30, d=20)
    done = service.change(f"--add {b}=beginning", f"--add {d}:0=end,{d}:1=beginning")
    assert [each.position for each in done.partitions[1].inputs if each.topic == d] == [0]
    skipped = done.partitions[0].inputs[2].position or 0
    assert skipped > 0
    service.feed(a=10, b=10, d=10)
    service.handle_all(STATEHOLD_SNAPSHOT__DELTA_INTERVAL="30", STATEHOLD_SNAPSHOT__ON_STOP="true")
    before = service.digests()

    service.read("d", "c").feed(c=25)
    with pytest.raises(UsageError, match=f"the state has {a}, {b}, {d}, the code reads {d}, {c}. Next: confirm each"):
        service.change(f"--remove {a}")
    with pytest.raises(UsageError, match=r"in another order. Next: confirm that with --reorder"):
        service.change(f"--rename {b}={c}", f"--remove {a}")
    done = service.change(f"--rename {b}={c}", f"--remove {a}", "--reorder")
    assert (done.moved, done.old_digest) == (True, done.digest)
    assert service.digests() == before
    service.feed(d=10)
    service.handle_all()

    service.read("c", "d")
    with pytest.raises(ToolRefused, match=r"name the former inputs with --rename OLD=NEW or --remove OLD"):
        Changing.change(service.read("b"), f"--add {b}=end")
    service.read("c", "d")
    before = service.read("d", "c").digests()
    service.read("c", "d").change("--reorder")
    assert service.digests() == before
    service.feed(c=10, d=10)
    service.handle_all()
    missing = {(d, 0, offset) for offset in range(skipped)}
    found = [(e.topic, e.partition, e.offset) for chain in service.links().values() for e in chain]
    assert not missing & set(found)
    assert len(found) == len(set(found)) == sum(f.fed for f in service.feeders.values()) - skipped


def test_a_change_that_would_lose_something_changes_nothing(service: Changing) -> None:
    before, b = service.commit_records(), service.topic("b")
    stage = service.stage
    service.inputs = (*service.inputs, b)
    with pytest.raises(TopicMissing, match=f"{b}: change the inputs: the topic does not exist"):
        service.change(f"--add {b}=end")
    for future in stage.admin.create_topics([NewTopic(b, 3)]).values():
        future.result(30)
    await_true(lambda: b in stage.topics(), "the topic is listed")
    with pytest.raises(ToolRefused, match=f"{b} has 3 partitions, the state has 2"):
        service.change(f"--add {b}=end")
    service.inputs = (service.topic("a"),)
    service.read("a", "c").feed(c=5)
    c = service.topic("c")
    with pytest.raises(ToolRefused, match=rf"{c}\[0\] holds offsets 0 to \d, not 99"):
        service.change(f"--add {c}=99")
    with pytest.raises(UsageError, match=f"{c}: name one position for all partitions, or one for each"):
        service.change(f"--add {c}:0=1")
    with Local(service.read("a")) as local:
        local.await_live(0, 1)
        service.read("a", "c")
        with pytest.raises(ToolRefused, match="Stop the service first"):
            service.change(f"--add {c}=end")
        service.read("a")
    service.read("c").feed(a=3)
    with pytest.raises(
        ToolRefused, match=r"records are not processed yet. Nothing was changed. Next: stop its producers"
    ):
        service.change(f"--rename {service.topic('a')}={c}")
    service.read("c").stage.delete_records(c, 0)
    service.read("a").handle_all()
    with pytest.raises(ToolRefused, match=rf"{c}\[0\] begins at \d: retention has deleted unprocessed records"):
        service.read("c").change(f"--rename {service.topic('a')}={c}")
    with pytest.raises(TopicMissing, match=f"create no topics, .* --rename {service.topic('a')}={c} --why TEXT"):
        service.service().start()
    service.create_topics()
    with pytest.raises(ToolRefused, match="perhaps of `statehold topics create`"):
        service.change(f"--remove {service.topic('a')}", f"--add {c}=beginning", dry_run=True)
    assert [each.lineage for each in service.read("a").commit_records()] == [each.lineage for each in before]


@pytest.mark.long
def test_an_input_with_old_records_is_added_and_removed_when_its_topic_is_gone(service: Changing) -> None:
    service.read("a", "b").feed(b=20)
    service.read("a").feed(a=40)
    service.handle_all()
    service.read("a", "b")
    b = service.topic("b")
    done = service.change(f"--add {b}=beginning")
    assert (done.total("added", "older"), done.total("added", "unread")) == (20, 20)
    service.handle_all()
    service.stage.admin.delete_topics([b])[b].result(30)
    await_true(lambda: b not in service.stage.topics(), "the topic is gone")
    service.read("a")
    with pytest.raises(ToolRefused, match="the topic does not exist any more, so its unread records are unknown"):
        service.change(f"--remove {b}")
    service.change(f"--remove {b}", "--discard")
    service.feed(a=10)
    service.handle_all()
    assert sum(map(len, service.links().values())) == 60 + 20 + 40 + 10


@pytest.mark.long
def test_dead_letters_are_resolved_before_the_change_and_their_list_is_removed(
    stages: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of either state has the place 0: the list of the former one must not say that it is resolved."""
    monkeypatch.setenv("PROBE_DEAD_LETTERS", "1")
    service = Changing(stages(1)).read("a").create_topics()
    service.feeders[service.topic("a")].send(b'{"id":1,"amount":-1}', 0, "k")
    service.feed(a=9)
    service.handle_all()
    service.read("a", "b")
    add = f"--add {service.topic('b')}=beginning"
    with pytest.raises(ToolRefused, match=r"dead letters are unresolved \(partition 0: 1\)"):
        service.change(add)
    service.read("a")
    dead_letters = DeadLetters(service.stage.settings(), service.names)
    with Local(service) as local:
        local.await_live(0)
        assert dead_letters.resolve(DISCARD, [0], lambda _: True, "a test", 60)[0].done == 1
    before = service.digests()
    service.read("a", "b").feed(b=5)
    shown = service.change(add, dry_run=True)
    done = service.change(add)
    for each in (shown, done):
        assert [(p.resolved, p.old_digest == p.digest) for p in each.partitions] == [(1, False)]
    assert digest.show(before[0]) == done.old_digest
    assert digest.show(service.digests()[0]) == done.digest
    service.handle_all()
    assert len(service.links()[0]) == 9 + 5
