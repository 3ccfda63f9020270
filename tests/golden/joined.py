"""A service with a join of two streams, as it wrote the golden files of format 5. Never change it."""

from __future__ import annotations

from typing import Any

from tests.golden.bank_v1 import Move

from statehold import Handler, JoinBuffer, Output, Record


class Joined(Handler[Move]):
    """Pairs what comes in with what goes out. Some rows have a partner, some wait, and some are over."""

    pairs = JoinBuffer(8, key=str, left=Move, right=Move, join="outer", grace=1)
    paired = Output("paired", value=str)

    def on_record(self, record: Record[Move]) -> None:
        move = record.value
        partners = (self.pairs.left if move.cents >= 0 else self.pairs.right)(record, move.account)
        self.paired.send(f"{move.account} {[each.cents for each in partners]}", key=move.account)

    def on_unmatched(self, name: str, key: Any, side: str, value: Any, timestamp: int) -> None:
        self.paired.send(f"{key} {side} {value.cents} at {timestamp}", key=key)
