"""The balances of examples/microservice: page after page, all of them, with a position from which no change is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from examples.microservice import app

from statehold.client.rows import RowPage, TableRow

ACCOUNTS = [f"account-{number:02}" for number in range(7)]


def test_all_pages_and_the_position_of_the_first() -> None:
    asked: list[Any] = []

    async def of_three(_: str, *, value: type[int], start: str | None, limit: int) -> RowPage[int]:
        asked.append(start)
        found = [each for each in ACCOUNTS if start is None or each >= start]
        return RowPage([TableRow(each, 1, 0) for each in found[:3]], len(found) > 3, f"0:{len(asked)}:01234567")

    client: Any = SimpleNamespace(get_range=of_three)
    pages = [asyncio.run(app.balances(client))]
    while pages[-1]["next"]:
        pages.append(asyncio.run(app.balances(client, pages[-1]["next"])))
    assert [account for page in pages for account in page["rows"]] == ACCOUNTS
    assert pages[0]["position"] == "0:1:01234567"
    page = Path(app.__file__).with_name("page.html").read_text()
    assert 'fetch("balances?start="' in page
    assert "position ||= page.position" in page
