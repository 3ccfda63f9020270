"""Rebuilds the state at a point in time, rounded down to a commit record with a delta (rule M1).

Needs no code of the service, because full snapshots and deltas hold absolute values.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from statehold.errors import DigestMismatch, UsageError
from statehold.ports import Reader
from statehold.snapshot import full_listing
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Manifest
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect.contents import Contents, chunks
from statehold.snapshot.restore.discovery import require_commit_record
from statehold.state import digest

_END: Final = 1 << 62


class Point(NamedTuple):
    """A point of a partition: an input position, a transaction, a full snapshot by its offset, or the end."""

    kind: Literal["position", "n", "full", "latest"]
    value: int = _END
    #: written by a user, so that it must not be beyond the end
    named: bool = False

    def __str__(self) -> str:
        return self.kind if self.kind == "latest" else f"{self.kind} {self.value}"


LATEST: Final = Point("latest")


class PastState(msgspec.Struct, frozen=True):
    """The state at a point. `n` and `position` are the actual ones, which may be lower than the requested ones."""

    contents: Contents
    n: int
    position: int
    #: Next offsets of all topics that the partition reads.
    positions: Mapping[str, int]
    digest: bytes
    #: Milliseconds since 1970, by the clock of the writer of the commit record or full snapshot.
    time: int
    lineage: str
    #: The full snapshot it was built from (None: the beginning), and the number of deltas.
    base: Full | None
    deltas: int
    #: The inputs from which it was built, in their order.
    inputs: tuple[str, ...]
    #: Versions and types of its tables, as in the commit record.
    schemas: Mapping[str, int]
    types: Mapping[str, str]

    def offsets(self, inputs: Sequence[str]) -> dict[str, int]:
        """Return the next offset of each input. :raises UsageError: the state had other inputs then."""
        if self.inputs != tuple(inputs):
            raise UsageError(
                f"transaction {self.n}: the state had the inputs {', '.join(self.inputs)} then, not "
                f"{', '.join(inputs)}. Next: choose a later point, or use a backup that was made before the change"
            )
        return {topic: self.positions[topic] for topic in inputs}


def parse(text: str) -> Point:
    """Parse `latest`, `n:17`, `full:1234` or an input position.

    :raises UsageError: the text is not one of these.
    """
    kind, colon, number = text.rpartition(":")
    if text == "latest":
        return LATEST
    if number.isdecimal():
        if not colon:
            return Point("position", int(number), named=True)
        if kind == "n":
            return Point("n", int(number), named=True)
        if kind == "full":
            return Point("full", int(number))
    raise UsageError(
        f"{text!r} is not a point: use latest, an input position such as 1200, a transaction such as n:17, or a full "
        f"snapshot by its offset such as full:1234"
    )


def increments(
    reader: Reader, place: Place, start: int = -1, chain: Chain | None = None
) -> Generator[Increment, None, None]:
    """Yield complete transactions from offset `start`, or from the first stored header, across state generations.

    :raises TornTransaction, DamagedIncrement: the chain is broken. :raises frame.BadFrame: a record is damaged.
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
                continue  # remainder of a transaction whose header was truncated
            beheaded = False
            increment = chain.feed(offset, record)
            if increment is not None:
                yield increment
    chain.finish(end)


def at(reader: Reader, place: Place, point: Point) -> PastState:
    """Return the state at a point, after comparing its digest with the recorded one.

    :raises UsageError: the point is older than the stored snapshots, or names no full snapshot; the text lists those.
    :raises UsageError: a user wrote a point beyond the end.
    :raises DigestMismatch, TornTransaction, DamagedIncrement, NoCommitRecord: as a restore.
    """
    commit_record = require_commit_record(reader, place.names.changelog, place.partition, "read the state")
    place.check(commit_record)
    end = {"position": commit_record.position(place.input), "n": commit_record.n}.get(point.kind, _END)
    if point.named and point.value > end:
        raise UsageError(
            f"{place.input}[{place.partition}]: {point} is beyond the end: the last commit record has position "
            f"{commit_record.position(place.input)}, transaction {commit_record.n}. Next: use latest, or --partitions"
        )
    mismatch: DigestMismatch | None = None
    known: list[Full] = []
    # The last commit record refers to no full snapshot of an earlier state generation; finding those takes longer.
    for everything in (False, True) if point.kind != "full" else (True,):
        before = {full.offset for full in known}
        known = full_listing.find(reader, place, commit_record, everything=everything)
        for full in candidates([each for each in known if each.offset not in before], place, point):
            try:
                found = _from(reader, place, full, point)
            except DigestMismatch as error:
                mismatch = mismatch or error
                continue
            if found is not None:
                return found
    raise mismatch or _not_kept(place, point, known)


def candidates(known: list[Full], place: Place, point: Point) -> Iterator[Full | None]:
    """Yield the full snapshots from which the point may be reached, best first; None is the beginning."""
    for full in known:
        made = full.manifest
        if made is None or "belongs to" in full.finding:
            continue
        position = made.position(place.input)
        fits = {
            "latest": True,
            "n": made.through <= point.value,
            "position": _is_counted(made, place, point) and 0 <= position <= point.value,
            "full": full.offset == point.value,
        }
        if fits[point.kind]:
            yield full
    if point.kind != "full":
        yield None


