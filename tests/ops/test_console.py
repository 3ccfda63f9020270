"""The console in a real browser, during a takeover: what a person at night would see and do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.browser import ENTER, TAB, Browser, missing
from tests.support.desk import TOKEN, Desk, Names, Order, a_desk, ask, await_true, create_topics, feed, with_token

from statehold import Record, Service
from statehold.config.sections.processing import SnapshotSettings
from statehold.dev import Cluster
from statehold.ops.http.server import OpsServer

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]

#: where pictures for the docs go, if they are wanted: STATEHOLD_IMAGES=docs/images
IMAGES = Path(os.environ["STATEHOLD_IMAGES"]) if "STATEHOLD_IMAGES" in os.environ else None
PARTITIONS = 4
#: records into a replay at which it waits
HALF = 700
PEOPLE = [f"person-{number}" for number in range(800)]
#: notes each phase that a tile shows, from the moment it is run
WATCH = """
window.shown = {};
const note = () => document.querySelectorAll('#tiles > li').forEach((tile) => {
  const list = window.shown[tile.dataset.partition] ??= [];
  if (list.at(-1) !== tile.dataset.phase) list.push(tile.dataset.phase);
});
note();
new MutationObserver(note).observe(document.querySelector('#tiles'),
  {subtree: true, childList: true, attributes: true, attributeFilter: ['data-phase']});
