"""Defines, packs and unpacks the records of the changelog and snapshot topics (docs/format.md)."""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Any

import msgspec

from statehold.common.decoding import UNREADABLE
from statehold.messages.command import Command
from statehold.messages.pinned_command import Pinned
from statehold.snapshot.format import frame
from statehold.table import Changes


class Writer(msgspec.Struct, frozen=True, array_like=True):
    """Who wrote a record: instance name, host, process; versions of statehold and of the service's tables."""

    instance: str = ""
    host: str = ""
    pid: int = 0
    #: of statehold
    version: str = ""
    #: of the service's tables together: 1, and one more for each step of a table's version
    schema: int = 1
    #: the newest format that the writer reads, so that `statehold finish-upgrade` can tell who would be shut out
    reads: int = 1
    #: what the service calls its own code: `service.code_version`
    code: str = ""


class FullRef(msgspec.Struct, frozen=True, array_like=True):
    """A hint to a full (rule S4): offsets of first chunk and manifest, the numbers S and E (rule S1), and an offset on
    the increment topic at or before the header of transaction S."""

    low: int
    offset: int
    first: int
    through: int
    increment: int


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """A side effect that is owed: which function, the key it is called with, and its arguments as msgpack."""

    function: str
    topic: str
    partition: int
    offset: int
    index: int
    arguments: bytes
    #: hash of the record's key: effects of one key run in their order
    lane: int = 0
    #: of the record, in milliseconds since 1970
    time: int = 0

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.topic, self.partition, self.offset, self.index


class Header(msgspec.Struct, frozen=True, array_like=True, tag=False):
    """Opens transaction n (rule T1)."""

    n: int
    attempt: str
    lineage: str
    position: int
    #: so that a torn commit, which has no mark, names one; the first builds wrote none
    writer: Writer = Writer()


class Adopt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Between the header and the mark of a transaction that begins a new lineage (rule S6): who did what, and why.

    The mark says the same for restores (`adopted`); this record says it for people and for whoever walks the chain.
    """

    n: int
    attempt: str
    #: the new one; header and mark of this transaction carry it too
    lineage: str
    old_lineage: str = ""
    #: the state is this full, whose first = through = n; None: it is empty
    base: FullRef | None = None
    old_digest: bytes = b""
    digest: bytes
    old_keys: int = 0
    keys: int = 0
    #: topic -> next offset to read: before, in the old place, and from now on
    old_positions: dict[str, int] = {}
    positions: dict[str, int]
    old_partitions: int = 0
    partitions: int
    #: the tool and its version, the person and the reason
    tool: str
    who: str
    why: str
    #: milliseconds since 1970, by the tool's clock
    time: int = 0
    #: what else the tool wants to be found here
    notes: dict[str, str] = {}


class Part(msgspec.Struct, array_like=True):
    """One part of the delta of transaction n; each entry is the msgpack of [table, keys, values]."""

    n: int
    attempt: str
    k: int
    entries: list[msgspec.Raw]


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Closes transaction n: the truth about a partition (rules T1, D1)."""

    n: int
    attempt: str
    lineage: str
    service: str
    partition: int
    partitions: int
    #: topic -> next offset to read
    positions: dict[str, int]
    #: the input position before this transaction
    start: int = -1
    #: topic -> topic id
    topic_ids: dict[str, str] = {}
    #: the state's digest, 16 bytes little endian
    digest: bytes
    keys: int = 0
    parts: int = 0
    #: number of the newest transaction up to this one that carried a delta; 0 = none since genesis
    last_delta: int = 0
    outputs: int = 0
    #: of the input records of this transaction: this mark acknowledges them
    commands: tuple[Command, ...] = ()
    #: users' commands of the control topic, handled after the last record of this transaction, in this order
    pinned: tuple[Pinned, ...] = ()
    #: number of the transaction whose command asked for a full that no mark refers to yet; 0 = none
    take: int = 0
    #: number of the transaction that began this lineage: nothing before it belongs to this state (rule S6)
    adopted: int = 0
    fulls: tuple[FullRef, ...] = ()
    #: the state goes on in this input topic, and nobody may go on from here; '' everywhere else
    moved: str = ""
    #: nanoseconds that handling a record takes, as its writer has measured; 0: nothing is known, or nothing replayed
    pace: int = 0
    #: every record from here on may need a reader that knows this format; it never falls
    format: int = 1
    #: the deltas up to `last_delta` lead to the state from a full of this transaction or a later one, not from earlier
    #: ones: where `snapshot.delta_interval` was off, changes are in no delta
    reach: int = 0
    #: table -> the highest version of its values that was ever written, where that is not 1
    schemas: dict[str, int] = {}
    #: reference topic -> next offset of each of its partitions: what the handler saw of it in this transaction
    reference: dict[str, tuple[int, ...]] = {}
    #: the command by which the partition stands still until another one has it go on (format 3)
    paused: Command | None = None
    #: noted by this or an earlier transaction and not known to be done
    effects: tuple[Effect, ...] = ()
    writer: Writer = Writer()
    #: milliseconds since 1970, by the writer's clock: for people, never for decisions
    time: int = 0

    @property
    def delta(self) -> bool:
        return self.last_delta == self.n

    @property
    def identity(self) -> tuple[int, str, dict[str, int], bytes]:
        """What must be equal for memory to be kept after an unknown outcome (rule T4)."""
        return self.n, self.attempt, self.positions, self.digest


