"""The oracle and the domain were written twice on purpose; here they meet on the same market."""

import ast
from pathlib import Path

import examples.clearing.oracle
import examples.proof
import msgspec
from examples.clearing.domain import Account, Position, Trade
from examples.clearing.market import trades
from examples.clearing.oracle import book_all

MARKET = [msgspec.json.encode(trade) for trade in trades(60_000, seed=11, accounts=200)]


def test_the_domain_ends_where_the_oracle_does() -> None:
    positions: dict[str, Position] = {}
    accounts: dict[str, Account] = {}
    for raw in MARKET:
        trade = msgspec.json.decode(raw, type=Trade)
        name = f"{trade.account}/{trade.instrument}"
        before = positions.get(name, Position())
        positions[name] = before.trade(trade.lots, trade.price)
        account = accounts.get(trade.account, Account())
        accounts[trade.account] = account.settle(before, positions[name])
    books = book_all(MARKET)
    assert msgspec.to_builtins(positions) == books.positions
    assert msgspec.to_builtins(accounts) == books.accounts


def test_every_trade_fills_and_some_call() -> None:
    books = book_all(MARKET)
    assert sum(map(len, books.fills.values())) == len(MARKET)
    assert sum(map(len, books.margin_calls.values())) > 20


def test_the_oracle_shares_nothing_with_the_service() -> None:
    for module in (examples.clearing.oracle, examples.proof):
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        imported = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        assert not [name for name in imported if name.startswith(("statehold", "examples"))]
