"""Checks retention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from statehold.config.common.units import format_duration
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Finding, FindingsOf


class InputRetention:
    name: ClassVar = "input-retention"
    looks_at: ClassVar = (
        "the input's retention against doctor.longest_outage; its first offset against each position, and, if "
        "deltas are not written with every commit, against the position of the newest full"
    )
    fails: ClassVar = "records may be deleted, or are already, before they are read or replayed"
    warns: ClassVar = "retention.bytes is set: how long that lasts depends on the load"

    def look(self, case: Case) -> Iterator[Finding]:
        for topic in case.names.inputs:
            yield from self._look(case, topic, FindingsOf(self))

    def _look(self, case: Case, topic: str, seen: FindingsOf) -> Iterator[Finding]:
        case.topic(topic)
        kept = int(case.topic_setting(topic, "retention.ms"))
        outage = case.settings.doctor.longest_outage
        if 0 <= kept < outage * 1000:
            yield seen.failed(
                topic,
                f"keeps records for {format_duration(kept / 1000)}, doctor.longest_outage is {format_duration(outage)}",
                case.set_topic(topic, "retention.ms", round(outage * 1000)),
            )
        if int(case.topic_setting(topic, "retention.bytes")) >= 0:
            yield seen.warned(
                topic,
                "retention.bytes is set: under load records are deleted sooner than retention.ms says",
                case.set_topic(topic, "retention.bytes", -1),
            )
        yield from self._positions(case, topic, seen)

    def _positions(self, case: Case, topic: str, seen: FindingsOf) -> Iterator[Finding]:
        replays = case.settings.snapshot.delta_interval != "commit"
        for each in case.surveys:
            if each.commit_record is None:
                continue
            start, _, _ = case.cluster.ends(topic, each.partition)
            where, position = f"{topic}[{each.partition}]", each.commit_record.positions.get(topic, 0)
            full = each.choice.manifest if each.choice is not None else None
            begin = full.positions.get(topic, position) if replays and full is not None else position
            if start > begin:
                what = "a restore would replay from" if begin < position else "the service must read on from"
                yield seen.failed(
                    where,
                    f"begins at offset {start}, {what} {begin}: records are gone",
                    "see RetentionGap in the runbook; then give the topic a longer retention.ms",
                )


class OffsetsRetention:
    name: ClassVar = "offsets-retention"
    looks_at: ClassVar = "offsets.retention.minutes of the brokers against doctor.longest_outage"
    fails: ClassVar = "-"
    warns: ClassVar = "the group's offsets may expire in an outage; commit records stay, tools that compare do not"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, outage = FindingsOf(self), case.settings.doctor.longest_outage
        for broker, value in case.setting("offsets.retention.minutes").items():
            if int(value) * 60 < outage:
                yield seen.warned(
                    f"broker {broker}",
                    f"forgets offsets after {format_duration(int(value) * 60)}, doctor.longest_outage is "
                    f"{format_duration(outage)}",
                    case.set_brokers("offsets.retention.minutes", round(outage / 60)),
                )


CHECKS = (InputRetention, OffsetsRetention)
