"""Defines, packs and unpacks the records of the changelog and snapshot topics (docs/reference/format.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from statehold.common.decoding import UNREADABLE
from statehold.errors import MessageRefused
from statehold.messages.command import FINISH_UPGRADE, PAUSE, TAKE, Command
from statehold.messages.pinned_command import Pinned
from statehold.snapshot.format import frame
from statehold.state.partition_table import Changes
from statehold.state.stored_keys import key_decoder


class Writer(msgspec.Struct, frozen=True, array_like=True):
    """The writer of a record: instance name, host, process, versions of statehold and of the service's tables."""

    instance: str = ""
    host: str = ""
    pid: int = 0
    #: of statehold
    version: str = ""
    #: of all tables: 1, plus one for each step of a table's version
    schema: int = 1
    #: the newest format that the writer reads; `statehold finish-upgrade` finds the instances that need an upgrade
    reads: int = 1
    #: the version of the service's own code: `service.code_version`
    code: str = ""


class FullRef(msgspec.Struct, frozen=True, array_like=True):
    """A hint to a full snapshot (rule S4): offsets of first chunk and manifest, and the numbers S and E (rule S1).

    `increment` is a changelog offset at or before the header of transaction S.
    """

    low: int
    offset: int
    first: int
    through: int
    increment: int


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """A pending side effect: its function, the key for the call, and its arguments as msgpack."""

    function: str
    topic: str
    partition: int
    offset: int
    index: int
    arguments: bytes
    #: hash of the record's key, because effects of one key run in order
    lane: int = 0
    #: of the record, in milliseconds since 1970
    time: int = 0

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.topic, self.partition, self.offset, self.index


def position_of(positions: Mapping[str, int], inputs: Sequence[str]) -> int:
    """Return the position of a partition: the next offset of its input, or the sum of those of several inputs.

    With several inputs the next record has this place in the partition's order, or a later one (`api.record.at`).
    Return -1 if an input has no position.
    """
    total = 0
    for topic in inputs:
        offset = positions.get(topic, -1)
        if offset < 0:
            return -1
        total += offset
    return total


class Header(msgspec.Struct, frozen=True, array_like=True, tag=False):
    """Opens transaction n (rule T1)."""

    n: int
    attempt: str
    lineage: str
    position: int
    #: names the writer of a torn commit, which has no commit record; the first builds wrote none
    writer: Writer = Writer()


class StateReplacement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Begins a new state generation, between header and commit record of its transaction (rule S6).

    It says who did what, and why. Restores use the commit record, which has the same content (`adopted`); this record
    is for people and for tools that read the chain.
    """

    n: int
    attempt: str
    #: the new state generation, also in header and commit record of this transaction
    lineage: str
    old_lineage: str = ""
    #: the state is this full snapshot, whose first = through = n; None: it is empty
    base: FullRef | None = None
    old_digest: bytes = b""
    digest: bytes
    old_keys: int = 0
    keys: int = 0
    #: topic -> next offset to read, before and after
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
    #: further facts of the tool
    notes: dict[str, str] = {}


class Part(msgspec.Struct, array_like=True):
    """One part of the delta of transaction n; each entry is the msgpack of [table, keys, values]."""

    n: int
    attempt: str
    k: int
    entries: list[msgspec.Raw]


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Closes transaction n: the commit record of a partition (rules T1, D1)."""

    n: int
    attempt: str
    lineage: str
    service: str
    partition: int
    partitions: int
    #: topic -> next offset to read
    positions: dict[str, int]
    #: the position before this transaction; see `position_of`
    start: int = -1
    #: the inputs in the order of their declaration; empty: one
    inputs: tuple[str, ...] = ()
    #: with several inputs the order of this transaction's records; see `runs`
    runs: bytes = b""
    #: topic -> topic id
    topic_ids: dict[str, str] = {}
    #: the state's digest, 16 bytes little endian
    digest: bytes
    keys: int = 0
    parts: int = 0
    #: number of the newest transaction up to this one that carried a delta; 0 = none since the initial commit record
    last_delta: int = 0
    outputs: int = 0
    #: in the input records of this transaction; the commit record acknowledges them
    commands: tuple[Command, ...] = ()
    #: users' commands of the control topic, handled after the last record of this transaction, in this order
    pinned: tuple[Pinned, ...] = ()
    #: records of this transaction with a later timestamp did not advance the partition's time; in milliseconds since
    #: 1970, 0: there was no such record
    time_limit: int = 0
    #: number of the transaction whose command requested a full snapshot that no commit record refers to yet; 0 = none
    take: int = 0
    #: number of the transaction that began this state generation (rule S6)
    adopted: int = 0
    #: stored as `fulls`
    full_snapshots: tuple[FullRef, ...] = msgspec.field(default=(), name="fulls")
    #: the input topic in which the state continues, so that no instance continues here; '' otherwise
    moved: str = ""
    #: measured nanoseconds of handling a record; 0: unknown, or a replay handles none
    pace: int = 0
    #: the format of this and all later records; it never falls
    format: int = 1
    #: the deltas up to `last_delta` reach a full snapshot of this transaction or a later one, not earlier ones, because
    #: no delta holds the changes made while `snapshot.delta_interval` was off
    reach: int = 0
    #: table -> the highest version of its values that was ever written, if not 1
    schemas: dict[str, int] = {}
    #: table -> the types of its keys and values, in JSON; see `recorded_types`
    types: dict[str, str] = {}
    #: reference topic -> next offset of each partition: the version that the handler saw
    reference: dict[str, tuple[int, ...]] = {}
    #: the command that paused the partition, until another one resumes it (format 3)
    paused: Command | None = None
    #: pending side effects, of this or an earlier transaction
    effects: tuple[Effect, ...] = ()
    writer: Writer = Writer()
    #: milliseconds since 1970, by the writer's clock; for people, not for decisions
    time: int = 0

    def position(self, input: str) -> int:
        """Return how far the partition has come: see `position_of`."""
        return position_of(self.positions, self.inputs or (input,))

    @property
    def delta(self) -> bool:
        return self.last_delta == self.n

    @property
    def identity(self) -> tuple[int, str, dict[str, int], bytes]:
        """Return what must be equal to keep the state in memory after an unknown outcome (rule T4)."""
        return self.n, self.attempt, self.positions, self.digest

    # The fields that commands change, in the next record

    def take_after(self, n: int, commands: Sequence[Command], full_snapshots: Sequence[FullRef]) -> int:
        """Return `take` of record n; one of `full_snapshots` may be the requested one."""
        if any(command.name == TAKE for command in commands):
            return n
        return 0 if any(ref.first >= self.take for ref in full_snapshots) else self.take

    def paused_after(self, switch: Command) -> Command | None:
        """Return the pause command in force; a second pause keeps the first one."""
        return (self.paused or switch) if switch.name == PAUSE else None

    def format_after(self, commands: Sequence[Command]) -> int:
        """Return the newest format after `finish-upgrade`; until then the one that an older release reads."""
        return frame.NEWEST if any(command.name == FINISH_UPGRADE for command in commands) else self.format


