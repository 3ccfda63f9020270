"""What differs between two states, and what became of one key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.ports import Reader
from holdfast.snapshot.look import fulls, past
from holdfast.snapshot.look.contents import Contents, chunks, decoded, hashable
from holdfast.snapshot.place import Place
from holdfast.snapshot.records import Part
from holdfast.snapshot.restore import last_mark


class Difference(msgspec.Struct, frozen=True):
    """One key; None stands for: not there."""

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
    """Table by table; keys of the new state in its order, then those that are gone."""
    for table in dict.fromkeys((*new.tables, *old.tables)):
        before, after = old.tables.get(table, {}), new.tables.get(table, {})
        for key, value in after.items():
            if before.get(key) != value:
                yield Difference(table, key, before.get(key), value)
        yield from (Difference(table, key, value, None) for key, value in before.items() if key not in after)


class Change(msgspec.Struct, frozen=True):
    """A delta that wrote a key. `old_known` is False where what was before it is not kept."""

    table: str
    n: int
    start: int
    position: int
    time: int
    writer: str
    old: bytes | None
    old_known: bool
    new: bytes | None


def history(reader: Reader, place: Place, keys: list[Any], table: str | None = None) -> Iterator[Change]:
    """Every kept delta that wrote one of `keys` (the readings of what a user typed), oldest first.

    :raises TornTransaction, DamagedIncrement: the chain is broken there.
    """
    known: dict[tuple[str, Any], bytes | None] = {}
    base = _base(reader, place, keys, table)
    genesis = False
    for increment in past.increments(reader, place):
        mark = increment.mark
        genesis |= mark.n == 0
        if increment.adopt is not None:  # a tool wrote another state: what was before says nothing of it
            known, base, genesis = {}, None, increment.adopt.base is None
        if base is not None and mark.n > base[0]:
            known |= {at: value for at, value in base[1].items() if at not in known}
        for name, key, value in _written(increment.parts, keys, table):
            at = name, key
            yield Change(
                name,
                mark.n,
                mark.start,
                mark.positions.get(place.input, -1),
                mark.time,
                mark.writer.instance,
                known.get(at),
                at in known or genesis or (base is not None and mark.n > base[0]),
                value,
            )
            known[at] = value


def _written(parts: tuple[Part, ...], keys: list[Any], table: str | None) -> Iterator[tuple[str, Any, bytes | None]]:
    for part in parts:
        for raw in part.entries:
            changes = decoded(raw)
            if table not in (None, changes.table):
                continue
            for key, value in zip(changes.keys, changes.values, strict=True):
                if any(type(key) is type(wanted) and key == wanted for wanted in keys):
                    yield changes.table, key, value


def _base(
    reader: Reader, place: Place, keys: list[Any], table: str | None
) -> tuple[int, dict[tuple[str, Any], bytes | None]] | None:
    """What the oldest full of a single transaction says of the keys, and that transaction: the old value of what comes
    after it. A fuzzy one may hold a value that was written after it began.
    """
    mark = last_mark(reader, place.names.increment, place.partition)
    for full in reversed(fulls.find(reader, place, mark)):
        made = full.manifest
        if made is None or full.finding or made.first != made.through:
            continue
        found: dict[tuple[str, Any], bytes | None] = {}
        for piece in chunks(reader, place, made, full.offset):
            if piece.changes is None:
                return None
            held = zip(piece.changes.keys, piece.changes.values, strict=True)
            found |= {
                (piece.changes.table, key): value
                for key, value in held
                if table in (None, piece.changes.table)
                and any(type(key) is type(wanted) and key == wanted for wanted in keys)
            }
        return made.first, found
    return None


def readings(text: str) -> list[Any]:
    """What a key that was typed may mean: the text, its bytes, a number, a tuple or text in JSON."""
    found: list[Any] = [text, text.encode()]
    try:
        parsed = hashable(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return found
    return [*found, parsed] if isinstance(parsed, (int, str, tuple)) and parsed not in found else found
