"""The state at a point: the newest that the kept fulls and deltas reach, rounded down to a mark with a delta (rule M1).

Point in time needs no code of the service: fulls and deltas hold absolute values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from statehold.errors import DigestMismatch, NoMark, UsageError
from statehold.ports import Reader
from statehold.snapshot import full_listing
from statehold.snapshot.format import digest, frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest, Mark
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect.contents import Contents, chunks
from statehold.snapshot.restore.discovery import last_mark

_END: Final = 1 << 62


class Point(NamedTuple):
    """A moment of a partition: a position of its input, a transaction, a full by its manifest's offset, or the end."""

    kind: Literal["position", "n", "full", "latest"]
    value: int = _END

    def __str__(self) -> str:
        return self.kind if self.kind == "latest" else f"{self.kind} {self.value}"


LATEST: Final = Point("latest")


class At(msgspec.Struct, frozen=True):
    """The state at a point, and where it really is: `n` and `position` may be lower than what was asked for."""

    contents: Contents
    n: int
    position: int
    #: of all topics that it had read
    positions: Mapping[str, int]
    digest: bytes
    #: milliseconds since 1970, by the clock of who wrote the mark or the full
    time: int
    lineage: str
    #: what it was made from: a full, or None for the beginning, and so many deltas
    base: Full | None
    deltas: int


def parse(text: str) -> Point:
    """`latest`, `n:17`, `full:1234` or a position of the input.

    :raises UsageError: it is none of these.
    """
    kind, colon, number = text.rpartition(":")
    if text == "latest":
        return LATEST
    if number.isdecimal():
        if not colon:
            return Point("position", int(number))
        if kind == "n":
            return Point("n", int(number))
        if kind == "full":
            return Point("full", int(number))
    raise UsageError(
        f"{text!r} is no point: give latest, a position of the input such as 1200, a transaction such as n:17, "
        f"or a full by its offset such as full:1234"
    )


def increments(reader: Reader, place: Place, start: int = -1, chain: Chain | None = None) -> Iterator[Increment]:
    """Whole transactions from an offset on, or from the first header that is kept; lineages are crossed.

    :raises TornTransaction, DamagedIncrement: the chain is broken there. :raises frame.BadFrame: not ours, or damaged.
    """
    topic, partition = place.names.changelog, place.partition
    low, end = reader.bounds(topic, partition)
    chain = chain or Chain(topic, partition, crossing=True)
    beheaded = start <= low and low > 0
    for batch in reader.read(topic, partition, max(low, start), end):
        for message in batch:
            offset, data = message.offset() or 0, message.value()
            try:
                record = records.unpack(data)
            except frame.BadFrame as error:
                raise frame.BadFrame(f"{topic}[{partition}]@{offset}: {error}") from error
            if beheaded and not isinstance(record, records.Header):
                continue  # the rest of a transaction whose beginning was truncated
            beheaded = False
            increment = chain.feed(offset, record)
            if increment is not None:
                yield increment
    chain.finish(end)


def at(reader: Reader, place: Place, point: Point) -> At:
    """The state at a point, with its digest compared with the one that its writer recorded.

    :raises UsageError: the point lies before what is kept, or names no full; the message says what is there.
    :raises DigestMismatch, TornTransaction, DamagedIncrement, NoMark: as a restore would.
    """
    mark = last_mark(reader, place.names.changelog, place.partition)
    if mark is None:
        raise NoMark(
            "there is no mark, so no state: never started? `statehold topics create --start-at ...`",
            topic=place.names.changelog,
            partition=place.partition,
        )
    place.check(mark)
    known = full_listing.find(reader, place, mark, everything=point.kind == "full")
    mismatch: DigestMismatch | None = None
    for full in candidates(known, place, point):
        try:
            found = _from(reader, place, full, point)
        except DigestMismatch as error:
            mismatch = mismatch or error
            continue
        if found is not None:
            return found
    raise mismatch or _not_kept(place, point, known)


