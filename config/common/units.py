"""Parses and formats durations and sizes. Pure; seconds are floats, sizes are whole bytes."""

from __future__ import annotations

import re
from typing import Final

_DURATIONS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES: Final = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
_SIZE_BY_LOWER: Final = {unit.lower(): factor for unit, factor in _SIZES.items()}
_NUMBER_UNIT: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)

DURATION_FORMS: Final = "a number of seconds, or a number with ms, s, m, h or d, as '100ms'"
SIZE_FORMS: Final = "a number of bytes, or a number with KB, MB, GB, KiB, MiB or GiB, as '256MB'"


def parse_duration(text: str) -> float:
    """Read a duration. '0.1', '100ms' and '0.1s' are all 0.1 seconds. Raises ValueError."""
    number, unit = _split(text, DURATION_FORMS)
    factor = _DURATIONS.get(unit.lower() or "s")
    if factor is None:
        raise ValueError(f"{DURATION_FORMS}; the unit {unit!r} is unknown")
    # Dividing keeps '100ms' equal to 0.1; multiplying by 0.001 does not always.
    return number / 1000 if factor == 0.001 else number * factor


def parse_size(text: str) -> int:
    """Read a size in bytes. '256MB' is 256,000,000 and '1KiB' is 1,024. Raises ValueError."""
    number, unit = _split(text, SIZE_FORMS)
    factor = _SIZE_BY_LOWER.get(unit.lower() or "b")
    if factor is None:
        raise ValueError(f"{SIZE_FORMS}; the unit {unit!r} is unknown")
    size = number * factor
    if size != int(size):
        raise ValueError(f"{SIZE_FORMS}; {text.strip()!r} is not a whole number of bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """Write a duration in the largest unit that keeps it a whole number; parse_duration reads it back."""
    for unit, factor in reversed(_DURATIONS.items()):
        amount = seconds * 1000 if factor == 0.001 else seconds / factor
        if amount >= 1 and amount == int(amount):
            return f"{int(amount)}{unit}"
    if seconds == 0:
        return "0s"
    return f"{seconds!r}s" if "e" not in repr(seconds) else f"{seconds:.12f}".rstrip("0").rstrip(".") + "s"


def format_size(size: int) -> str:
    """Write a size in the largest unit that keeps it a whole number; parse_size reads it back."""
    for unit, factor in sorted(_SIZES.items(), key=lambda item: -item[1]):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def shown_size(size: float) -> str:
    """Format a size with about three digits: 12.3 MB."""
    for unit, factor in (("GB", 1000**3), ("MB", 1000**2), ("KB", 1000)):
        if size >= factor:
            return f"{size / factor:.{1 if size < 100 * factor else 0}f} {unit}"
    return f"{size:.0f} B"


def _split(text: str, forms: str) -> tuple[float, str]:
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None:
        raise ValueError(forms)
    return float(match[1]), match[2]
