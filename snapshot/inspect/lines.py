"""Turns any record into a JSON object: snapshot records by kind with their entries, others with key, value, headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from statehold.api.record import Message
from statehold.api.values import serde
from statehold.bound.output import origin_of
from statehold.messages.command import COMMAND_HEADER, BadCommand, command_of
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import (
    Chunk,
    CommitRecord,
    FullRef,
    Header,
    Manifest,
    Part,
    Record,
    StateReplacement,
)
from statehold.snapshot.inspect import typed
from statehold.snapshot.inspect.contents import decoded
from statehold.snapshot.inspect.typed import Typed
from statehold.state import digest

_KINDS: dict[type[Any], str] = {
    Header: "transaction-header",
    Part: "changelog-chunk",
    CommitRecord: "commit-record",
    StateReplacement: "state-replacement",
    Chunk: "snapshot-chunk",
    Manifest: "snapshot-manifest",
}


class Lines:
    """Turns messages into objects for JSON.

    `ours` is true for changelog and snapshot topics, where any other record is damage. `codecs` are the serdes of
    inputs and outputs by topic.
    """

    def __init__(self, ours: bool, types: Typed, codecs: Mapping[str, serde.Serde[Any]]) -> None:
        self._ours, self._types, self._codecs = ours, types, codecs

    def line(self, message: Message) -> dict[str, Any]:
        """Return the object. Damage is reported in `kind` and `finding`, never raised."""
        line: dict[str, Any] = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
        }
        try:
            record = records.unpack(message.value())
        except frame.BadFrame as error:
            if self._ours:
                return line | {"kind": "damaged", "finding": str(error)}
            return line | self._plain(message)
        return line | self._record(record)

    def _record(self, record: Record) -> dict[str, Any]:
        kind = _KINDS[type(record)]
        if isinstance(record, CommitRecord) and record.n == 0 and not record.adopted:
            kind = "initial-commit-record"
        fields: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__}
        entries = [record.entry] if isinstance(record, Chunk) else record.entries if isinstance(record, Part) else None
        if entries is not None:
            fields.pop("entry", None)
            fields["entries"] = [entry for raw in entries for entry in self._entries(raw)]
        return {"kind": kind} | {name: _plain(name, value) for name, value in fields.items()}

    def _entries(self, raw: msgspec.Raw) -> list[dict[str, Any]]:
        try:
            changes = decoded(raw)
        except frame.BadFrame as error:
            return [{"finding": str(error)}]
        return [
            {"table": changes.table, "key": typed.key(key), "value": self._types.value(changes.table, value)}
            for key, value in zip(changes.keys, changes.values, strict=True)
        ]

    def _plain(self, message: Message) -> dict[str, Any]:
        key, value, codec = message.key(), message.value(), self._codecs.get(message.topic() or "")
        line: dict[str, Any] = {"kind": "record", "key": typed.text(key) if isinstance(key, bytes) else key}
        headers = message.headers()
        if (origin := origin_of(headers)) is not None:
            line["origin"] = {"partition": origin.partition, "n": origin.n, "ordinal": origin.ordinal}
            headers = list(origin.headers)
        for name, data in headers or ():
            if name == COMMAND_HEADER:
                line |= {"kind": "command", "command": _command(message)}
                codec = None
            else:
                line.setdefault("headers", []).append([name, typed.text(data or b"")])
        return line | {"value": typed.message(codec, value)}


def _command(message: Message) -> Any:
    try:
        return _named(command_of(message))
    except BadCommand as error:
        return {"finding": str(error)}


def _plain(name: str, value: Any) -> Any:
    """Convert a field: structs get field names, although they are arrays in the format; digests become hex text."""
    if isinstance(value, bytes):
        return digest.show(value) if value else ""
    if isinstance(value, msgspec.Struct):
        return _named(value)
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], msgspec.Struct):
        return [_named(each) for each in value]
    return [f"{each:016x}" for each in value] if name == "checksums" else value


def _named(value: Any) -> Any:
    if value is None:
        return None
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, FullRef):
        return fields
    return {name: typed.text(each) if isinstance(each, bytes) else each for name, each in fields.items()}
