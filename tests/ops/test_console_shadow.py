"""The page of a shadow in a real browser: what differs, how far behind, and values only for those with the token."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.browser import ENTER, Browser, missing
from tests.support.desk import TOKEN, await_true
from tests.support.shadowing import DriverShadow

from statehold import Handler, Output, Record, Table
from statehold.config.common.secret import Secret
from statehold.config.sections.ops import OpsSettings
from statehold.config.settings import Settings
from statehold.ops.cli.release.shadow import routes_of
from statehold.ops.http.answers import HttpRequest
from statehold.ops.http.small_server import small_server
from statehold.ops.process.shadow_page import ShadowPage
from statehold.testing import Driver

IMAGES = Path(os.environ["STATEHOLD_IMAGES"]) if "STATEHOLD_IMAGES" in os.environ else None


class Fill(msgspec.Struct, frozen=True):
    account: str
    total: int
    fee: int = 0


class Fills(Handler[int]):
    totals = Table(key=str, value=Fill)
    entries = Table(key=int, value=int)
    fills = Output("fills", value=Fill)
    fee = 0

    def on_record(self, record: Record[int]) -> None:
        account = (record.key or b"").decode()
        before = self.totals.get(account, Fill(account, 0))
        self.totals[account] = after = Fill(account, before.total + record.value, self.fee)
        self.entries[record.offset] = record.value
        self.fills.send(after, key=account)


class NextFills(Fills):
    fee = 1


def shadowed() -> DriverShadow:
    driver = Driver(Fills)
    driver.feed(1, key="first")
    driver.take_full()
    shadow = DriverShadow(driver, NextFills)
    shadow.look()
    for amount in range(5):
        driver.feed(amount, key="<b>ann</b>")
        shadow.look()
    return shadow


@contextmanager
def served(shadow: DriverShadow, **options: Any) -> Iterator[str]:
    settings = OpsSettings(listen="127.0.0.1:0", **options)
    page = ShadowPage(settings, shadow.names, shadow.shadow.report)
    with small_server(settings, page.routes(), "shadow") as url:
        yield url


def report(url: str, token: str = "") -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/report", headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


def test_values_are_shown_to_those_who_may_ask_for_state() -> None:
    shadow = shadowed()
    with served(shadow) as url:
        told = report(url)
        (found,) = told["partitions"]
        assert "ops.state" in told["hidden"]
        assert told["verdict"] == "different"
        assert found["examples"][0]["record"].startswith("input[0]@")
        assert (found["examples"][0]["fields"], found["compared"][0]["fields"]) == ([], {})
        assert all(each[name] is None for each in found["examples"] for name in ("key", "live", "new"))
        assert "ann" not in json.dumps(told)
    with served(shadow, token=Secret(TOKEN)) as url:
        assert report(url, TOKEN)["partitions"][0]["examples"][0]["live"] is None
    with served(shadow, state="on", token=Secret(TOKEN)) as url:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            report(url)
        told = report(url, TOKEN)
        assert told["hidden"] == ""
        assert told["partitions"][0]["examples"][0]["live"] == {"account": "<b>ann</b>", "total": 0, "fee": 0}


class Cards(Handler[int]):
    cards = Table(key=str, value=str)
    limits = Table(key=str, value=dict[str, int], mutable=True)
    more = 0

    def on_record(self, record: Record[int]) -> None:
        name = (record.key or b"").decode()
        self.cards[name] = "4111-1111"
        self.limits["all"] = {name: record.value + self.more}


class MoreCards(Cards):
    more = 1


def raising(old: str) -> int:
    raise ValueError(f"bad card {old}")


class UnreadableCards(Handler[int]):
    cards = Table(key=str, value=int, version=2, upcasters={1: raising})
    limits = Table(key=str, value=dict[str, int], mutable=True)

    def on_record(self, record: Record[int]) -> None:
        """Handles nothing."""


@pytest.mark.parametrize("code", [MoreCards, UnreadableCards])
def test_no_text_quotes_a_key_or_a_value_to_those_without_token(code: type[Handler[int]]) -> None:
    """Errors quote them, and a field may be the key of a map."""
    driver = Driver(Cards)
    driver.feed(1, key="ann:x@example.org")
    driver.take_full()
    shadow = DriverShadow(driver, code)
    for amount in range(3):
        shadow.look()
        driver.feed(amount, key="ann:x@example.org")
    shadow.look()
    whole = shadow.shadow.report()
    assert "ann:x" in str(whole)
    settings = Settings(ops=OpsSettings(listen="127.0.0.1:0"))
    said = json.dumps(shown(settings, shadow)).replace(shadow.names.group, "")
    assert not [secret for secret in ("ann", "x@example", "4111") if secret in said]


class Large(Handler[int]):
    sums = Table(key=str, value=int)
    more = 0

    def on_record(self, record: Record[int]) -> None:
        self.sums["all"] = 2**53 + record.value + self.more


class MoreLarge(Large):
    more = 1


def test_large_ints_are_text_because_a_browser_would_round_them() -> None:
    driver = Driver(Large)
    driver.feed(1, key="first")
    driver.take_full()
    shadow = DriverShadow(driver, MoreLarge)
    shadow.look()
    driver.feed(0, key="ann")
    shadow.look()
    with served(shadow, state="on", token=Secret(TOKEN)) as url:
        example = report(url, TOKEN)["partitions"][0]["examples"][0]
    assert (example["live"], example["new"]) == ("9007199254740992", "9007199254740993")


def shown(settings: Settings, shadow: DriverShadow) -> list[Any]:
    """What anyone is shown by the shadow's server."""
    routes = routes_of(settings, shadow.shadow, shadow.names)
    asked = [HttpRequest("GET", path) for path in ("/report", "/ready", "/metrics")]
    return [routes[each.path](each).body.decode() for each in asked]


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")
def test_the_page_as_a_person_sees_it(page: Browser) -> None:
    shadow = shadowed()
    with served(shadow, state="on", token=Secret(TOKEN)) as url:
        page.open(f"{url}/")
        await_true(lambda: page.text("#token h2"), "it asks for the token")
        assert "total" not in page.text("body")
        page.type("#token-text", TOKEN + ENTER)
        await_true(lambda: page.text("#verdict") == "different", "it shows the verdict")
        assert page.text("#service") == f"Shadow of {shadow.names.group}"
        assert "since 20" in page.text("#about")
        rows = page.run("return [...document.querySelectorAll('#differences tbody tr')].map((row) => row.innerText)")
        assert [row.split("\t")[1:5] for row in rows][:2] == [
            ["outputs fills", "differs", "5", "5"],
            ["table totals", "differs", "5", "1"],
        ]
        assert any(row.split("\t")[1:3] == ["table entries", "equal"] for row in rows)
        assert "following" in page.text("#partitions")
        assert "ms" in page.text("#totals") or " s" in page.text("#totals")
        assert '{"account":"<b>ann</b>","total":0,"fee":1}' in page.text("#examples")
        if IMAGES is not None:
            page.screenshot(IMAGES / "shadow.png")
        page.resize(420, 900)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        assert [each for each in page.complaints() if "401" not in each] == []
