"""The transaction of one partition: begun lazily, ended by exactly one of `commit` and `abort` (rules T1-T4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from statehold.errors import MessageRefused
from statehold.messages.command import FINISH_UPGRADE, PAUSE, TAKE, Command
from statehold.messages.pinned_command import Pinned
from statehold.output import ORIGIN, ORIGIN_HEADER, Sent
from statehold.ports import Noted, Transactions
from statehold.snapshot.format import digest, frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Effect, FullRef, Header, Mark, Part
from statehold.snapshot.full import split
from statehold.snapshot.state import Frozen
from statehold.table import Changes


class Closing(NamedTuple):
    """What the last mark of a transaction says."""

    position: int
    frozen: Frozen
    #: None: this mark carries no delta
    delta: tuple[Changes, ...] | None
    fulls: tuple[FullRef, ...]
    effects: tuple[Effect, ...]
    commands: tuple[Command, ...] = ()
    #: see `Mark.reach`; None: as in the mark before
    reach: int | None = None
    #: next offset of the control topic; 0: nothing was ever read there
    control: int = 0
    #: users' commands of the control topic, handled last
    pinned: tuple[Pinned, ...] = ()
    #: the command that has the partition stand still or go on from here; None: it stays as it was
    switch: Command | None = None
    #: see `Mark.pace`
    pace: int = 0
    #: next offset of each retry topic
    retries: Mapping[str, int] = MappingProxyType({})
    #: see `Mark.reference`
    reference: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class Committer:
    """Used by the partition's thread, `commit` beside it. After any exception but MessageRefused from `send` or `pack`:
    abort or drop it.
    """

    def __init__(
        self,
        producer: Transactions,
        place: Place,
        mark: Mark,
        *,
        origin: bool,
        part_bytes: int,
        wall: Callable[[], float],
    ) -> None:
        self.producer = producer
        producer.lineage = mark.lineage
        #: the last mark known to be committed
        self.mark = mark
        #: the mark whose commit was tried last: with `mark`, what an unknown outcome is compared with (rule T4)
        self.expected = mark
        self.increment_bytes = 0
        self._place, self._origin, self._part_bytes, self._wall = place, origin, part_bytes, wall
        self._outputs = 0
        self.is_open = False

    @property
    def position(self) -> int:
        return self.mark.positions[self._place.input]

    def begin(self) -> None:
        """The header comes first, so that a tear can be seen (rule T1)."""
        if self.is_open:
            return
        self.producer.begin()
        self.is_open, self._outputs, self.increment_bytes = True, 0, 0
        attempt, lineage = self.producer.attempt, self.mark.lineage
        self._increment(Header(self.mark.n + 1, attempt, lineage, self.position, self._place.writer))

    def send(self, outputs: Sequence[Sent]) -> None:
        self.begin()
        if not outputs:
            return
        if self._origin:
            outputs = _with_origin(outputs, self._place.partition, self.mark.n + 1, self._outputs)
        self.producer.send(outputs)
        self._outputs += len(outputs)

    def pack(self, closing: Closing) -> list[bytes]:
        """The delta's parts as they will be sent.

        :raises MessageRefused: a single value does not fit a message.
        """
        n, attempt = self.mark.n + 1, self.producer.attempt
        entries = _parts(closing.delta or (), self._part_bytes)
        return [records.pack(Part(n, attempt, k, piece), self.mark.format) for k, piece in enumerate(entries)]

    def commit(
        self, closing: Closing, parts: Sequence[bytes], membership: Any, before: Callable[[], None] | None = None
    ) -> None:
        """Offsets, delta parts, mark, `before`, commit: the mark joins last, so that it is refused after any tear.

        Nothing else of this may be called meanwhile; on success call `committed` next.
        """
        self.begin()
        if self.mark.format >= frame.PINNING:  # an older release would take the number for a part of the lineage
            self.producer.lineage = Noted(self.mark.lineage, self.mark.n + 1).text()
        self.producer.send_offsets(closing.position, membership)
        for payload in parts:
            self._send_increment(payload)
        self.expected = self._mark(closing, len(parts))
        self._increment(self.expected)
        if before is not None:
            before()
        self.producer.commit()

    def committed(self) -> Mark:
        """The mark that was tried is the truth now."""
        self.mark, self.is_open = self.expected, False
        return self.mark

    def abort(self) -> None:
        """Returns only when the broker has confirmed it."""
        if self.is_open:
            self.producer.abort()
            self.is_open = False

    def _mark(self, closing: Closing, parts: int) -> Mark:
        n = self.mark.n + 1
        return msgspec.structs.replace(
            self.mark,
            n=n,
            attempt=self.producer.attempt,
            positions=self._positions(closing),
            start=self.position,
            topic_ids=self._place.topic_ids,
            digest=digest.to_bytes(closing.frozen.digest),
            keys=closing.frozen.keys,
            parts=parts,
            last_delta=n if closing.delta is not None else self.mark.last_delta,
            outputs=self._outputs,
            fulls=closing.fulls,
            commands=closing.commands,
            pinned=closing.pinned,
            pace=closing.pace,
            reference=dict(closing.reference),
            take=_take(self.mark.take, n, closing),
            paused=_paused(self.mark.paused, closing.switch),
            effects=closing.effects,
            format=_format(self.mark.format, closing),
            reach=self.mark.reach if closing.reach is None else closing.reach,
            schemas=self._place.merged_schemas(self.mark, [changes.table for changes in closing.frozen.changes]),
            writer=self._place.writer,
            time=int(self._wall() * 1000),
        )

    def _positions(self, closing: Closing) -> dict[str, int]:
        own = {self._place.input: closing.position, **closing.retries}
        return own | {self._place.names.control: closing.control} if closing.control > 0 else own

    def _increment(self, record: records.Record) -> None:
        self._send_increment(records.pack(record, self.mark.format))

    def _send_increment(self, payload: bytes) -> None:
        self.increment_bytes += len(payload)
        self.producer.send_increment(self._place.names.changelog, self._place.partition, payload)


def _format(before: int, closing: Closing) -> int:
    """The newest one from the command on that finishes an upgrade; until then the one that an older release reads."""
    return frame.NEWEST if any(command.name == FINISH_UPGRADE for command in closing.commands) else before


def _paused(before: Command | None, switch: Command | None) -> Command | None:
    """The newest word counts; a second pause keeps the first one's name."""
    if switch is None:
        return before
    return (before or switch) if switch.name == PAUSE else None


