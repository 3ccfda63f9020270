"""`statehold repair` as an operator types it: what it shows and refuses, its exit codes, what stays in the log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.cli.commands import APP, Commands, wait_until

KEEPING = APP.replace("Output, Record", "Output, Record, Table").replace(
    "    echo = ", "    seen = Table(key=str, value=int)\n    echo = "
)
KEEPING = KEEPING.replace(
    "        self.echo.send", "        self.seen[record.value] = record.offset\n        self.echo.send"
)
CALLING = KEEPING.replace("        self.echo.send", "        self.effect(post, record.value)\n        self.echo.send")
CALLING = CALLING.replace("service = ", "def post(key, value):\n    raise ConnectionError('down')\n\nservice = ")
TIMED = KEEPING.replace("value=int)", "value=int, ttl=60)")
WORD = ("--why", "ticket 9", "--who", "ann")
RECORDS = 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "reported"),
    [
        (["accept-gap", "--why", "x", "--to", "middle"], 2, "--to middle: beginning, end, an offset"),
        (["accept-gap", "--why", "x", "--dry-run", "--yes"], 2, "--dry-run and --yes contradict each other"),
        (["rebase", "--why", "x", "--records", "again", "--full", "3"], 1, "add --partitions P"),
        (["accept-gap"], 2, "--why"),
        (["rebase", "--why", "x"], 2, "--records"),
        (["adopt-offsets", "--why", "x", "--from", "nowhere"], 2, "nowhere"),
        (["time", "--why", "x"], 2, "--to"),
        (["time", "--why", "x", "--to", "yesterday"], 2, "--to 'yesterday': a time such as 2026-11-21T17:30:00Z"),
        (["time", "--why", "x", "--to", "1969-12-31"], 2, "--to 1969-12-31: a time since 1970"),
    ],
    ids=["place", "both", "full", "why", "records", "from", "no time", "word", "before 1970"],
)
def test_a_wrong_command_is_rejected(statehold: Commands, options: list[str], code: int, reported: str) -> None:
    done = statehold.run("repair", options[0], "app:service", *options[1:])
    assert (done.returncode, done.stdout) == (code, "")
    assert reported in done.stderr
    assert code == 2 or done.stderr.count("\n") == 1


class Stopped:
    """A service with one partition that has handled its records, and no member in its group."""

    def __init__(self, commands: Commands, app: str = KEEPING) -> None:
        self.commands, self.topic = commands, f"{commands.name}.in"
        servers = {"bootstrap.servers": commands.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"]}
        self.admin = AdminClient(dict(servers))
        self.asker = Consumer({**servers, "group.id": commands.name})
        commands.write_app(app)
        commands.create_topics(1)
        self.feed(RECORDS)
        self.run_until(RECORDS)

    def feed(self, count: int) -> None:
        for number in range(count):
            self.commands.feed(f"record {number}", 0)

    def position(self) -> int:
        return int(self.asker.committed([TopicPartition(self.topic, 0)], 30)[0].offset)

    def run_until(self, position: int) -> None:
        daemon = self.commands.start("--set", "log.format=json")
        daemon.wait_for("live")
        wait_until(lambda: self.position() >= position, f"position {position}")
        assert daemon.stop() == 0

    def repair(self, *options: str) -> Any:
        done = self.commands.run("repair", options[0], "app:service", *options[1:], *WORD, "--json")
        assert done.returncode == 0, done.stderr
        (step,) = json.loads(done.stdout)["partitions"]
        return step

    def rejects(self, *options: str) -> str:
        done = self.commands.run("repair", options[0], "app:service", *options[1:], *WORD)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "nothing was changed" in done.stderr.lower()
        return done.stderr

    def trace(self) -> dict[str, Any]:
        """The state-replacement record, as `statehold cat` shows it."""
        done = self.commands.run("cat", f"{self.commands.name}.{self.topic}.changelog", "--json")
        assert done.returncode == 0, done.stderr
        (found,) = [
            row for line in done.stdout.splitlines() if (row := json.loads(line))["kind"] == "state-replacement"
        ]
        assert (found["who"], found["why"]) == ("ann", "ticket 9")
        return dict(found)

    def outputs(self) -> int:
        done = self.commands.run("cat", f"{self.commands.name}.out")
        return len(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.kafka
def test_accept_gap_shows_then_does_and_leaves_its_trace(on_kafka: Commands) -> None:
    stopped = Stopped(on_kafka)
    assert "no partition has a gap" in stopped.rejects("accept-gap")
    stopped.feed(4)
    place = TopicPartition(stopped.topic, 0, RECORDS + 2)
    stopped.admin.delete_records([place])[place].result(30)

    shown = stopped.repair("accept-gap", "--dry-run")
    assert (shown["old_position"], shown["position"]) == (RECORDS, RECORDS + 2)
    assert (shown["transaction"], shown["full"]) == (None, None)
    assert f"offsets {RECORDS} to {RECORDS + 2} are deleted" in shown["finding"]
    assert stopped.position() == RECORDS, "a dry run changes nothing"

    done = stopped.repair("accept-gap", "--yes")
    assert (done["position"], done["digest"]) == (shown["position"], shown["digest"])
    trace = stopped.trace()
    assert trace["tool"].startswith("repair accept-gap")
    assert (trace["old_positions"][stopped.topic], trace["positions"][stopped.topic]) == (RECORDS, RECORDS + 2)
    assert "2 offsets are skipped" in trace["notes"]["partition 0"]
    stopped.run_until(RECORDS + 4)
    assert stopped.outputs() == RECORDS + 2


@pytest.mark.long
@pytest.mark.kafka
def test_drop_effects_shows_then_does_and_leaves_its_trace(on_kafka: Commands) -> None:
    stopped = Stopped(on_kafka, CALLING)
    assert "no pending effect is one that this code cannot call" in stopped.rejects("drop-effects")
    on_kafka.write_app(KEEPING)
    daemon = on_kafka.start("--set", "log.format=json")
    assert daemon.wait_for("failed")["error"] == "UnknownEffect"
    assert "module 'app' has no attribute 'post'" in daemon.events("failed")[0]["cause"]
    assert daemon.stop() == 0

    shown = stopped.repair("drop-effects", "--dry-run")
    assert shown["finding"] == f"{RECORDS} of {RECORDS} pending effects cannot be called: app:post ({RECORDS})"
    assert shown["transaction"] is None
    done = stopped.repair("drop-effects", "--function", "app:post", "--yes")
    assert (done["position"], done["digest"]) == (RECORDS, shown["digest"])
    trace = stopped.trace()
    assert trace["tool"].startswith("repair drop-effects")
    assert f"the records {stopped.topic}[0]@0 to {RECORDS - 1}" in trace["notes"]["partition 0"]
    stopped.feed(1)
    stopped.run_until(RECORDS + 1)
    assert stopped.outputs() == RECORDS + 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
def test_time_shows_then_does_and_leaves_its_trace(on_kafka: Commands) -> None:
    stopped = Stopped(on_kafka, TIMED)
    assert "no partition has a time later than 2100-01-01T00:00:00.000Z" in stopped.rejects(
        "time", "--to", "2100-01-01"
    )
    shown = stopped.repair("time", "--to", "2020-01-01T00:00:00Z", "--dry-run")
    assert shown["finding"].endswith("days later than 2020-01-01T00:00:00.000Z")
    assert (
        f"seen: 0 expired keys are there again, {RECORDS} now expire at 2020-01-01T00:01:00.000Z"
        in shown["consequence"]
    )
    assert (shown["transaction"], shown["old_position"], shown["position"]) == (None, RECORDS, RECORDS)

    done = stopped.repair("time", "--to", "2020-01-01T00:00:00Z", "--yes")
    assert (done["position"], done["digest"]) == (RECORDS, shown["digest"])
    trace = stopped.trace()
    assert trace["tool"].startswith("repair time")
    assert "days later than 2020-01-01" in trace["notes"]["partition 0"]
    stopped.feed(2)
    stopped.run_until(RECORDS + 2)
    assert stopped.outputs() == RECORDS + 2


@pytest.mark.long
@pytest.mark.kafka
def test_adopt_offsets_shows_then_does_and_leaves_its_trace(on_kafka: Commands) -> None:
    stopped = Stopped(on_kafka)
    reset = ConsumerGroupTopicPartitions(on_kafka.name, [TopicPartition(stopped.topic, 0, 2)])
    stopped.admin.alter_consumer_group_offsets([reset])[on_kafka.name].result(30)
    shown = stopped.repair("adopt-offsets", "--from", "commit-record")
    assert f"the group's offset is 2, the last commit record has {RECORDS}" in shown["finding"]
    assert stopped.position() == 2, "without --yes nothing changes"
    done = on_kafka.run("repair", "adopt-offsets", "app:service", "--from", "commit-record", *WORD, "--yes")
    assert done.returncode == 0, done.stderr
    assert "repaired, state generation" in done.stdout + done.stderr
    trace = stopped.trace()
    assert trace["tool"].startswith("repair adopt-offsets")
    assert "set to the commit record's" in trace["notes"]["partition 0"]
    assert stopped.position() == RECORDS
    stopped.feed(1)
    stopped.run_until(RECORDS + 1)
    assert stopped.outputs() == RECORDS + 1


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["replay", "again"])
def test_rebase_shows_then_does_and_leaves_its_trace(on_kafka: Commands, kind: str) -> None:
    stopped = Stopped(on_kafka)
    assert "every partition can be restored" in stopped.rejects("rebase", "--records", kind)
    shown = stopped.repair("rebase", "--records", kind, "--partitions", "0", "--dry-run")
    assert shown["finding"] == "chosen by the operator"
    done = stopped.repair("rebase", "--records", kind, "--partitions", "0", "--yes")
    assert (done["position"], done["digest"]) == (shown["position"], shown["digest"])
    assert done["keys"] == RECORDS
    trace = stopped.trace()
    assert trace["tool"].startswith("repair rebase")
    assert "chosen by the operator" in trace["notes"]["partition 0"]
    stopped.feed(2)
    stopped.run_until(RECORDS + 2)
    assert stopped.outputs() == RECORDS + 2


@pytest.mark.long
@pytest.mark.kafka
def test_a_repair_is_rejected_while_the_group_has_members(on_kafka: Commands) -> None:
    stopped = Stopped(on_kafka)
    daemon = on_kafka.start("--set", "log.format=json")
    daemon.wait_for("live")
    assert "has 1 member" in stopped.rejects("rebase", "--records", "replay", "--partitions", "0", "--yes")
    assert daemon.stop() == 0
