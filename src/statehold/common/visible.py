"""Makes visible what a stranger may have written: control characters, keys of any bytes, times that no calendar has."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: before the bytes of a key that is no printable text
_HEX: Final = "hex:"


def visible(text: str) -> str:
    """Return the text with `\\x1b` in place of an escape character, so that it cannot control a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def key_as_text(key: bytes | None) -> str:
    """Return a record's key as text if it is printable, and otherwise as digits behind `hex:`; `-` without a key."""
    if key is None:
        return "-"
    text = key.decode(errors="backslashreplace")
    plain = text.isprintable() and not text.startswith(_HEX) and text.encode() == key
    return text if plain else f"{_HEX}{key.hex()}"


def key_of_text(text: str) -> bytes:
    """Return the bytes of a key that `key_as_text` has written."""
    if text.startswith(_HEX):
        with suppress(ValueError):
            return bytes.fromhex(text.removeprefix(_HEX))
    return text.encode()


def visible_time(milliseconds: int) -> str:
    """Return a time as people read it. It may be any number, because producers set timestamps."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # before the year 1 or after 9999
        return f"{milliseconds} ms after 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def distance(milliseconds: int) -> str:
    """Return the length of a time as people read it: whole days, or hours, minutes and seconds."""
    days, seconds = divmod(milliseconds // 1000, 86_400)
    if days:
        return f"{days} days" if days > 1 else "1 day"
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} h"
