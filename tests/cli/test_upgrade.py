"""`statehold finish-upgrade` on a real broker; next to an old release: tests/system/test_rolling_upgrade.py."""

from __future__ import annotations

import json

import pytest
from tests.cli.commands import Commands

from statehold.snapshot.format import frame

pytestmark = pytest.mark.kafka


def test_a_service_that_began_in_the_newest_format_has_nothing_to_finish(on_kafka: Commands) -> None:
    on_kafka.create_topics(2)
    done = on_kafka.run("finish-upgrade", "app:service", "--json")
    assert done.returncode == 0, done.stderr
    assert [(each["partition"], each["format"], each["transaction"]) for each in json.loads(done.stdout)] == [
        (0, frame.NEWEST, 0),
        (1, frame.NEWEST, 0),
    ]
    looked = on_kafka.run("finish-upgrade", "app:service", "--dry-run")
    assert (
        looked.stdout.splitlines()[1]
        == f"partition 1: format {frame.NEWEST}, transaction 0 by statehold 0.1.0 (topics create)"
    )
    ours = on_kafka.run("command", "finish-upgrade", "app:service")
    assert "'finish-upgrade' is statehold's own command: `statehold finish-upgrade`" in ours.stderr
    absent = on_kafka.run("finish-upgrade", "--name", "absent", "--input", "nothing")
    assert absent.returncode == 1
    assert absent.stderr.startswith("statehold: absent.nothing.changelog: read the format: the topic does not exist.")
