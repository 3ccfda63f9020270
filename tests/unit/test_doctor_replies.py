"""`doctor` looks at the topic of replies, and at the partitions of dead letters and retries; without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from statehold.admin.topics import REQUIRED
from statehold.common.names import Names
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Check
from statehold.ops.doctor.topics import CleanupPolicy, PartitionCounts

NAMES = Names("payments", "payments")
SOUND = {"cleanup.policy": "delete", "retention.ms": "3600000", "retention.bytes": "-1"}


def looked(check: Check, replies: dict[str, str] | None = None, *, partitions: int = 4) -> list[tuple[str, str, str]]:
    """Return level, topic and fix of each finding about a service whose topic of replies has these settings."""
    settings = {NAMES.replies: SOUND | (replies or {})}
    topics = {
        topic: SimpleNamespace(partitions=[None] * (partitions if topic in (NAMES.replies, NAMES.dead) else 4))
        for topic in (NAMES.input, NAMES.changelog, NAMES.snapshot, NAMES.replies, NAMES.dead)
    }
    case: Any = SimpleNamespace(
        names=NAMES,
        outputs=(NAMES.replies, NAMES.dead),
        references=(),
        surveys=(),
        topics=topics,
        topic=topics.__getitem__,
        topic_setting=lambda topic, key: settings.get(topic, REQUIRED)[key],
        set_topic=lambda topic, key, value: f"{topic} {key}={value}",
        kafka=lambda tool, arguments: f"{tool} {arguments}",
    )
    return [(str(each.level), each.about, each.fix) for each in check.look(cast("Case", case)) if each.about != "-"]


def test_a_sound_topic_of_replies() -> None:
    assert looked(CleanupPolicy()) == []
    assert looked(PartitionCounts()) == []


@pytest.mark.parametrize(
    ("settings", "level", "fix"),
    [
        ({"cleanup.policy": "compact"}, "FAIL", "cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "FAIL", "cleanup.policy=delete"),
        ({"retention.ms": "-1"}, "WARN", "retention.ms=3600000"),
        ({"retention.ms": "1000"}, "WARN", "retention.ms=3600000"),
    ],
)
def test_a_topic_of_replies_that_loses_or_hoards(settings: dict[str, str], level: str, fix: str) -> None:
    assert looked(CleanupPolicy(), settings) == [(level, NAMES.replies, f"{NAMES.replies} {fix}")]


def test_replies_may_be_bounded_by_bytes_alone() -> None:
    assert looked(CleanupPolicy(), {"retention.ms": "-1", "retention.bytes": "1000000"}) == []


def test_replies_and_dead_letters_need_the_partitions_of_the_input() -> None:
    found = looked(PartitionCounts(), partitions=3)
    assert [(level, topic) for level, topic, _ in found] == [("FAIL", NAMES.replies), ("FAIL", NAMES.dead)]
    assert found[0][2] == f"kafka-topics --alter --topic {NAMES.replies} --partitions 4"
    assert looked(PartitionCounts(), partitions=8) == []
