"""What a replay found: nothing, or where the handler does otherwise than it did."""

from __future__ import annotations

from typing import Any

import msgspec


class Deviation(msgspec.Struct, frozen=True):
    """Something that the handler does otherwise than it did: at this record of the input, in this transaction."""

    #: key, output or state
    what: str
    offset: int
    n: int
    text: str
    table: str = ""
    key: Any = None


class Replayed(msgspec.Struct):
    """Positions of the input, and what was compared; `differences` are those of the first transaction that differs."""

    partition: int
    start: int
    end: int
    records: int = 0
    transactions: int = 0
    outputs: int = 0
    #: outputs that cannot be compared: retention has taken them, or they do not say where they come from
    not_kept: int = 0
    differences: list[Deviation] = []