class _OnlyWriter(msgspec.Struct):
    writer: Writer


class Chunk(msgspec.Struct, array_like=True):
    """Chunk i of a full snapshot; `newest` is the offset of the newest manifest its writer knew, or -1 (rule S5)."""

    full: str
    i: int
    newest: int
    entry: msgspec.Raw


#: the maker of the full snapshots of `statehold compact`: they are proven before they are published, so they need no
#: reference
COMPACTION: Final = "compaction"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lists the chunks of a full snapshot (rules S1, S3, S5, S6)."""

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
    #: as in the commit record at `first`
    inputs: tuple[str, ...] = ()
    topic_ids: dict[str, str] = {}
    #: state digest at `first`; set if first == through, or for a compaction
    digest: bytes = b""
    #: changelog offset at or before the header of transaction `first`
    increment: int
    #: offset of the first chunk; -1 if the chunks are not in Kafka
    low: int
    #: the store of its chunks, and the number of segments there; empty: on the snapshot topic
    store: str = ""
    segments: int = 0
    #: checksum of each chunk's body, in order
    checksums: tuple[int, ...] = ()
    keys: int = 0
    #: bytes of the entries before compression
    size: int = 0
    #: chunks that earlier full snapshots of the same id have written (format 7)
    shared: int = 0
    #: rows of all chunks, if a later chunk may replace or delete rows of an earlier one; 0: as many as keys
    rows: int = 0
    #: `low` of every reference to full snapshots that share chunks with this one; -1: it shares none of earlier ones
    family: int = -1
    maker: str = "worker"
    #: as in the commit record at `first`
    format: int = 1
    schemas: dict[str, int] = {}
    types: dict[str, str] = {}
    writer: Writer = Writer()
    time: int = 0

    def position(self, input: str) -> int:
        """Return how far the partition had come: see `position_of`."""
        return position_of(self.positions, self.inputs or (input,))

    @property
    def loads(self) -> int:
        """Return how many rows a restore loads."""
        return self.rows or self.keys

    def extends(self, earlier: Manifest) -> bool:
        """Return whether it has all chunks of an earlier one, and maybe more."""
        return self.full == earlier.full and self.checksums[: len(earlier.checksums)] == earlier.checksums


Record = Header | StateReplacement | Part | CommitRecord | Chunk | Manifest

_KINDS: dict[bytes, type[Any]] = {
    b"H": Header,
    b"A": StateReplacement,
    b"P": Part,
    b"M": CommitRecord,
    b"C": Chunk,
    b"F": Manifest,
}
#: the kinds that belong on the changelog topic
INCREMENT_KINDS = frozenset((b"H", b"A", b"P", b"M"))
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_DECODERS = {letter: msgspec.msgpack.Decoder(kind).decode for letter, kind in _KINDS.items()}
_decode_writer = msgspec.msgpack.Decoder(_OnlyWriter).decode
_encode = msgspec.msgpack.Encoder().encode


def pack(record: Record, version: int = frame.OLDEST) -> bytes:
    """Return a frame of this format; commit records and manifests name their own."""
    repeated = 0
    if isinstance(record, (CommitRecord, Manifest)):
        version, repeated = record.format, sum(map(len, record.types.values()))
    return frame.pack(_LETTERS[type(record)], _encode(record), version, repeated)


def unpack(data: bytes | None) -> Record:
    """Return the record in a frame.

    :raises frame.BadFrame: the data is foreign, damaged or of another format.
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
    """Return the writer of a commit record of an unknown format; '' for any other record.

    Every format guarantees that a commit record is a msgpack map whose `writer` begins as it does here.
    """
    try:
        kind, body = frame.unpack(data, any_format=True)
        if kind != b"M":
            return ""
        writer = _decode_writer(body).writer
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
    """Return the msgpack of [table, keys, values]."""
    return msgspec.Raw(_encode((changes.table, changes.keys, changes.values)))


