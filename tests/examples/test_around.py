"""examples/around as they run, killed with SIGKILL at each step; what came of it is recomputed from the input."""

from __future__ import annotations

import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from examples.feeding import Feed
from tests.examples.around import Outside, Scene, committed
from tests.support.desk import await_true

from examples.around import endofday, front, invoices
from statehold.dev import Cluster
from statehold.dev.ports import free_ports

pytestmark = pytest.mark.kafka


@pytest.fixture
def outside() -> Iterator[Outside]:
    outside = Outside(free_ports(1)[0])
    yield outside
    outside.close()


def orders(first: int, count: int) -> list[tuple[bytes, bytes]]:
    """Few customers, so that the numbers of their invoices depend on every order before."""
    return [
        (b"c%d" % (number % 7), msgspec.json.encode(invoices.Order(f"o{number}", f"c{number % 7}", number)))
        for number in range(first, first + count)
    ]


def test_every_invoice_is_posted_under_one_key_whenever_the_sender_is_killed(
    kafka: Cluster, tmp_path: Path, outside: Outside
) -> None:
    scene = Scene(
        kafka.bootstrap_servers,
        tmp_path,
        invoices.service,
        STATEHOLD_SNAPSHOT__DELTA_INTERVAL="off",
        INVOICES_URL=f"http://127.0.0.1:{outside.port}/invoices",
    )
    target = "examples.around.invoices:service"
    feed = Feed(kafka.bootstrap_servers, scene.names.input)
    try:
        # After the commit, before anything is sent: no server listens.
        process = scene.run(target)
        feed.send(orders(0, 40))
        scene.await_handled(40)
        scene.kill(process)
        assert outside.heard == []
        # Sent, not acknowledged: the process dies with the request in its hands, twice.
        outside.open()
        for first in (40, 60):
            process = scene.run(target)
            struck = threading.Event()

            def strike() -> None:
                scene.kill(process)  # noqa: B023
                struck.set()  # noqa: B023

            outside.at_next = strike
            feed.send(orders(first, 20))
            assert struck.wait(120)
        # Answered, but the next mark may not have said so.
        process = scene.run(target)
        scene.await_handled(80)
        before = len(outside.heard)
        feed.send(orders(80, 20))
        await_true(lambda: len(outside.heard) > before, "one more is posted", 120)
        scene.kill(process)
        process = scene.run(target)
        scene.await_handled(100)
        wanted = expected(scene)
        await_true(lambda: {key for key, _ in outside.heard} >= set(wanted), "every invoice is posted", 120)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        scene.close()
    bodies = defaultdict(set)
    for key, body in outside.heard:
        bodies[key].add(msgspec.json.decode(body, type=dict[str, str | int])["number"])
        assert msgspec.json.decode(body) == wanted[key], "none is invented, none is another one's"
    assert {key: len(found) for key, found in bodies.items()} == dict.fromkeys(wanted, 1)
    print(f"{len(wanted)} invoices, {len(outside.heard)} posts")


def expected(scene: Scene) -> dict[str, dict[str, object]]:
    """Key and body of every invoice, from the input alone."""
    numbers, found = Counter[str](), {}
    for partition, offset, value in committed(scene.servers, scene.names.input):
        order = msgspec.json.decode(value, type=invoices.Order)
        numbers[order.customer] += 1
        found[f"{scene.names.input}/{partition}/{offset}/0"] = {
            "order": order.id,
            "customer": order.customer,
            "amount": order.amount,
            "number": numbers[order.customer],
        }
    return found


