"""Compares two states, and lists the history of one key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from statehold.ports import OutOfRange, Reader
from statehold.snapshot import full_listing
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest, Part
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.contents import Contents, chunks, decoded, hashable
from statehold.snapshot.restore.discovery import last_commit_record, manifest_at
from statehold.state.partition_table import Changes


class Difference(msgspec.Struct, frozen=True):
    """The difference of one key; None means that the key is absent."""

    table: str
    key: Any
    old: bytes | None
    new: bytes | None

    @property
    def what(self) -> str:
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


def differences(old: Contents, new: Contents) -> Iterator[Difference]:
    """Yield the differences by table: first the keys of the new state in its order, then the removed ones."""
    for table in dict.fromkeys((*new.tables, *old.tables)):
        before, after = old.tables.get(table, {}), new.tables.get(table, {})
        for key, value in after.items():
            if before.get(key) != value:
                yield Difference(table, key, before.get(key), value)
        yield from (Difference(table, key, value, None) for key, value in before.items() if key not in after)


class Change(msgspec.Struct, frozen=True):
    """One delta that wrote a key. `old_known` is False if the previous value is not stored."""

    table: str
    key: Any
    n: int
    start: int
    position: int
    time: int
    writer: str
    old: bytes | None
    old_known: bool
    new: bytes | None


def history(reader: Reader, place: Place, keys: list[Any], table: str | None = None) -> Iterator[Change]:
    """Yield every stored delta that wrote one of `keys`, oldest first. `keys` are the readings of the typed text.

    :raises TornTransaction, DamagedIncrement: the chain is broken.
    """
    known: dict[tuple[str, Any], bytes | None] = {}
    base = _base(reader, place, keys, table)
    initial = False
    for increment in past.increments(reader, place):
        commit_record = increment.commit_record
        initial |= commit_record.n == 0
        if increment.replacement is not None:  # a tool replaced the state, so earlier values do not apply
            adopted = increment.replacement.base
            known, base, initial = {}, None, adopted is None
            if adopted is not None:
                base = _adopted(reader, place, adopted.offset, keys, table)
        if base is not None and commit_record.n > base[0]:
            known |= {at: value for at, value in base[1].items() if at not in known}
        for name, key, value in _written(increment.parts, keys, table):
            at = name, key
            yield Change(
                name,
                key,
                commit_record.n,
                commit_record.start,
                commit_record.position(place.input),
                commit_record.time,
                commit_record.writer.instance,
                known.get(at),
                at in known or initial or (base is not None and commit_record.n > base[0]),
                value,
            )
            known[at] = value


def _written(parts: tuple[Part, ...], keys: list[Any], table: str | None) -> Iterator[tuple[str, Any, bytes | None]]:
    for part in parts:
        for changes in map(decoded, part.entries):
            yield from ((changes.table, key, value) for key, value in _wanted(changes, keys, table))


#: A transaction, and the values of the keys in its full snapshot.
_Held = tuple[int, dict[tuple[str, Any], bytes | None]]


def _base(reader: Reader, place: Place, keys: list[Any], table: str | None) -> _Held | None:
    """Return the keys' values in the oldest full snapshot of a single transaction: the old values of later deltas.

    A fuzzy full snapshot is skipped, because it may hold a value that was written after its first transaction.
    """
    commit_record = last_commit_record(reader, place.names.changelog, place.partition)
    for full in reversed(full_listing.find(reader, place, commit_record)):
        made = full.manifest
        if made is not None and not full.finding and made.first == made.through:
            return _held(reader, place, made, full.offset, keys, table)
    return None


def _adopted(reader: Reader, place: Place, offset: int, keys: list[Any], table: str | None) -> _Held | None:
    found = manifest_at(reader, place, offset)
    return None if found is None else _held(reader, place, found.manifest, offset, keys, table)


def _held(
    reader: Reader, place: Place, made: Manifest, offset: int, keys: list[Any], table: str | None
) -> _Held | None:
    found: dict[tuple[str, Any], bytes | None] = {}
    try:
        for piece in chunks(reader, place, made, offset):
            if piece.changes is None:
                return None
            found |= {(piece.changes.table, key): value for key, value in _wanted(piece.changes, keys, table)}
    except OutOfRange:
        return None  # truncated: the old value is not stored any more
    return made.first, found


def _wanted(changes: Changes, keys: list[Any], table: str | None) -> Iterator[tuple[Any, bytes | None]]:
    if table not in (None, changes.table):
        return
    for key, value in zip(changes.keys, changes.values, strict=True):
        if any(type(key) is type(each) and key == each for each in keys):
            yield key, value


def readings(text: str) -> list[Any]:
    """Return the keys that a typed text may mean: the text, its bytes, or JSON of a number, a tuple or a text."""
    found: list[Any] = [text, text.encode()]
    try:
        parsed = hashable(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return found
    return [*found, parsed] if isinstance(parsed, (int, str, tuple)) and parsed not in found else found