def chunks(delta: Sequence[Changes], limit: int) -> list[list[msgspec.Raw]]:
    """Group entries so that a chunk stays below `limit` bytes, where no single value exceeds it.

    :raises MessageRefused: a single value does not fit a message of twice the limit.
    """
    grouped: list[list[msgspec.Raw]] = []
    room = 0
    for changes in delta:
        for piece in split(changes, limit):
            raw = entry(piece)
            if len(piece.keys) == 1 and len(raw) > 2 * limit:
                raise MessageRefused(
                    f"table {piece.table!r}, key {piece.keys[0]!r}: a value of {len(raw)} bytes does not fit a "
                    f"message; raise kafka.message_max_bytes and the topics' max.message.bytes, or keep less under "
                    f"one key"
                )
            if len(raw) > room or not grouped:
                grouped.append([])
                room = limit
            grouped[-1].append(raw)
            room -= len(raw)
    return grouped


def split(changes: Changes, limit: int) -> Iterator[Changes]:
    """Split into pieces of at most `limit` bytes, or of a single key."""
    count = len(changes.keys)
    if count <= 1 or _size(changes) <= limit:
        if count:
            yield changes
        return
    half = count // 2
    yield from split(Changes(changes.table, changes.keys[:half], changes.values[:half]), limit)
    yield from split(Changes(changes.table, changes.keys[half:], changes.values[half:]), limit)


def _size(changes: Changes) -> int:
    keys = changes.keys
    each = sum(map(len, keys)) if isinstance(keys[0], (str, bytes)) else 16 * len(keys)
    return each + 8 * len(keys) + sum(map(len, filter(None, changes.values)))


class UnknownTable(frame.BadFrame):
    """Other code of the service has written a table that this code does not declare; nothing is damaged."""

    def __init__(self, text: str, table: str = "") -> None:
        super().__init__(text)
        self.table = table


class OtherKeys(UnknownTable):
    """Other code of the service has written keys of another type; nothing is damaged."""


_decode_entry = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, msgspec.Raw]).decode
_decode_values = msgspec.msgpack.Decoder(list[bytes | None]).decode


class EntryDecoder:
    """Decodes entries with the key type of each table; one for each partition."""

    def __init__(self, key_types: dict[str, Any]) -> None:
        self._types = key_types
        self._keys = {name: key_decoder(kind) for name, kind in key_types.items()}

    def decode(self, raw: msgspec.Raw) -> Changes:
        """Return the changes of one table.

        :raises UnknownTable: this code does not declare it. :raises OtherKeys: it declares another type of keys.
        :raises frame.BadFrame: the bytes are damaged.
        """
        try:
            table, keys, values = _decode_entry(raw)
            if table not in self._keys:
                known = ", ".join(sorted(self._keys)) or "none"
                raise UnknownTable(f"holds table {table!r}, this code declares: {known}", table)
            try:
                decoded = self._keys[table](keys)
            except msgspec.ValidationError as error:
                if not isinstance(msgspec.msgpack.decode(keys), list):
                    raise
                kind = getattr(self._types[table], "__name__", repr(self._types[table]))
                raise OtherKeys(
                    f"holds keys of table {table!r} that this code cannot read as {kind:.100}: {error}"
                ) from error
            changes = Changes(table, decoded, _decode_values(values))
        except UNREADABLE as error:
            raise frame.BadFrame(f"entry: {error}") from error
        if len(changes.keys) != len(changes.values):
            raise frame.BadFrame(f"table {table!r}: {len(changes.keys)} keys, {len(changes.values)} values")
        return changes
