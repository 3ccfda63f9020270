"""Recomputes the expected outputs and state from the input alone.

This module shares no code with the service: it imports neither statehold nor the handler nor its domain, and uses
plain dicts and json. It repeats the clearing rules, so that a mistake in the service shows as a
difference.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]

CASH_AT_START = 3_000_000


class Books:
    """Expected fills and margin calls per account, in order, and the expected end of both tables."""

    def __init__(self) -> None:
        self.fills: dict[str, list[Event]] = defaultdict(list)
        self.margin_calls: dict[str, list[Event]] = defaultdict(list)
        self.positions: dict[str, Event] = {}
        self.accounts: dict[str, Event] = {}

    def book(self, raw: bytes) -> None:
        """Book one trade of the input topic."""
        trade = json.loads(raw)
        account, price = trade["account"], trade["price"]
        position = self.positions.setdefault(
            f"{account}/{trade['instrument']}", {"quantity": 0, "cost": 0, "realised": 0}
        )
        held = self.accounts.setdefault(account, {"cash": CASH_AT_START, "margin": 0, "called": False})
        margin_before = abs(position["cost"]) // 10
        profit = _close_and_open(position, trade["side"], trade["quantity"], price)
        position["realised"] += profit
        held["cash"] += profit
        held["margin"] += abs(position["cost"]) // 10 - margin_before
        self._report(trade, position, profit)
        self._call(trade, held)

    def _report(self, trade: Event, position: Event, profit: int) -> None:
        quantity = position["quantity"]
        self.fills[trade["account"]].append(
            {
                "id": trade["id"],
                "account": trade["account"],
                "instrument": trade["instrument"],
                "quantity": quantity,
                "average": 0 if quantity == 0 else position["cost"] // quantity,
                "realised": profit,
            }
        )

    def _call(self, trade: Event, held: Event) -> None:
        short_of_cash = held["margin"] > held["cash"]
        if short_of_cash and not held["called"]:
            call = {"id": trade["id"], "account": trade["account"]}
            self.margin_calls[trade["account"]].append(call | {"cash": held["cash"], "margin": held["margin"]})
        held["called"] = short_of_cash


def book_all(trades: Iterable[bytes]) -> Books:
    """Book the trades of one partition in their order."""
    books = Books()
    for raw in trades:
        books.book(raw)
    return books


def _close_and_open(position: Event, side: str, quantity: int, price: int) -> int:
    """Close lots, then open the rest, changing quantity and cost in place. Return the realised profit
    in cents.
    """
    long = position["quantity"] > 0
    profit = 0
    if position["quantity"] and long != (side == "buy"):
        open_lots = abs(position["quantity"])
        lots = min(quantity, open_lots)
        share = position["cost"] * lots // open_lots
        profit = (lots * price if long else -lots * price) - share
        position["cost"] -= share
        position["quantity"] += -lots if long else lots
        quantity -= lots
    sign = 1 if side == "buy" else -1
    position["quantity"] += sign * quantity
    position["cost"] += sign * quantity * price
    return profit