def candidates(known: list[Full], place: Place, point: Point) -> Iterator[Full | None]:
    """Bases that may lead to a point, best first; None is the beginning."""
    for full in known:
        made = full.manifest
        if made is None or "belongs to" in full.finding:
            continue
        position = made.positions.get(place.input, _END)
        fits = {
            "latest": True,
            "n": made.through <= point.value,
            "position": position <= point.value,
            "full": full.offset == point.value,
        }
        if fits[point.kind]:
            yield full
    if point.kind != "full":
        yield None


def _from(reader: Reader, place: Place, full: Full | None, point: Point) -> At | None:
    """The state at a point as this base leads to it; None when it does not."""
    contents, made = Contents(), full.manifest if full else None
    found: At | None = None
    if full is not None and made is not None:
        if not _load(reader, place, made, full.offset, contents):
            return None
        if made.first == made.through:
            found = _at_full(place, made, full, contents)
    if found is None or point.kind != "full":
        found = _onwards(reader, place, full, point, contents, found)
    return None if found is None else _checked(found, place)


def _onwards(
    reader: Reader, place: Place, full: Full | None, point: Point, contents: Contents, found: At | None
) -> At | None:
    """Apply the deltas after the base, up to the point; the state at the last of their marks."""
    made = full.manifest if full else None
    chain = Chain(place.names.changelog, place.partition, crossing=True)
    if made is not None:
        chain.last, chain.lineage = made.first, made.lineage
    deltas = 0
    for increment in increments(reader, place, made.increment if made else -1, chain):
        mark, adopt = increment.mark, increment.adopt
        if _beyond(mark, place, point) or (adopt is not None and adopt.base is not None):
            break
        if adopt is not None:
            contents, found, full, made, deltas = Contents(), None, None, None, 0
        elif made is None and chain.first == mark.n and mark.n > 0:
            return None  # the beginning is gone
        if not mark.delta or (made is not None and mark.reach > made.first):
            continue
        contents.apply_parts(increment.parts)
        deltas += 1
        if made is None or mark.n >= made.through:
            found = _at_mark(place, mark, contents, full, deltas)
            if point.kind == "full":
                break
    return found


def _load(reader: Reader, place: Place, made: Manifest, end: int, contents: Contents) -> bool:
    for piece in chunks(reader, place, made, end):
        if piece.changes is None:
            return False
        contents.apply(piece.changes)
    return True


def _beyond(mark: Mark, place: Place, point: Point) -> bool:
    match point.kind:
        case "n":
            return mark.n > point.value
        case "position":
            return mark.positions[place.input] > point.value
        case _:
            return False


def _at_full(place: Place, made: Manifest, full: Full, contents: Contents) -> At:
    position = made.positions[place.input]
    return At(contents, made.first, position, made.positions, made.digest, made.time, made.lineage, full, 0)


def _at_mark(place: Place, mark: Mark, contents: Contents, full: Full | None, deltas: int) -> At:
    position = mark.positions[place.input]
    return At(contents, mark.n, position, mark.positions, mark.digest, mark.time, mark.lineage, full, deltas)


def _checked(found: At, place: Place) -> At:
    computed = digest.to_bytes(found.contents.digest)
    if computed != found.digest:
        raise DigestMismatch(
            f"the state of transaction {found.n} has digest {digest.show(computed)}, its writer recorded "
            f"{digest.show(found.digest)}; `statehold snapshot verify` tells where it begins to differ",
            topic=place.input,
            partition=place.partition,
            position=found.position,
        )
    return found


def _not_kept(place: Place, point: Point, known: list[Full]) -> UsageError:
    where = f"{place.input}[{place.partition}]"
    if point.kind == "full":
        there = ", ".join(f"full:{full.offset}" for full in known if not full.finding) or "none"
        return UsageError(f"{where}: there is no usable full at offset {point.value}; there are: {there}")
    bases = [full.manifest for full in known if full.manifest is not None and not full.finding]
    if not bases:
        return UsageError(f"{where}: {point} cannot be reached: no usable full, and the deltas do not begin at 0")
    oldest = bases[-1]
    return UsageError(
        f"{where}: {point} is not kept any more: the oldest usable full is of position "
        f"{oldest.positions[place.input]} (transaction {oldest.first})"
    )
