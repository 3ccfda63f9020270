"""`statehold command` and `statehold snapshot take` against a real broker and a running service."""

from __future__ import annotations

import json

import pytest
from tests.cli.commands import APP, Commands

pytestmark = pytest.mark.kafka

LISTENING = APP.replace(
    "service = ",
    """    def on_command(self, command: str, record: Record[bytes]) -> None:
        self.echo.send(f"{command} {record.value.decode()}@{record.offset}")

service = """,
)


def test_a_command_is_acknowledged_and_a_full_snapshot_is_taken_at_its_place(on_kafka: Commands) -> None:
    on_kafka.write_app(LISTENING)
    on_kafka.create_topics(2)
    for partition in (0, 1, 1):
        on_kafka.feed("x", partition)
    daemon = on_kafka.start("--set", "snapshot.periodic_full=false")
    daemon.wait_for("live", 2)

    closed = on_kafka.run("command", "close", "app:service", "--value", "now", "--json")
    assert closed.returncode == 0, closed.stderr
    answers = json.loads(closed.stdout)
    assert [(each["partition"], each["offset"], each["position"]) for each in answers] == [(0, 1, 2), (1, 2, 3)]
    assert len({each["id"] for each in answers}) == 1

    taken = on_kafka.run("snapshot", "take", "--name", on_kafka.name, "--input", f"{on_kafka.name}.in", "--json")
    assert taken.returncode == 0, taken.stderr
    for each in json.loads(taken.stdout):
        assert each["first"] >= each["transaction"] > 0
        assert (each["full"], each["keys"]) == (0, 0)

    ours = on_kafka.run("command", "take", "app:service")
    assert ours.returncode == 2
    assert "'take' is statehold's own command: `statehold snapshot take`" in ours.stderr
    assert daemon.stop() == 0

    unheard = on_kafka.run("snapshot", "take", "app:service", "--partitions", "1", "--timeout", "0.5")
    assert unheard.returncode == 1
    assert "partitions 1@4 have not answered within 0 s" in unheard.stderr
    assert unheard.stderr.count("\n") == 1
    assert on_kafka.run("snapshot", "take", "app:service", "--partitions", "7").returncode != 0
    sent = on_kafka.run("command", "open", "app:service", "--no-wait")
    assert (sent.returncode, sent.stderr) == (0, "")
    assert sent.stdout.startswith("open: sent with id ")

    missing = on_kafka.run("snapshot", "take", "app:service", "--via-control-topic")
    assert missing.returncode == 1
    assert "a running service finds the topic within 10 s" in missing.stderr
    made = on_kafka.run("topics", "create", "app:service", "--start-at", "beginning", "--control")
    assert made.returncode == 0, made.stderr

    again = on_kafka.start("--set", "snapshot.periodic_full=false")
    again.wait_for("full_written")
    assert [event["partition"] for event in again.events("full_written")] == [1]
    via_control = on_kafka.run("snapshot", "take", "app:service", "--via-control-topic", "--json")
    assert via_control.returncode == 0, via_control.stderr
    assert [each["offset"] for each in json.loads(via_control.stdout)] == [0, 0]
    assert [each["position"] for each in json.loads(via_control.stdout)] == [4, 6]
    by_control = on_kafka.run("command", "open", "app:service", "--via-control-topic", "--value", "up", "--json")
    assert by_control.returncode == 0, by_control.stderr
    assert [each["offset"] for each in json.loads(by_control.stdout)] == [1, 1]
    assert [each["position"] for each in json.loads(by_control.stdout)] == [4, 6]
    small = ("--set", "kafka.message_max_bytes=400000")
    long = on_kafka.run("command", "open", "app:service", "--via-control-topic", "--value", "x" * 110_000, *small)
    assert long.returncode != 0
    assert "a command on the control topic may have" in long.stderr
    assert again.stop() == 0
