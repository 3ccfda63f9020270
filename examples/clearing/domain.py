"""Trades, positions and accounts of a clearing house: values and arithmetic without Kafka.

Units: money and prices are integer cents, quantities are lots. A short position has a negative quantity and a
negative cost.
"""

from typing import Literal

import msgspec

OPENING_CASH = 3_000_000
"""Cents on each account before its first trade."""

MARGIN_PERCENT = 10
"""Share of a position's open cost that must be covered by cash."""


class Trade(msgspec.Struct, frozen=True):
    """One side of a deal from the market."""

    id: int
    account: str
    instrument: str
    side: Literal["buy", "sell"]
    quantity: int
    price: int

    @property
    def lots(self) -> int:
        """The signed quantity: positive for a buy, negative for a sell."""
        return self.quantity if self.side == "buy" else -self.quantity


class Fill(msgspec.Struct, frozen=True):
    """The effect of one trade on its position. `quantity` and `average` are the values after it, `realised` is this
    trade's alone.
    """

    id: int
    account: str
    instrument: str
    quantity: int
    average: int
    realised: int


class MarginCall(msgspec.Struct, frozen=True):
    """Sent once when an account's margin exceeds its cash; `id` is the trade that caused it."""

    id: int
    account: str
    cash: int
    margin: int


class Position(msgspec.Struct, frozen=True):
    """Lots of one instrument on one account, and the cost of the open ones."""

    quantity: int = 0
    cost: int = 0
    realised: int = 0

    @property
    def average(self) -> int:
        """Average price of the open lots in cents, rounded down; 0 when flat."""
        return self.cost // self.quantity if self.quantity else 0

    @property
    def margin(self) -> int:
        """Cents that must be covered by cash."""
        return abs(self.cost) * MARGIN_PERCENT // 100

    def trade(self, lots: int, price: int) -> "Position":
        """Book signed `lots`: closed lots are realised at average cost, the rest opens at `price`."""
        if self.quantity * lots >= 0:
            return Position(self.quantity + lots, self.cost + lots * price, self.realised)
        held = abs(self.quantity)
        closing = min(abs(lots), held) * (1 if lots > 0 else -1)
        share = self.cost * abs(closing) // held
        opening = lots - closing
        return Position(
            quantity=self.quantity + lots,
            cost=self.cost - share + opening * price,
            realised=self.realised - closing * price - share,
        )


class Account(msgspec.Struct, frozen=True):
    """Cash and margin over all positions of an account. `called` is true while a margin call is open."""

    cash: int = OPENING_CASH
    margin: int = 0
    called: bool = False

    def settle(self, before: Position, after: Position) -> "Account":
        """Apply a changed position; the margin call ends when cash covers the margin again."""
        cash = self.cash + after.realised - before.realised
        margin = self.margin + after.margin - before.margin
        return Account(cash, margin, called=margin > cash)