class _OnlyWriter(msgspec.Struct):
    writer: Writer


class Chunk(msgspec.Struct, array_like=True):
    """Chunk i of a full; `newest` is the offset of the newest manifest its writer knew, or -1 (rule S5)."""

    full: str
    i: int
    newest: int
    entry: msgspec.Raw


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names exactly the chunks of a full (rules S1, S3, S5, S6)."""

    full: str
    service: str
    partition: int
    partitions: int
    lineage: str
    #: n at the first and at the last slice
    first: int
    through: int
    #: the position after transaction `first`, by topic
    positions: dict[str, int]
    topic_ids: dict[str, str] = {}
    #: state digest at `first`; of use where first == through, or for a compaction
    digest: bytes = b""
    #: offset on the increment topic at or before the header of transaction `first`
    increment: int
    #: offset of the first chunk; -1 when they are not in Kafka
    low: int
    #: where its chunks are, in so many segments; empty: on the full topic
    store: str = ""
    segments: int = 0
    #: checksum of each chunk's body, in order
    checksums: tuple[int, ...] = ()
    keys: int = 0
    #: bytes of the entries before compression
    size: int = 0
    maker: str = "worker"
    #: as in the mark at `first`
    format: int = 1
    schemas: dict[str, int] = {}
    writer: Writer = Writer()
    time: int = 0


Record = Header | Adopt | Part | Mark | Chunk | Manifest

_KINDS: dict[bytes, type[Any]] = {
    b"H": Header,
    b"A": Adopt,
    b"P": Part,
    b"M": Mark,
    b"C": Chunk,
    b"F": Manifest,
}
#: the kinds that belong on the increment topic
INCREMENT_KINDS = frozenset((b"H", b"A", b"P", b"M"))
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_DECODERS = {letter: msgspec.msgpack.Decoder(kind).decode for letter, kind in _KINDS.items()}
_encode = msgspec.msgpack.Encoder().encode


def pack(record: Record, version: int = frame.OLDEST) -> bytes:
    """A frame of this format; marks and manifests name theirs themselves."""
    if isinstance(record, (Mark, Manifest)):
        version = record.format
    return frame.pack(_LETTERS[type(record)], _encode(record), version)


def unpack(data: bytes | None) -> Record:
    """The record in a frame.

    :raises frame.BadFrame: for anything that `pack` did not write, damaged or of another format version.
    """
    kind, body = frame.unpack(data)
    if kind not in _DECODERS:
        raise frame.BadFrame(f"unknown kind {kind!r}")
    try:
        record: Record = _DECODERS[kind](body)
    except UNREADABLE as error:
        raise frame.BadFrame(f"kind {kind!r}: {error}") from error
    return record


def foreign_writer(data: bytes | None) -> str:
    """Who wrote a mark of a format that this version does not know, as far as it shows; '' for any other record.

    Every format promises that a mark is a msgpack map whose `writer` begins as it does here.
    """
    try:
        kind, body = frame.unpack(data, any_format=True)
        if kind != b"M":
            return ""
        writer = msgspec.msgpack.decode(body, type=_OnlyWriter).writer
    except (frame.BadFrame, *UNREADABLE):
        return ""
    return f"statehold {writer.version} ({writer.instance} on {writer.host})"


def number_of(data: bytes) -> int:
    """Return the transaction number of a changelog record; -1 if it has none or statehold did not write it."""
    try:
        return int(getattr(unpack(data), "n", -1))
    except (frame.BadFrame, ValueError):
        return -1


def entry(changes: Changes) -> msgspec.Raw:
    """The msgpack of [table, keys, values]."""
    return msgspec.Raw(_encode((changes.table, changes.keys, changes.values)))


class UnknownTable(frame.BadFrame):
    """Nothing is damaged: other code of the service has written a table that this code does not have."""


class EntryDecoder:
    """Decodes entries with each table's own key type; one per partition."""

    def __init__(self, key_types: dict[str, Any]) -> None:
        self._name = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, msgspec.Raw]).decode
        self._values = msgspec.msgpack.Decoder(list[bytes | None]).decode
        self._keys: dict[str, Callable[[msgspec.Raw], list[Any]]] = {}
        for name, kind in key_types.items():
            self._keys[name] = msgspec.msgpack.Decoder(GenericAlias(list, (kind,))).decode

    def decode(self, raw: msgspec.Raw) -> Changes:
        """The changes of one table.

        :raises UnknownTable: this code does not declare it. :raises frame.BadFrame: keys of another type, or damage.
        """
        try:
            table, keys, values = self._name(raw)
            if table not in self._keys:
                known = ", ".join(sorted(self._keys)) or "none"
                raise UnknownTable(f"holds table {table!r}, this code declares: {known}")
            changes = Changes(table, self._keys[table](keys), self._values(values))
        except UNREADABLE as error:
            raise frame.BadFrame(f"entry: {error}") from error
        if len(changes.keys) != len(changes.values):
            raise frame.BadFrame(f"table {table!r}: {len(changes.keys)} keys, {len(changes.values)} values")
        return changes
