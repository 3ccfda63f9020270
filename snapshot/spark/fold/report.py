"""The task of an executor for one partition, and its report to the driver. Small for any state size.

A stretch is the range of one topic partition that one task reads, in order. The driver divides a changelog partition
after commit records, so the chain of each stretch begins with the next transaction. All stretches together prove the
same as one, because a stretch must end with the transaction after which the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from statehold.snapshot.format.records import Manifest


class Scan(msgspec.Struct, frozen=True):
    """The parts of a partition's plan that an executor needs."""

    partition: int
    #: Id of the full snapshot; '' without one.
    full: str
    chunks: int
    first: int
    lineage: str
    topic: str
    #: Transactions after which the second and later stretches of the changelog begin.
    cuts: tuple[int, ...] = ()
    #: Number of stretches of the chunks.
    chunk_stretches: int = 1

    def after(self, stretch: int) -> int:
        """Return the transaction after which a stretch begins; -1 for any."""
        return self.cuts[stretch - 1] if stretch else self.first


class TaskReport(msgspec.Struct, kw_only=True):
    """One task's report about its stretch."""

    partition: int
    kind: str
    #: Number of the stretch, and number of stretches.
    stretch: int = 0
    of: int = 1
    #: Why the partition must not be used; '' if it may.
    finding: str = ""
    #: The finding is a record batch that is damaged on the broker's disk; or records that were truncated meanwhile, so
    #: that another plan may help.
    damaged: bool = False
    overtaken: bool = False
    #: Chunks: number of the first one, and the checksums from it.
    begin: int = 0
    checksums: list[int] = []
    #: Changelog: the transaction before the stretch; the last complete transaction, the offset of its header, and
    #: digest and number of keys of its commit record.
    after: int = -1
    last: int = -1
    header: int = -1
    digest: bytes = b""
    keys: int = 0
    entries: int = 0
    size: int = 0


encode_report = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(TaskReport).decode


def gathered(reports: Iterable[TaskReport]) -> dict[int, dict[str, TaskReport]]:
    """Join reports: partition -> kind -> report of all stretches; a finding if one is missing or unconnected."""
    found: dict[int, dict[str, list[TaskReport]]] = {}
    for report in reports:
        found.setdefault(report.partition, {}).setdefault(report.kind, []).append(report)
    return {
        partition: {kind: _joined(sorted(each, key=lambda report: report.stretch)) for kind, each in kinds.items()}
        for partition, kinds in found.items()
    }


def _joined(reports: Sequence[TaskReport]) -> TaskReport:
    *before, last = reports
    checksums, gap = _checksums(reports)
    findings = [each.finding for each in reports if each.finding]
    return msgspec.structs.replace(
        last,
        finding=next(iter([*findings, _not_one(reports) or gap])),
        damaged=any(each.damaged for each in reports),
        overtaken=any(each.overtaken for each in reports),
        begin=0,
        after=reports[0].after,
        checksums=checksums,
        entries=last.entries + sum(each.entries for each in before),
        size=last.size + sum(each.size for each in before),
    )


def _not_one(reports: Sequence[TaskReport]) -> str:
    read, wanted = [each.stretch for each in reports], list(range(reports[0].of))
    if reports[0].kind != "increments":
        return ""  # the chunk numbers reveal a stretch that was not read
    if read != wanted:
        return f"stretches {read} of {len(wanted)} were read"
    for one, following in pairwise(reports):
        if one.last != following.after:
            return f"the changelog before transaction {following.after + 1} ends with transaction {one.last}"
    return ""


def _checksums(reports: Sequence[TaskReport]) -> tuple[list[int], str]:
    """Join the checksums; equal duplicates at a boundary are valid."""
    sums: list[int] = []
    for report in filter(lambda each: each.checksums, reports):
        known = sums[report.begin :]
        if report.begin > len(sums) or known != report.checksums[: len(known)]:
            return sums, f"chunk {len(sums)} is missing"
        sums += report.checksums[len(known) :]
    return sums, ""


def judge_chunks(manifest: Manifest, report: TaskReport | None) -> str:
    """Return why these are not exactly the manifest's chunks; '' if they are."""
    wanted = len(manifest.checksums)
    if report is None:
        return "" if wanted == 0 else f"0 of {wanted} chunks exist"
    if report.finding:
        return report.finding
    for i, (expected, found) in enumerate(zip(manifest.checksums, report.checksums, strict=False)):
        if expected != found:
            return f"chunk {i} of {wanted} is damaged"
    return "" if len(report.checksums) == wanted else f"{len(report.checksums)} of {wanted} chunks exist"
