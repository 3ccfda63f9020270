"""Server-sent events of a watch: the id of each is the position behind it, from which its reader continues."""

from __future__ import annotations

from typing import Any

import msgspec

from statehold.watch.changes import TableChange


def change_event(change: TableChange[Any]) -> bytes:
    """Encode a change. Its position is the id alone, because one of many partitions is longer than the change."""
    data = msgspec.structs.asdict(change)
    return as_event("change", data.pop("position"), data)


def as_event(kind: str, position: str, data: Any) -> bytes:
    """Encode an event; types that msgspec does not know become text.

    Without a position it has no id, because an empty one makes a browser forget the last one.
    """
    text = msgspec.json.encode(data, enc_hook=str)  # JSON has no line ends
    line = b"id: %s\n" % position.encode() if position else b""
    return b"%sevent: %s\ndata: %s\n\n" % (line, kind.encode(), text)
