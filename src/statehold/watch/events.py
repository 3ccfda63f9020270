"""Server-sent events of a watch: the id of each is the position behind it, from which its reader continues."""

from __future__ import annotations

from typing import Any

import msgspec


def as_event(kind: str, position: str, data: Any) -> bytes:
    """Encode an event; types that msgspec does not know become text."""
    text = msgspec.json.encode(data, enc_hook=str)  # JSON has no line ends
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (position.encode(), kind.encode(), text)
