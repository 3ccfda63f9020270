"""`statehold run`, `status` and `retry` against a real broker, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.cli.commands import APP, Commands, wait_until

pytestmark = pytest.mark.kafka


def test_without_topics_run_ends_with_one_line_that_names_the_command(on_kafka: Commands) -> None:
    done = on_kafka.run("run", "app:service")

    assert done.returncode == 5
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["event"], last["level"], last["error"]) == ("stopped", "error", "TopicMissing")
    assert f"`statehold topics create --name {on_kafka.name} --input {on_kafka.name}.in" in last["cause"]
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert [event for event in events if event != "ops_open"][:2] == ["control_open", "starting"]


def test_a_life_from_start_to_sigterm(on_kafka: Commands) -> None:
    on_kafka.create_topics(2)
    daemon = on_kafka.start()
    daemon.wait_for("live", 2)

    shown = on_kafka.run("status", "--name", on_kafka.name)
    assert shown.returncode == 0, shown.stderr
    assert f"{on_kafka.name} reads {on_kafka.name}.in" in shown.stdout
    assert shown.stdout.count(" live ") == 2

    assert daemon.stop() == 0

    events = daemon.events()
    assert [event["event"] for event in events].index("subscribed") < len(events)
    assert events[-1]["event"] == "stopped"
    assert all(list(event)[:3] == ["event", "timestamp", "level"] for event in events)
    assert on_kafka.run("status", "--name", on_kafka.name).returncode == 3
    assert not os.path.exists(daemon.events("control_open")[0]["path"])


def test_a_failed_partition_ends_the_process_where_that_is_set(on_kafka: Commands) -> None:
    on_kafka.create_topics(1)
    (on_kafka.directory / "app.toml").write_text('[failure]\non_partition_failure = "exit"\n')
    daemon = on_kafka.start("--config", "app.toml")
    daemon.wait_for("live")

    on_kafka.feed("poison", partition=0)

    assert daemon.process.wait(30) == 3
    last = daemon.events()[-1]
    assert (last["event"], last["error"], last["exit_code"]) == ("stopped", "HandlerFailed", 3)
    assert f"{on_kafka.name}.in[0]@0" in last["cause"]
    assert "odd lot" in daemon.events("failed")[0]["exception"]


def test_a_failed_partition_is_shown_and_tried_again(on_kafka: Commands) -> None:
    on_kafka.create_topics(2)
    daemon = on_kafka.start()
    daemon.wait_for("live", 2)
    on_kafka.feed("poison", partition=1)
    daemon.wait_for("failed")

    shown = on_kafka.run("status", "--name", on_kafka.name)
    assert (shown.returncode, "odd lot" in shown.stdout) == (1, True)
    assert (shown.stdout.count(" live "), shown.stdout.count(" failed ")) == (1, 1)

    rejected = on_kafka.run("retry", "0", "--name", on_kafka.name)
    assert rejected.returncode == 1
    assert rejected.stderr == f"statehold: partition 0 of {on_kafka.name} is live, not failed; nothing to retry\n"

    again = on_kafka.run("retry", "1", "--name", on_kafka.name)
    assert again.returncode == 1
    assert again.stdout.startswith("partition 1: failed again: ")
    assert "odd lot" in again.stdout

    unnamed = on_kafka.run("retry", "1")  # as the error says; what other tests run here may have failed as well
    assert unnamed.stdout.startswith("partition 1: failed again: ") or on_kafka.name in unnamed.stderr

    (on_kafka.directory / "fixed").touch()
    retried = on_kafka.run("retry", "all", "--name", on_kafka.name, "--json")
    assert retried.returncode == 0, retried.stdout
    (outcome,) = json.loads(retried.stdout)
    assert (outcome["partition"], outcome["phase"], outcome["pid"]) == (1, "live", daemon.process.pid)
    assert on_kafka.run("status", "--name", on_kafka.name).returncode == 0
    assert daemon.stop() == 0


def test_reload_starts_the_fixed_handler(on_kafka: Commands) -> None:
    on_kafka.create_topics(1)
    daemon = on_kafka.start("--reload")
    daemon.wait_for("live")
    on_kafka.feed("poison", partition=0)
    daemon.wait_for("failed")

    on_kafka.write_app(APP.replace('record.value == "poison"', 'record.value == "worse"'))

    assert daemon.wait_for("reloading")["changed"] == "app.py"
    assert daemon.wait_for("live", 2)["position"] == 0
    wait_until(lambda: position(on_kafka) == 1, "the record that failed is handled")
    assert daemon.stop() == 0
    assert len(daemon.events("stopped")) == 2
    assert on_kafka.run("status", "--name", on_kafka.name).returncode == 3


@pytest.mark.long
def test_reload_waits_for_a_change_when_the_module_is_broken(on_kafka: Commands) -> None:
    on_kafka.create_topics(1)
    on_kafka.write_app("service = \n")
    daemon = on_kafka.start("--reload")
    wait_until(lambda: "waits for a change of a file" in daemon.log.read_text(), "the child has ended")

    on_kafka.write_app()

    daemon.wait_for("live")
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(30) == 0


def test_reload_does_not_log_what_its_own_log_changes(statehold: Commands) -> None:
    """The log is a file in the directory that is watched, and each of its lines is a change."""
    statehold.write_app("service = \n")
    daemon = statehold.start("--reload", "--set", "log.level=debug")
    daemon.wait_for("stopped", 2)  # by the child, which cannot import the module, and by its parent

    statehold.write_app("service = None\n")

    assert daemon.wait_for("reloading")["changed"] == "app.py"
    daemon.wait_for("stopped", 4)
    assert daemon.stop() == 0
    assert [event for event in daemon.events() if event.get("logger", "").startswith("watchfiles")] == []


def position(commands: Commands) -> int | None:
    reported = json.loads(commands.run("status", "--name", commands.name, "--json").stdout)
    return next((each["position"] for process in reported for each in process["partitions"]), None)
