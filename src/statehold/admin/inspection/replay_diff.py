"""Compares what a handler does now with what it did, transaction by transaction."""

from __future__ import annotations

from typing import Any

import msgspec

from statehold.admin.inspection.output_records import OutputRecord, WrittenOutputs
from statehold.api.record import MergedMessage, Message
from statehold.snapshot.format.chain_check import Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import typed
from statehold.snapshot.inspect.compare import differences
from statehold.snapshot.inspect.contents import Contents, decoded
from statehold.snapshot.inspect.past import PastState
from statehold.snapshot.inspect.typed import Typed
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.state.state import State

#: Number of differences of each kind that are reported of the first transaction that differs.
_SHOWN = 5

#: table and key
Key = tuple[str, Any]
#: at which offsets the handler wrote each
Wrote = dict[Key, list[int]]


class Deviation(msgspec.Struct, frozen=True):
    """One difference: at this record of the input, in this transaction.

    With several inputs `offset` is the record's place in the partition's order; the text names its input and offset.
    """

    #: key, output or state
    what: str
    offset: int
    n: int
    text: str
    table: str = ""
    key: Any = None


class Replayed(msgspec.Struct):
    """Positions of the input, and what was compared; `differences` are those of the first transaction that differs."""

    partition: int
    start: int
    end: int
    records: int = 0
    transactions: int = 0
    outputs: int = 0
    #: outputs that cannot be compared: retention has taken them, or they do not say where they come from
    not_kept: int = 0
    differences: list[Deviation] = []


class Comparison:
    """Compares each transaction of the replay with the recorded one, and collects the differences in `report`.

    `state` is the handler's own, as it goes; `new` the state that it has to end at.
    """

    def __init__(
        self, place: Place, types: Typed, state: State, written: WrittenOutputs, new: PastState, report: Replayed
    ) -> None:
        self.place, self.typed, self.state, self.written = place, types, state, written
        self.new, self.report = new, report
        #: where the handler wrote each key, since the last delta
        self.wrote: Wrote = {}
        #: the first transaction after which the state was another, where no delta names the key, and its keys
        self.suspect: tuple[CommitRecord, Wrote] | None = None
        #: with several inputs the coordinates of the records since the last delta, by their place in the order
        self.coordinates: dict[int, str] = {}

    def record(self, message: Message) -> None:
        """Note a record before the handler sees it."""
        if isinstance(message, MergedMessage):
            self.coordinates[message.at] = f"{message.topic()}[{message.partition()}]@{message.offset()}"

    def transaction(self, increment: Increment, wrote: Wrote, sent: int) -> None:
        """The handler has gone through it: `wrote` says where each key was written, `sent` counts its outputs."""
        commit_record = increment.commit_record
        self._count(commit_record, sent)
        for at, offsets in wrote.items():
            self.wrote.setdefault(at, []).extend(offsets)
        if commit_record.delta:
            self._delta(increment)
        elif self.suspect is None and digest.to_bytes(self.state.digest) != commit_record.digest:
            self.suspect = commit_record, wrote

    def output(self, now: OutputRecord, offset: int, n: int, ordinal: int) -> None:
        then = self.written.answers.get((n, ordinal))
        if then is None and (self.written.truncated or self.written.nameless):
            self.report.not_kept += 1
            return
        self.report.outputs += 1
        if now != then:
            was = "it is not there" if then is None else f"{then.topic} has {_answer(then)}"
            self._differs(
                "output",
                offset,
                n,
                f"output {ordinal} of transaction {n}: the handler sends {_answer(now)} to {now.topic}, {was}",
            )

    def _count(self, commit_record: CommitRecord, sent: int) -> None:
        if commit_record.outputs != sent:
            self._differs(
                "output",
                commit_record.start,
                commit_record.n,
                f"the handler sends {sent} outputs in transaction {commit_record.n}, {commit_record.outputs} were sent",
            )

    def _delta(self, increment: Increment) -> None:
        """The keys of a delta are those written since the last one, with their newest values."""
        commit_record, expected = increment.commit_record, dict[Key, bytes | None]()
        for part in increment.parts:
            for changes in map(decoded, part.entries):
                expected |= {
                    (changes.table, key): value for key, value in zip(changes.keys, changes.values, strict=True)
                }
        keys = {**self.wrote, **expected}
        wrong = [at for at in keys if self._value(at) != expected.get(at)]
        if not wrong and digest.to_bytes(self.state.digest) != commit_record.digest:
            wrong = [at for at in keys if at not in expected]  # gone here; most came and left since the last delta
        found = [(self._offset(self.wrote.get(at), commit_record.start), at) for at in wrong]
        for offset, at in sorted(found, key=lambda each: each[0]):
            was = self._shown(at, expected[at]) if at in expected else "the delta does not have it"
            self._key_differs(offset, commit_record.n, at, was)
        if not found:
            self._report_suspect()
        self.wrote, self.suspect = {}, None
        self.coordinates.clear()

    def _report_suspect(self) -> None:
        """The state was another one for a while; what was written after it has covered the key."""
        if self.suspect is not None:
            commit_record = self.suspect[0]
            self._differs(
                "state",
                commit_record.start,
                commit_record.n,
                f"up to position {commit_record.position(self.place.input)} the handler's state is not the one that "
                f"mark {commit_record.n} recorded; later records have covered the key",
            )

    def end(self) -> None:
        """What no delta has shown: the states themselves."""
        held = Contents()
        for name, table in self.state.tables.items():
            if table.stored:
                held.apply(Changes(name, list(table.stored), list(table.stored.values())))
        wrong = {(each.table, each.key): each.new for each in differences(held, self.new.contents)}
        if not wrong:
            self._report_suspect()
            return
        commit_record, suspects = self.suspect or (None, self.wrote)
        n = commit_record.n if commit_record else self.new.n
        first = [at for at in suspects if at in wrong] or list(wrong)
        for at in sorted(first, key=lambda at: self._offset(suspects.get(at), self.new.position)):
            offset = self._offset(suspects.get(at), self.new.position - 1)
            self._key_differs(offset, n, at, self._shown(at, wrong[at]))

    def _offset(self, written: list[int] | None, otherwise: int) -> int:
        """Which of the records that wrote a key to name. A delta holds the last value alone, so it is the last of them,
        or the first at or after an output that differed.
        """
        if not written:
            return otherwise
        since = min((each.offset for each in self.report.differences if each.what == "output"), default=written[-1])
        return next((offset for offset in written if offset >= since), written[-1])

    def _key_differs(self, offset: int, n: int, at: Key, was: str) -> None:
        table, key = at
        now = self._shown(at, self._value(at))
        shown = typed.key(key)
        self._differs(
            "key",
            offset,
            n,
            f"table {table!r}, key {shown!r}: the handler leaves {now}, transaction {n} left {was}",
            table,
            shown,
        )

    def _value(self, at: Key) -> bytes | None:
        table, key = at
        return self.state.tables[table].stored.get(key) if table in self.state.tables else None

    def _shown(self, at: Key, stored: bytes | None) -> str:
        return "nothing" if stored is None else msgspec.json.encode(self.typed.value(at[0], stored)).decode()

    def _differs(self, what: str, offset: int, n: int, text: str, table: str = "", key: Any = None) -> None:
        if sum(each.what == what for each in self.report.differences) < _SHOWN:
            where = self.coordinates.get(offset) or f"{self.place.input}[{self.place.partition}]@{offset}"
            self.report.differences.append(Deviation(what, offset, n, f"{where}: {text}", table, key))


def _answer(answer: OutputRecord) -> str:
    return msgspec.json.encode(typed.message(None, answer.value)).decode()