def post(url: str, key: str, show: str, seats: int) -> bool:
    """False: no answer, or one that leaves it open."""
    request = urllib.request.Request(f"{url}/shows/{show}/seats?seats={seats}", method="POST")  # noqa: S310
    request.add_header("Idempotency-Key", key)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return bool(answer.status == 202)
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.long
def test_duplicate_posts_book_once(kafka: Cluster, tmp_path: Path, seed: int) -> None:
    chance, posts = random.Random(seed), 400
    scene = Scene(
        kafka.bootstrap_servers, tmp_path, front.service, "seats-booked", STATEHOLD_SNAPSHOT__DELTA_INTERVAL="off"
    )
    port = free_ports(1)[0]
    url, web = f"http://127.0.0.1:{port}", ("examples.around.front:app", "--port", str(port))
    try:
        service = scene.run("examples.around.front:service")
        uvicorn = scene.start(sys.executable, "-m", "uvicorn", *web)
        asked = {f"post-{scene.names.namespace}{number}": chance.randrange(1, 5) for number in range(posts)}
        for number, (key, seats) in enumerate(asked.items()):
            show = f"show-{number % 5}"
            until = time.monotonic() + 120
            while not post(url, key, show, seats):  # as a client does that heard nothing
                assert time.monotonic() < until, key
            if chance.random() < 0.01 or number in (1, 2):
                assert post(url, key, show, seats)
            if number == posts // 3:
                scene.kill(service)
                service = scene.run("examples.around.front:service")
            if number == 2 * posts // 3:
                scene.kill(uvicorn)
                uvicorn = scene.start(sys.executable, "-m", "uvicorn", *web)
                scene.kill(service)
                service = scene.run("examples.around.front:service")
        written = committed(kafka.bootstrap_servers, scene.names.input)
        scene.await_handled(len(written))
        assert len(written) > posts
    finally:
        scene.close()
    mine = [
        booked
        for _, _, value in committed(kafka.bootstrap_servers, "seats-booked")
        if (booked := msgspec.json.decode(value, type=front.Booked)).post in asked
    ]
    assert {booked.post: booked.seats for booked in mine} == asked
    assert len(mine) == posts, "none was booked twice"
    shows = Counter[str]()
    for booked in mine:
        shows[booked.show] += booked.seats
    assert shows == {f"show-{at}": max(b.taken for b in mine if b.show == f"show-{at}") for at in range(5)}
    print(f"seed {seed}: {posts} posts asked for, {len(written)} written, {len(mine)} booked")


def movements(first: int, count: int, run: str) -> list[tuple[bytes, bytes]]:
    accounts = [f"{run}a{number % 9}" for number in range(first, first + count)]
    return [
        (account.encode(), msgspec.json.encode(endofday.Movement(account, number)))
        for number, account in enumerate(accounts, first)
    ]


@pytest.mark.long
def test_every_movement_is_in_one_statement_though_the_clock_closes_the_day(kafka: Cluster, tmp_path: Path) -> None:
    """Nothing but marks: each owner replays it all, ticks included, and its digest must be that of the last one."""
    scene = Scene(
        kafka.bootstrap_servers,
        tmp_path,
        endofday.service,
        "statements",
        STATEHOLD_SNAPSHOT__DELTA_INTERVAL="off",
        STATEHOLD_SNAPSHOT__PERIODIC_FULL="false",
        STATEHOLD_TIMERS__IDLE="1",
        ENDOFDAY_DAY="2",
    )
    target, run = "examples.around.endofday:service", scene.names.namespace
    feed = Feed(kafka.bootstrap_servers, scene.names.input)

    def statements() -> list[endofday.Statement]:
        found = [value for _, _, value in committed(kafka.bootstrap_servers, "statements")]
        read = (msgspec.json.decode(value, type=endofday.Statement) for value in found)
        return [each for each in read if each.account.startswith(run)]

    def closed(count: int) -> bool:
        return sum(each.movements for each in statements()) == count

    try:
        process = scene.run(target)
        for kill in range(3):
            feed.send(movements(100 * kill, 100, run))
            scene.await_handled(100 * (kill + 1))
            if kill == 1:
                scene.await_true(lambda: closed(200), "the clock has closed the day")
            scene.kill(process)
            process = scene.run(target)
        scene.await_true(lambda: closed(300), "the clock has closed the last day")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        scene.close()
    reported, moved = Counter[str](), Counter[str]()
    for statement in statements():
        reported[statement.account] += statement.sum
    for _, _, value in committed(kafka.bootstrap_servers, scene.names.input):
        movement = msgspec.json.decode(value, type=endofday.Movement)
        moved[movement.account] += movement.amount
    assert reported == moved
    assert len({(each.account, each.until) for each in statements()}) == len(statements()), "a day is closed once"
