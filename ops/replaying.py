"""Replays real input with the service's own handler, and holds it against what was written then.

From an older state, record by record, up to a newer one: after each transaction the keys that its delta wrote must have
the values that the handler gives now, and the outputs must be those that stand on the topics. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import RetentionGap, UsageError
from holdfast.failures import letter_topics
from holdfast.handler import declared
from holdfast.letters import read
from holdfast.ops.deviations import Deviation, Replayed
from holdfast.ops.looking import Looking, point_of
from holdfast.ops.written import Answer, Records, Written
from holdfast.pinned import PinnedMessage
from holdfast.ports import OutOfRange
from holdfast.record import Message
from holdfast.reference import references
from holdfast.service import Service
from holdfast.snapshot import digest
from holdfast.snapshot.chain import Chain, Increment
from holdfast.snapshot.look import fulls, past, typed
from holdfast.snapshot.look.compare import differences
from holdfast.snapshot.look.contents import Contents, decoded
from holdfast.snapshot.look.past import At, Point
from holdfast.snapshot.look.typed import Typed
from holdfast.snapshot.place import Place
from holdfast.snapshot.records import Mark
from holdfast.snapshot.restore import last_mark
from holdfast.table import Changes
from holdfast.worker.delayed import handle
from holdfast.worker.engine import Engine
from holdfast.worker.poison import Poisoned
from holdfast.worker.verdicts import Tried

#: so many of each kind are told of the first transaction that differs
_SHOWN = 5

#: table and key
At_ = tuple[str, Any]


def replay(view: Looking, service: Service, partition: int, since: str | None, until: str | None) -> Replayed:
    """Replay one partition between two points; by default from the full before the newest to the newest one.

    :raises UsageError, StateRefused: a point is not kept. :raises RetentionGap: the input between them is gone.
    :raises RecordError: the handler fails on a record that it had handled.
    """
    place = view.place(partition)
    old, new = _points(view, place, since, until)
    return _Replay(view, service, place, past.at(view.reader, place, old), past.at(view.reader, place, new)).run()


def _points(view: Looking, place: Place, since: str | None, until: str | None) -> tuple[Point, Point]:
    """What was asked for. By default the newest full and the one before it; where there is only one, the beginning and
    that one, or that one and the end when the beginning is gone.
    """
    mark = last_mark(view.reader, place.names.increment, place.partition)
    usable = [Point("full", full.offset) for full in fulls.find(view.reader, place, mark) if not full.finding]
    whole = view.reader.bounds(place.names.increment, place.partition)[0] == 0 and not (mark and mark.adopted)
    states = [*usable, Point("n", 0)] if whole else usable
    if len(states) < 2 or not usable:
        states.insert(0, past.LATEST)
    new = states[0] if until is None else point_of(view, place.partition, until)
    if since is not None:
        return point_of(view, place.partition, since), new
    return states[1] if until is None else states[-1], new


class _Replay:
    def __init__(self, view: Looking, service: Service, place: Place, old: At, new: At) -> None:
        self.view, self.place, self.old, self.new = view, place, old, new
        self.reader = view.another_reader()
        kind = service.handler if isinstance(service.handler, type) else type(service.handler())
        if references(kind):
            raise UsageError(
                f"{kind.__name__} reads reference data, whose topics keep the newest values only: what records saw "
                f"long ago cannot be shown to them again. `holdfast snapshot verify` without --replay proves the state"
            )
        tables, outputs = declared(kind)
        self.typed = Typed(tables)
        self.topics = view.facts_of([output.topic for output in outputs.values()] + letter_topics(kind, place.names))
        self.tried, self.positions = Tried(kind, place.names), old.positions
        self.engine = Engine(service.handler, place.partition, output_partitions=self._partitions, names=place.names)
        self.told = Replayed(place.partition, old.position, new.position)
        #: where the handler wrote each key, since the last delta
        self.wrote: dict[At_, list[int]] = {}
        #: the first transaction after which the state was another, where no delta names the key, and its keys
        self.suspect: tuple[Mark, dict[At_, list[int]]] | None = None

    def run(self) -> Replayed:
        """:raises RetentionGap, RecordError:"""
        try:
            self._load(self.old.contents)
            self.written = Written(self.reader, self.place.partition, self.old.n, self.new.n, self.topics)
            self._replay()
        except OutOfRange as error:
            raise RetentionGap(
                f"the input from {self.old.position} on is needed for the replay and gone; --from names a later point",
                topic=self.place.input,
                partition=self.place.partition,
                position=self.old.position,
            ) from error
        except Poisoned as poison:
            raise poison.error from poison
        finally:
            self.reader.close()
        return self.told

    def _replay(self) -> None:
        if self.engine.letters is not None:
            for topic in self.tried.topics:
                self.tried.add(topic, self._all(topic))
            letters = map(read, self._all(self.place.names.dead))
            self.engine.letters.verdicts = self.tried.verdicts(letters, self.place.names.control)
        given = Records(self.reader, self.place.input, self.place.partition, self.old.position, self.new.position)
        for increment in self._increments():
            self._transaction(increment, given)
            if self.told.differences:
                return
        self._compare_end()

    def _all(self, topic: str) -> Iterator[Message]:
        """What failed was decided once, and is told by the letters and the retry topics."""
        at = self.place.partition
        for batch in self.reader.read(topic, at, *self.reader.bounds(topic, at)):
            yield from batch

    def _partitions(self, topic: str) -> int:
        fact = self.topics[topic]
        return fact.partitions if fact else 0

    def _load(self, contents: Contents) -> None:
        state = self.engine.state
        for name, held in contents.tables.items():
            if name not in state.tables:
                known = ", ".join(sorted(state.tables)) or "none"
                raise UsageError(f"the state holds table {name!r}, this code declares: {known}")
            state.load(Changes(name, list(held), list(held.values())))
        state.loaded()

    def _increments(self) -> Iterator[Increment]:
        chain = Chain(self.place.names.increment, self.place.partition, last=self.old.n, lineage=self.old.lineage)
        base = self.old.base.manifest if self.old.base else None
        for increment in past.increments(self.view.reader, self.place, base.increment if base else -1, chain):
            if increment.mark.n > self.new.n:
                return
            yield increment

    # One transaction

    def _transaction(self, increment: Increment, given: Records) -> None:
        mark, wrote, ordinal = increment.mark, dict[At_, list[int]](), 0
        self.told.transactions += 1
        for message in given.before(mark.positions[self.place.input]):
            ordinal = self._record(partial(self._handle, message), message.offset() or 0, mark.n, ordinal, wrote)
        for pinned in mark.pinned:  # the commands that came beside the input: after the last of its records
            message = PinnedMessage(self.place.names.control, self.place.partition, pinned)
            position = mark.positions[self.place.input]
            ordinal = self._record(partial(self.engine.obey, message), position, mark.n, ordinal, wrote)
        for topic, retried in self.tried.between(self.positions, mark.positions):
            again = partial(handle, self.engine, topic, retried)
            ordinal = self._record(again, retried.message.offset() or 0, mark.n, ordinal, wrote)
        self.positions = mark.positions
        self._compare_count(mark, ordinal)
        for at, offsets in wrote.items():
            self.wrote.setdefault(at, []).extend(offsets)
        if mark.delta:
            self._compare_delta(increment)
        elif self.suspect is None and digest.to_bytes(self.engine.state.digest) != mark.digest:
            self.suspect = mark, wrote

    def _handle(self, message: Message) -> None:
        try:
            self.engine.run([message])
        except Poisoned as poison:
            if not poison.batch:
                raise
            self.engine.rollback()
            self.engine.run([message], one_by_one=True)

    def _record(
        self, handle: Callable[[], object], offset: int, n: int, ordinal: int, wrote: dict[At_, list[int]]
    ) -> int:
        engine = self.engine
        handle()
        frozen = engine.freeze()
        for changes in frozen.changes:
            for key in changes.keys:
                wrote.setdefault((changes.table, key), []).append(offset)
        engine.state.commit(frozen, delta=True)
        engine.effects.take()
        engine.take_commands()
        self.told.records += 1
        for sent in engine.take_outputs():
            self._compare_output(Answer.sent(sent), offset, n, ordinal)
            ordinal += 1
        return ordinal

    # Comparing

    def _compare_output(self, now: Answer, offset: int, n: int, ordinal: int) -> None:
        then = self.written.answers.get((n, ordinal))
        if then is None and (self.written.truncated or self.written.nameless):
            self.told.not_kept += 1
            return
        self.told.outputs += 1
        if now != then:
            was = "it is not there" if then is None else f"{then.topic} has {_answer(then)}"
            self._differs(
                "output",
                offset,
                n,
                f"output {ordinal} of transaction {n}: the handler sends {_answer(now)} to {now.topic}, {was}",
            )

    def _compare_count(self, mark: Mark, sent: int) -> None:
        if mark.outputs != sent:
            self._differs(
                "output",
                mark.start,
                mark.n,
                f"the handler sends {sent} outputs in transaction {mark.n}, {mark.outputs} were sent",
            )

    def _compare_delta(self, increment: Increment) -> None:
        """The keys of a delta are those written since the last one, with their newest values."""
        mark, expected = increment.mark, dict[At_, bytes | None]()
        for part in increment.parts:
            for changes in map(decoded, part.entries):
                expected |= {
                    (changes.table, key): value for key, value in zip(changes.keys, changes.values, strict=True)
                }
        found = [
            (self._offset(self.wrote.get(at), mark.start), at)
            for at in {**self.wrote, **expected}
            if at not in expected or self._value(at) != expected[at]
        ]
        for offset, at in sorted(found, key=lambda each: each[0]):
            was = self._shown(at, expected[at]) if at in expected else "the delta does not have it"
            self._key_differs(offset, mark.n, at, was)
        if not found:
            self._tell_suspect()
        self.wrote, self.suspect = {}, None

    def _tell_suspect(self) -> None:
        """The state was another one for a while; what was written after it has covered the key."""
        if self.suspect is not None:
            mark = self.suspect[0]
            self._differs(
                "state",
                mark.start,
                mark.n,
                f"up to position {mark.positions[self.place.input]} the handler's state is not the one that mark "
                f"{mark.n} recorded; later records have covered the key",
            )

    def _compare_end(self) -> None:
        """What no delta has shown: the states themselves."""
        held = Contents()
        for name, table in self.engine.state.tables.items():
            if table.stored:
                held.apply(Changes(name, list(table.stored), list(table.stored.values())))
        wrong = {(each.table, each.key): each.new for each in differences(held, self.new.contents)}
        if not wrong:
            self._tell_suspect()
            return
        mark, suspects = self.suspect or (None, self.wrote)
        n = mark.n if mark else self.new.n
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
        since = min((each.offset for each in self.told.differences if each.what == "output"), default=written[-1])
        return next((offset for offset in written if offset >= since), written[-1])

    def _key_differs(self, offset: int, n: int, at: At_, was: str) -> None:
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

    def _value(self, at: At_) -> bytes | None:
        table, key = at
        return self.engine.state.tables[table].stored.get(key) if table in self.engine.state.tables else None

    def _shown(self, at: At_, stored: bytes | None) -> str:
        return "nothing" if stored is None else msgspec.json.encode(self.typed.value(at[0], stored)).decode()

    def _differs(self, what: str, offset: int, n: int, text: str, table: str = "", key: Any = None) -> None:
        if sum(each.what == what for each in self.told.differences) < _SHOWN:
            where = f"{self.place.input}[{self.place.partition}]@{offset}"
            self.told.differences.append(Deviation(what, offset, n, f"{where}: {text}", table, key))


def _answer(answer: Answer) -> str:
    return msgspec.json.encode(typed.message(None, answer.value)).decode()
