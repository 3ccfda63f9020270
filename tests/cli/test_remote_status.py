"""`top` and `status` of a group from a machine on which none of it runs: by the ops servers of its members."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands import Commands, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
TOKEN = "an-owl-in-the-attic"  # noqa: S105


def test_instances_are_asked_over_http_with_the_token(on_kafka: Commands, tmp_path: Path) -> None:
    on_kafka.create_topics(2)
    plain = on_kafka.environment
    on_kafka.environment = plain | {"STATEHOLD_OPS__TOKEN": TOKEN}
    daemon = on_kafka.start("--json", "--set", "service.instance=one")
    daemon.wait_for("live", 2)
    # Another machine: none of its sockets is there.
    on_kafka.environment = plain | {"XDG_RUNTIME_DIR": str(tmp_path / "elsewhere")}
    (tmp_path / "elsewhere").mkdir()
    names = ("--name", on_kafka.name, "--input", f"{on_kafka.name}.in", "--json")
    assert on_kafka.run("status", "--service", on_kafka.name).returncode == 3

    rejected = on_kafka.run("status", *names)
    assert rejected.returncode == 1
    assert "401" in rejected.stdout
    assert {row["phase"] for row in json.loads(on_kafka.run("top", *names).stdout)["rows"]} == {"assigned"}

    on_kafka.environment = on_kafka.environment | {"STATEHOLD_OPS__TOKEN": TOKEN}

    def answered() -> bool:
        done = on_kafka.run("status", *names)
        return done.returncode == 0 and [each["instance"] for each in json.loads(done.stdout)] == ["one"]

    wait_until(answered, "both partitions are live")
    rows = json.loads(on_kafka.run("top", *names).stdout)["rows"]
    assert [(row["phase"], row["owner"]) for row in rows] == [("live", "one")] * 2
    assert daemon.stop() == 0
    assert on_kafka.run("status", *names).returncode == 3
