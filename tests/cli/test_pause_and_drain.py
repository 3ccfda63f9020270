"""`statehold pause`, `resume` and `drain` as a user runs them: real processes, a real broker."""

from __future__ import annotations

import json
import signal

import pytest
from tests.cli.commands import Commands, Daemon, wait_until

pytestmark = pytest.mark.kafka


def instance_of(service: Commands) -> str:
    reported = service.run("status", "--name", service.name, "--json")
    assert reported.returncode == 0, reported.stderr
    (process,) = json.loads(reported.stdout)
    return str(process["instance"])


def positions(answers: str) -> dict[int, int]:
    return {each["partition"]: each["position"] for each in json.loads(answers)}


@pytest.mark.long
def test_a_pause_survives_a_restart_until_resume_and_a_drain_ends_it_all(on_kafka: Commands) -> None:
    on_kafka.create_topics(2)
    rejected = on_kafka.run("pause", "app:service")
    assert rejected.returncode == 1
    options = f"--name {on_kafka.name} --input {on_kafka.name}.in"
    assert f"`statehold topics create {options} --control --start-at end`" in rejected.stderr
    made = on_kafka.run("topics", "create", *options.split(), "--control", "--start-at", "end")
    assert made.returncode == 0, made.stderr
    daemon = on_kafka.start()
    daemon.wait_for("live", 2)
    for partition in (0, 1):
        on_kafka.feed("x", partition)

    paused = on_kafka.run("pause", "app:service", "--partitions", "0", "--json")
    assert paused.returncode == 0, paused.stderr
    before = positions(paused.stdout)
    assert before.keys() == {0}
    assert daemon.wait_for("paused")["partition"] == 0
    assert on_kafka.run("pause", "app:service", "--partitions", "7").returncode != 0

    again = restarted(on_kafka, daemon)
    assert again.wait_for("paused")["partition"] == 0
    for partition in (0, 1):
        on_kafka.feed("y", partition)

    resumed = on_kafka.run("resume", "app:service", "--partitions", "0", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert positions(resumed.stdout) == before, "it has not stood still"
    again.wait_for("resumed")
    still = on_kafka.run("pause", "app:service")
    assert still.returncode == 0, still.stderr
    assert still.stdout.count("paused from position 2 on") == 2, "all was handled once it went on"

    instance = instance_of(on_kafka)
    drained = on_kafka.run("drain", instance, "--name", on_kafka.name, "--json")
    assert drained.returncode == 0, drained.stderr
    (reported,) = json.loads(drained.stdout)
    assert (sorted(reported["partitions"]), reported["ended"]) == ([0, 1], True)
    assert again.process.wait(60) == 0
    assert len(again.events("drained")) == 2

    absent = on_kafka.run("drain", instance, "--name", on_kafka.name)
    assert absent.returncode == 1
    assert f"no instance {instance!r}" in absent.stderr
    late = on_kafka.run("resume", "app:service", "--timeout", "0.5")
    assert late.returncode == 1
    assert "stay in the control topic" in late.stderr
    assert late.stderr.count("\n") == 1
    sent = on_kafka.run("resume", "app:service", "--no-wait")
    assert (sent.returncode, sent.stderr) == (0, "")


def restarted(service: Commands, daemon: Daemon) -> Daemon:
    """Killed, so that only the commit record can name the pause."""
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(60)
    wait_until(lambda: daemon.process.poll() is not None, "the end")
    again = service.start()
    again.wait_for("live", 2)
    return again
