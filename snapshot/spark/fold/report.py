"""What a task is to read of one partition, and what it found there, for the driver to judge. Small, whatever the state.

A stretch is what one task reads of one topic partition, in order. The stretches of an increment partition are cut
behind marks that the driver has seen, so each one's chain begins with the transaction after its mark, and all of them
together are the same proof as one: what a stretch ends with must be what the next one was told to begin after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from statehold.snapshot.format.records import Manifest


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of an increment partition begins at this offset, after transaction `n`."""

    offset: int
    n: int


class Scan(msgspec.Struct, frozen=True):
    """What an executor needs to know of one partition's plan."""

    partition: int
    #: id of the base, '' without one
    full: str
    chunks: int
    first: int
    lineage: str
    topic: str
    #: where the second and later stretches begin: of the increments, and of the base's chunks (offsets)
    cuts: tuple[Cut, ...] = ()
    chunk_cuts: tuple[int, ...] = ()

    def stretch(self, topic: str, offset: int) -> int:
        """The number of the stretch that a record belongs to."""
        starts = [cut.offset for cut in self.cuts] if topic == self.topic else self.chunk_cuts
        return bisect_right(starts, offset)

    def after(self, stretch: int) -> int:
        """The transaction after which the increments of a stretch begin; -1: whatever comes first."""
        return self.cuts[stretch - 1].n if stretch else self.first


class Report(msgspec.Struct, kw_only=True):
    """What one task found in its stretch."""

    partition: int
    kind: str
    #: number of the stretch, and how many there are
    stretch: int = 0
    of: int = 1
    #: '' or why nothing of this partition may be used
    finding: str = ""
    #: of chunks: number of the first one, and the checksums from there on
    begin: int = 0
    checksums: list[int] = []
    #: of increments: the transaction that it was told to begin after; the last whole transaction, where its header
    #: lies, and its mark's digest and number of keys
    after: int = -1
    last: int = -1
    header: int = -1
    digest: bytes = b""
    keys: int = 0
    entries: int = 0
    size: int = 0


encode_report = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(Report).decode


def gathered(reports: Iterable[Report]) -> dict[int, dict[str, Report]]:
    """Partition -> kind -> the report of all its stretches; each of them was read, and leads on to the next, or there
    is a finding."""
    found: dict[int, dict[str, list[Report]]] = {}
    for report in reports:
        found.setdefault(report.partition, {}).setdefault(report.kind, []).append(report)
    return {
        partition: {kind: _joined(sorted(each, key=lambda report: report.stretch)) for kind, each in kinds.items()}
        for partition, kinds in found.items()
    }


def _joined(reports: Sequence[Report]) -> Report:
    *before, last = reports
    checksums, gap = _checksums(reports)
    findings = [each.finding for each in reports if each.finding]
    return msgspec.structs.replace(
        last,
        finding=next(iter([*findings, _not_one(reports) or gap])),
        begin=0,
        after=reports[0].after,
        checksums=checksums,
        entries=last.entries + sum(each.entries for each in before),
        size=last.size + sum(each.size for each in before),
    )


def _not_one(reports: Sequence[Report]) -> str:
    read, wanted = [each.stretch for each in reports], list(range(reports[0].of))
    if reports[0].kind != "increments":
        return ""  # a chunk that was not read is missed by its number
    if read != wanted:
        return f"stretches {read} of {len(wanted)} were read"
    for one, following in pairwise(reports):
        if one.last != following.after:
            return f"the increments before transaction {following.after + 1} end with transaction {one.last}"
    return ""


def _checksums(reports: Sequence[Report]) -> tuple[list[int], str]:
    """Doubled chunks at a cut are fine where they are the same."""
    sums: list[int] = []
    for report in filter(lambda each: each.checksums, reports):
        known = sums[report.begin :]
        if report.begin > len(sums) or known != report.checksums[: len(known)]:
            return sums, f"chunk {len(sums)} is missing"
        sums += report.checksums[len(known) :]
    return sums, ""


def judge_chunks(manifest: Manifest, report: Report | None) -> str:
    """Why these are not exactly the chunks that the manifest names, or ''."""
    wanted = len(manifest.checksums)
    if report is None:
        return "" if wanted == 0 else f"0 of {wanted} chunks are there"
    if report.finding:
        return report.finding
    for i, (expected, found) in enumerate(zip(manifest.checksums, report.checksums, strict=False)):
        if expected != found:
            return f"chunk {i} of {wanted} is damaged"
    return "" if len(report.checksums) == wanted else f"{len(report.checksums)} of {wanted} chunks are there"
