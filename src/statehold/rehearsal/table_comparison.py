"""Compares the new code's tables with the live service's deltas.

Only the keys that differ are held: every other key has, in the live state, the value that the new code's table has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from statehold.rehearsal.fields import IgnoredFields, changed
from statehold.rehearsal.report import How
from statehold.snapshot.format.records import EntryDecoder, Part
from statehold.snapshot.inspect import typed
from statehold.state.partition_table import Changes
from statehold.state.state import State

#: table and key
Key = tuple[str, Any]
Values = dict[Key, bytes | None]

#: most keys that are held only to count those that differed for a time
_PASSED: Final = 100_000


class KeyDifference(NamedTuple):
    """How the value of one key differs, as the new code reads both."""

    how: How
    fields: list[str]
    live: Any
    new: Any


class Judged(NamedTuple):
    """The result of a delta: keys that differ now, with their live values, and touched keys that do not."""

    differ: Values
    equal: list[Key]
    #: keys that differ now and did not before
    born: list[Key]


class TableComparison:
    """Used for one partition. `judge` changes nothing, so a transaction can be handled again after it."""

    def __init__(self, state: State, ignored: IgnoredFields) -> None:
        self._state, self._ignored = state, ignored
        self._decoder = EntryDecoder(state.key_types)
        #: keys that differ, with their live values
        self.differ: Values = {}
        #: keys written since the last delta, with their values before
        self._before: Values = {}
        #: keys that differed and do not any more
        self.passed: dict[Key, None] = {}
        #: by table: the number of such keys that were forgotten, because there were too many
        self._passed_before: Counter[str] = Counter()
        #: a value has other bytes and the same content, so that digests cannot be compared
        self.other_bytes = False
        #: keys that were compared, by table
        self.compared: dict[str, int] = {}

    def delta(self, parts: Sequence[Part]) -> Values:
        """Decode a delta. :raises UnknownTable, OtherKeys: as a takeover. :raises BadFrame: it is damaged."""
        found: Values = {}
        for part in parts:
            for raw in part.entries:
                changes = self._decoder.decode(raw)
                found.update(_values(changes))
        return found

    def plainly_equal(self, frozen: Sequence[Changes], delta: Values) -> bool:
        """Return whether this transaction's writes are those of the delta, byte by byte, and nothing differed."""
        if self.differ or self._before or sum(len(changes.keys) for changes in frozen) != len(delta):
            return False
        for changes in frozen:
            table = changes.table
            for key, value in zip(changes.keys, changes.values, strict=True):
                if delta.get((table, key), b"") != value:
                    return False
        return True

    def count(self, frozen: Sequence[Changes]) -> None:
        """Count the keys of writes that are plainly equal."""
        for changes in frozen:
            self.compared[changes.table] = self.compared.get(changes.table, 0) + len(changes.keys)

    def note(self, frozen: Iterable[Changes]) -> None:
        """Note writes before they become part of the state."""
        for changes in frozen:
            stored = self._state.tables[changes.table].stored
            for key in changes.keys:
                self._before.setdefault((changes.table, key), stored.get(key))

    def judge(self, frozen: Sequence[Changes], delta: Values) -> Judged:
        """Compare all keys written since the last delta. `frozen`: writes that are not part of the state yet."""
        fresh = {key: value for changes in frozen for key, value in _values(changes).items()}
        judged = Judged({}, [], [])
        for key in {**self._before, **fresh, **delta}:
            new = fresh[key] if key in fresh else self._stored(key)
            live = self._live(key, delta)
            if new != live and self.difference(key, live, new) is not None:
                judged.differ[key] = live
                if key not in self.differ:
                    judged.born.append(key)
            else:
                judged.equal.append(key)
        return judged

    def take(self, judged: Judged) -> None:
        """Make the result of a delta the present one; its transaction is part of the state."""
        for key in judged.equal:
            if self.differ.pop(key, self) is not self:
                self.passed[key] = None
        if len(self.passed) > _PASSED:
            self._passed_before.update(table for table, _ in self.passed.keys() - self.differ.keys())
            self.passed.clear()
        self.differ |= judged.differ
        self._before = {}
        for table, _ in (*judged.equal, *judged.differ):
            self.compared[table] = self.compared.get(table, 0) + 1

    def settle(self) -> None:
        """Forget the values before the last delta: the digests are equal, so the service has the same state."""
        self._before = {}

    def passing(self) -> dict[str, int]:
        """Return by table the number of keys that differed for a time and do not any more."""
        found = Counter(table for table, _ in self.passed.keys() - self.differ.keys())
        return dict(found + self._passed_before)

    @property
    def open(self) -> bool:
        """Whether keys were written since the last delta."""
        return bool(self._before)

    def difference(self, key: Key, live: bytes | None, new: bytes | None) -> KeyDifference | None:
        """Return how the values differ; None if the new code reads both as the same, or in ignored fields only."""
        table = self._state.tables[key[0]]
        if live is None or new is None:
            how: How = "added" if live is None else "missing"
            return KeyDifference(how, [], self.shown(key[0], live), self.shown(key[0], new))
        if live == new:
            return None
        try:
            one, other = table.decode(live), table.decode(new)
        except Exception:  # noqa: BLE001  a decoder may raise anything
            one, other = live, new
        if one == other and type(one) is type(other):
            self.other_bytes = True
            return None
        shown = self.shown(key[0], live), self.shown(key[0], new)
        found = changed(*shown)
        fields = self._ignored.left(key[0], found)
        self.other_bytes = self.other_bytes or not fields
        return KeyDifference("changed", fields, *shown) if fields else None

    def _stored(self, key: Key) -> bytes | None:
        return self._state.tables[key[0]].stored.get(key[1])

    def _live(self, key: Key, delta: Mapping[Key, bytes | None]) -> bytes | None:
        if key in delta:
            return delta[key]
        if key in self.differ:
            return self.differ[key]
        return self._before[key] if key in self._before else self._stored(key)

    def shown(self, table: str, stored: bytes | None) -> Any:
        """Return a stored value as JSON, or its text if the new code cannot read it."""
        if stored is None:
            return None
        try:
            return typed.builtins(self._state.tables[table].decode(stored))
        except Exception:  # noqa: BLE001  a decoder may raise anything
            return typed.text(stored)


def _values(changes: Changes) -> Values:
    table = changes.table
    return {(table, key): value for key, value in zip(changes.keys, changes.values, strict=True)}