def _take(asked: int, n: int, closing: Closing) -> int:
    """The transaction at or after which a full is still owed to a command; a new owner goes on from it."""
    if any(command.name == TAKE for command in closing.commands):
        return n
    return 0 if any(ref.first >= asked for ref in closing.fulls) else asked


def _with_origin(outputs: Sequence[Sent], partition: int, n: int, first: int) -> list[Sent]:
    """The same outputs, each with its origin behind the headers that it has."""
    origins = map(ORIGIN.pack, repeat(partition), repeat(n), range(first, first + len(outputs)))
    return [
        (topic, value, key, to, None, None, at, [*(headers or ()), (ORIGIN_HEADER, origin)])
        for (topic, value, key, to, _, _, at, headers), origin in zip(outputs, origins, strict=True)
    ]


def _parts(delta: Sequence[Changes], limit: int) -> Iterator[list[msgspec.Raw]]:
    """Entries grouped so that a part stays below the message limit; a single value above it cannot be helped."""
    entries: list[msgspec.Raw] = []
    size = 0
    for changes in delta:
        for piece in split(changes, limit):
            raw = records.entry(piece)
            if len(piece.keys) == 1 and len(raw) > 2 * limit:
                raise MessageRefused(
                    f"table {piece.table!r}, key {piece.keys[0]!r}: a value of {len(raw)} bytes does not fit a "
                    f"message; raise kafka.message_max_bytes and the topics' max.message.bytes, or keep less under "
                    f"one key"
                )
            if entries and size + len(raw) > limit:
                yield entries
                entries, size = [], 0
            entries.append(raw)
            size += len(raw)
    if entries:
        yield entries