def _from(reader: Reader, place: Place, full: Full | None, point: Point) -> PastState | None:
    """Return the state at the point, built from this full snapshot; None if it cannot be reached."""
    contents, made = Contents(), full.manifest if full else None
    found: PastState | None = None
    if full is not None and made is not None:
        if not load_full(reader, place, made, full.offset, contents):
            return None
        if made.first == made.through:
            found = _at_full(place, made, full, contents)
    if full is not None and made is not None and full.ends:
        exact = {"full": full.offset, "n": made.first}.get(point.kind)
        found = found if point.value == exact else None
    elif found is None or point.kind != "full":
        found = _onwards(reader, place, full, point, contents, found)
    return None if found is None else _checked(found, place)


def _onwards(
    reader: Reader, place: Place, full: Full | None, point: Point, contents: Contents, found: PastState | None
) -> PastState | None:
    """Apply the deltas after the base up to the point. Return the state at their last commit record."""
    made = full.manifest if full else None
    chain = Chain(place.names.changelog, place.partition, crossing=True)
    if made is not None:
        chain.last, chain.lineage = made.first, made.lineage
    deltas = 0
    for increment in increments(reader, place, made.increment if made else -1, chain):
        commit_record, replacement = increment.commit_record, increment.replacement
        if _beyond(commit_record, place, point):
            break
        if replacement is not None and replacement.base is not None:
            # The state at a later point is built from the replacement's full snapshot.
            return found if point.kind == "full" else None
        if replacement is not None:
            contents, found, full, made, deltas = Contents(), None, None, None, 0
        elif made is None and chain.first == commit_record.n and commit_record.n > 0:
            return None  # the first transactions were truncated
        if not commit_record.delta or (made is not None and commit_record.reach > made.first):
            continue
        contents.apply_parts(increment.parts)
        deltas += 1
        if _is_counted(commit_record, place, point) and (made is None or commit_record.n >= made.through):
            found = _at_commit_record(place, commit_record, contents, full, deltas)
            if point.kind == "full":
                break
    return found


def load_full(reader: Reader, place: Place, made: Manifest, end: int, contents: Contents) -> bool:
    """Load the full snapshot whose manifest is at offset `end`; return False if a chunk is missing or damaged."""
    for piece in chunks(reader, place, made, end):
        if piece.changes is None:
            return False
        contents.apply(piece.changes)
    return True


def _beyond(commit_record: CommitRecord, place: Place, point: Point) -> bool:
    match point.kind:
        case "n":
            return commit_record.n > point.value
        case "position":
            return _is_counted(commit_record, place, point) and commit_record.position(place.input) > point.value
        case _:
            return False


def _is_counted(made: CommitRecord | Manifest, place: Place, point: Point) -> bool:
    """Return whether the point can name this state: a position counts the present inputs, no former ones."""
    return point.kind != "position" or (made.inputs or (place.input,)) == place.names.inputs


def _at_full(place: Place, made: Manifest, full: Full, contents: Contents) -> PastState:
    position = made.position(place.input)
    return PastState(
        contents,
        made.first,
        position,
        made.positions,
        made.digest,
        made.time,
        made.lineage,
        full,
        0,
        made.inputs or (place.input,),
        made.schemas,
        made.types,
    )


def _at_commit_record(
    place: Place, commit_record: CommitRecord, contents: Contents, full: Full | None, deltas: int
) -> PastState:
    position = commit_record.position(place.input)
    return PastState(
        contents,
        commit_record.n,
        position,
        commit_record.positions,
        commit_record.digest,
        commit_record.time,
        commit_record.lineage,
        full,
        deltas,
        commit_record.inputs or (place.input,),
        commit_record.schemas,
        commit_record.types,
    )


def _checked(found: PastState, place: Place) -> PastState:
    computed = digest.to_bytes(found.contents.digest)
    if computed != found.digest:
        raise DigestMismatch(
            f"rebuild the state of transaction {found.n}: its digest is {digest.show(computed)}, the writer recorded "
            f"{digest.show(found.digest)}. Next: run `statehold snapshot verify`, which finds the first difference",
            topic=place.input,
            partition=place.partition,
            position=found.position,
        )
    return found


def _not_kept(place: Place, point: Point, known: list[Full]) -> UsageError:
    where = f"{place.input}[{place.partition}]"
    if point.kind == "full":
        there = ", ".join(f"full:{full.offset}" for full in known if not full.finding) or "none"
        return UsageError(f"{where}: there is no usable full snapshot at offset {point.value}; there are: {there}")
    bases = [full.manifest for full in known if full.manifest is not None and not full.finding]
    if not bases:
        return UsageError(
            f"{where}: {point} cannot be reached: no full snapshot is usable, and the deltas do not begin at 0"
        )
    counted = [made for made in bases if _is_counted(made, place, point)]
    inputs = f"a position counts the records of {', '.join(place.names.inputs)}"
    if not counted:
        return UsageError(
            f"{where}: {point} cannot be reached: {inputs}, and the stored states had other inputs. Next: name the "
            f"state by its transaction, such as n:{bases[-1].first}"
        )
    oldest = counted[-1]
    text = (
        f"{where}: {point} is not stored any more: the oldest usable full snapshot has position "
        f"{oldest.position(place.input)} (transaction {oldest.first})"
    )
    if any(full.manifest is not None and not _is_counted(full.manifest, place, point) for full in known):
        text += f"; {inputs}, and earlier states had others. Next: name such a state by its transaction"
    return UsageError(text)