"""


class Gated(Desk):
    """Its restores and, half way, its replays wait for a file, so that a reader need not be quick to see one."""

    half: Path
    handled = 0

    def on_record(self, record: Record[Order]) -> None:
        self.handled += 1
        if self.replaying and self.handled == HALF:
            await_true(self.half.exists, "the second gate opens")
        super().on_record(record)


def open_all() -> None:
    """So that a test that fails ends."""
    for gate in (Gated.gate, Gated.half):
        if gate is not None:
            gate.touch()


@contextmanager
def trade(names: Names) -> Iterator[None]:
    """Orders come all the time."""
    over = threading.Event()

    def run() -> None:
        amount = 0
        while not over.wait(0.25):
            amount += 1
            feed(names, [Order(person, amount) for person in PEOPLE[:: 4 + amount % 4]])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def picture(page: Browser, name: str) -> None:
    if IMAGES is not None:
        page.screenshot(IMAGES / f"{name}.png")


def phases(service: Service) -> list[str]:
    return [each["phase"] for each in service.status()["partitions"]]


def number(text: str) -> int:
    """0 where none is shown yet."""
    digits = text.replace(",", "")
    return int(digits) if digits.isdecimal() else 0


def fact(page: Browser, partition: int, name: str) -> Callable[[], int]:
    """A figure on a tile."""
    find = """
      const terms = [...document.querySelectorAll(`#tiles > li[data-partition="${arguments[0]}"] dt`)];
      return terms.find((term) => term.innerText === arguments[1])?.nextSibling.innerText ?? ''
    """
    return lambda: number(str(page.run(find, partition, name)))


def test_a_takeover_as_a_person_sees_it(kafka: Cluster, page: Browser, tmp_path: Path) -> None:
    names = Names.new(kafka.bootstrap_servers)
    if IMAGES is not None:
        names = Names(kafka.bootstrap_servers, "clearing", "trades", "fills")
    Gated.gate, Gated.half = tmp_path / "gate", tmp_path / "half"
    # Commit records without deltas: the next owner replays.
    options = with_token(state="on", snapshot=SnapshotSettings(delta_interval=3600.0, on_stop=False))
    first, second = a_desk(names, "web1", **options), a_desk(names, "web2", handler=Gated, **options)
    create_topics(first, PARTITIONS)
    feed(names, [Order(person, 1) for person in PEOPLE * 8])
    with ExitStack() as stack:
        stack.enter_context(OpsServer(first))
        stack.enter_context(first)
        await_true(lambda: phases(first) == ["live"] * PARTITIONS, "the first is live")
        stack.enter_context(trade(names))
        await_true(lambda: ask(first.url, "/state/accounts/person-0", TOKEN).status == 200, "it has state")
        await_true(
            lambda: sum(each["position"] for each in first.status()["partitions"]) > len(PEOPLE) * 7, "much state"
        )
        url = stack.enter_context(OpsServer(second)).url
        stack.callback(second.stop)
        stack.callback(open_all)
        second.start()
        log_in(page, url, names.service)
        restoring(page, first.url)
        first.stop()  # all partitions come to the second
        await_true(lambda: len(phases(second)) == PARTITIONS, "the second has them all")
        Gated.gate.touch()
        replaying(page)
        Gated.half.touch()
        await_true(lambda: phases(second) == ["live"] * PARTITIONS, "the second is live")
        live(page)
        keyboard(page)
        page.run("location.hash = '#/lookup'")
        look_up(page)
        assert [each for each in page.complaints() if "401" not in each and "404" not in each] == []
        asked = page.run("return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)")
        assert set(asked) == {url}


def log_in(page: Browser, url: str, service: str) -> None:
    page.open(f"{url}/")
    await_true(lambda: page.text("#token h2"), "it asks for the token")
    page.type("#token-text", TOKEN + ENTER)
    await_true(lambda: page.text("#service") == service, "it shows the service")
    page.run(WATCH)


def restoring(page: Browser, other: str) -> None:
    await_true(lambda: "restoring" in str(page.run("return Object.values(window.shown)")), "a tile is restoring")
    await_true(lambda: page.text("#verdict") == "not ready", "it is not ready")
    await_true(lambda: "restoring" in page.text("#trouble"), "it says why")
    await_true(lambda: other in page.text("#instances"), "the group's other instance is shown")
    await_true(lambda: f"at {other}" in page.text("#tiles"), "and the partitions that it holds")
    picture(page, "console-restoring")


def replaying(page: Browser) -> None:
    bars = """
      const bars = [...document.querySelectorAll('#tiles progress')];
      return bars.filter((bar) => bar.checkVisibility()).map((bar) => bar.value)
    """
    found = await_true(lambda: len(seen := page.run(bars)) == PARTITIONS and seen, "a bar on each tile")
    await_true(lambda: all(0 < value < 1 for value in page.run(bars)), f"bars stand in the middle, not {found}")
    assert page.text("#tiles").count("replay ") >= PARTITIONS
    picture(page, "console-takeover")
    page.resize(390, 844)
    assert page.run("return document.documentElement.scrollWidth") <= 390
    picture(page, "console-phone")
    page.resize(1280, 900)


def live(page: Browser) -> None:
    await_true(lambda: page.text("#verdict") == "ready", "the page says ready")
    seen: dict[str, list[str]] = page.run("return window.shown")
    for partition in range(PARTITIONS):
        phases = [phase for phase in seen[str(partition)] if phase in ("restoring", "replaying", "live")]
        assert phases[-2:] == ["replaying", "live"], seen
    assert any("restoring" in phases for phases in seen.values())
    await_true(lambda: "partitions 0\u20133 in " in page.text("#events"), "one line shows the takeover")
    page.click("#events summary")
    assert page.text("#events").count("live") >= PARTITIONS
    page.click("#events summary")
    position = fact(page, 0, "position")
    before = await_true(position, "there is a position")
    await_true(lambda: position() > before, "the numbers move")
    drawn = "return document.querySelector('#tiles .spark path:not(.under)').getAttribute('d')"
    line = page.run(drawn)
    await_true(lambda: page.run(drawn) not in ("", line), "the line moves")
    await_true(lambda: page.run(drawn).count("L") > 16 or IMAGES is None, "a line worth a picture")
    picture(page, "console-light")
    page.scheme("dark")
    picture(page, "console-dark")


def keyboard(page: Browser) -> None:
    """From the top of the page with Tab and Enter alone to a partition's own page."""
    page.run("document.activeElement?.blur()")
    focused = "return document.activeElement.getAttribute('href') ?? ''"
    for _ in range(20):
        page.press(TAB)
        if page.run(focused) == "#/partition/0":
            break
    assert page.run(focused) == "#/partition/0"
    page.press(ENTER)
    await_true(lambda: "Partition 0" in page.text("#page h2"), "the partition's page is open")
    await_true(lambda: "restore" in page.text("#page"), "with its timings")
    picture(page, "console-partition")
    for word in ("Last commit record", "digest", "Full snapshots in the commit record", "Its events", "live"):
        assert word in page.text("#page")


def look_up(page: Browser) -> None:
    await_true(lambda: page.text("#lookup-table"), "the tables are offered")
    page.type("#lookup-key", "person-7" + ENTER)
    await_true(lambda: '"orders"' in page.text("#lookup-result"), "the value is shown")
    page.run("document.querySelector('#lookup-key').value = ''")
    page.type("#lookup-key", "absent" + ENTER)
    await_true(lambda: "no key 'absent'" in page.text("#lookup-result"), "or that it is absent")
    page.run("document.querySelector('#lookup-key').value = ''")
    page.click("#lookup-prefix")
    page.type("#lookup-key", "person-79" + ENTER)
    await_true(lambda: "11 keys" in page.text("#lookup-result"), "the keys with the prefix")
