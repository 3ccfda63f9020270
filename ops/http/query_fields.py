"""Reads the fields of a query of committed state: keys, bounds, partition, limit, and the record to include."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec

from statehold.client.receipt import Receipt
from statehold.client.rows import MOST_KEYS, MOST_ROWS
from statehold.common.decoding import UNREADABLE
from statehold.errors import UsageError
from statehold.ops.http.answers import HttpRequest, Rejected
from statehold.state.partition_table import PartitionTable
from statehold.worker.replicas.listing import KeyBounds

#: rows of a list, if its reader names no number
_USUAL: Final = 100


def named_table(name: str, declared: Mapping[str, PartitionTable[Any, Any]]) -> PartitionTable[Any, Any]:
    if name not in declared:
        raise Rejected(404, f"there is no table {name!r}; there are {', '.join(declared) or 'none'}")
    return declared[name]


def key_of(table: PartitionTable[Any, Any], text: str) -> Any:
    """Parse a key in a path: text, a number, percent-encoded bytes, or a JSON array for a tuple."""
    kind = table.key_type
    try:
        if kind is str:
            return unquote(text, errors="strict")
        if kind is bytes:
            return unquote_to_bytes(text)
        return msgspec.json.decode(unquote(text), type=kind)
    except (ValueError, *UNREADABLE) as error:
        raise Rejected(400, f"{unquote(text)!r} is no key of table {table.name!r}, {name_of(kind)}: {error}") from error


def keys_of(table: PartitionTable[Any, Any], request: HttpRequest) -> list[Any] | None:
    """Return the keys in `keys=` as they were asked for: separated by commas, written as in a path. None: no field."""
    text = request.query.get("keys")
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > MOST_KEYS:
        raise Rejected(400, f"keys= has {len(parts)} keys; ask for at most {MOST_KEYS} at a time")
    return [key_of(table, each) for each in parts]


def bounds_of(table: PartitionTable[Any, Any], request: HttpRequest) -> KeyBounds:
    """Return the keys that `prefix=`, `start=` and `end=` choose; the last two are written as in a path."""
    start, end = (key_of(table, text) if (text := request.query.get(name)) else None for name in ("start", "end"))
    return KeyBounds(prefix_of(table, request), start, end)


def prefix_of(table: PartitionTable[Any, Any], request: HttpRequest) -> Any:
    """Return the bytes or text in `prefix=`; None: no prefix."""
    text = request.query.get("prefix", "")
    if not text:
        return None
    if table.key_type is str:
        return text
    if table.key_type is bytes:
        return unquote_to_bytes(quote(text))
    raise Rejected(
        400, f"prefix= is for keys of str and bytes; those of table {table.name!r} are {name_of(table.key_type)}"
    )


def limit_of(request: HttpRequest) -> int:
    text = request.query.get("limit", str(_USUAL))
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= MOST_ROWS:
        raise Rejected(400, f"limit={text}: write a number from 1 to {MOST_ROWS}")
    return int(text)


def after_of(request: HttpRequest) -> tuple[int | None, int]:
    """Return the chosen partition, and the offset of the record there that the answer has to include; -1: none."""
    chosen, text = chosen_of(request), request.query.get("after", "")
    if not text:
        return chosen, -1
    try:
        after = Receipt.of(text)
    except UsageError as error:
        raise Rejected(400, f"after={error}") from error
    if chosen not in (None, after.partition):
        raise Rejected(400, f"after={text} names another partition than partition={chosen}")
    return after.partition, after.offset


def chosen_of(request: HttpRequest) -> int | None:
    text = request.query.get("partition", "")
    if text and (not text.isdecimal() or len(text) > 9):
        raise Rejected(400, f"partition={text}: write a number")
    return int(text) if text else None


def name_of(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
