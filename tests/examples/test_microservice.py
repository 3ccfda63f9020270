"""examples/microservice as it runs: two web servers of one group, one of them killed; and what HTTP says meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, cycle
from pathlib import Path

import pytest
from examples.microservice.app import service as declared
from tests.support.browser import Browser, missing
from tests.support.desk import TOKEN, Reply, ask, await_true
from tests.support.round_robin import RoundRobin

from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config import load
from statehold.dev import Cluster
from statehold.dev.ports import free_ports

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4
README = (ROOT / "examples/microservice/README.md").read_text()
#: as the README starts it, without its port
COMMAND = shlex.split(" ".join(re.findall(r"(uvicorn examples\S+) --port 8000(.*)", README)[0]))
ACCOUNTS = [f"account-{number}" for number in range(12)]


class Web:
    """One uvicorn with the application."""

    def __init__(self, servers: str, namespace: str, directory: Path) -> None:
        port = self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ,
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
            "STATEHOLD_SERVICE__NAMESPACE": namespace,
            "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
            "STATEHOLD_OPS__ADVERTISED": f"{self.url}/ops",
            "STATEHOLD_OPS__TOKEN": TOKEN,
            "STATEHOLD_OPS__STATE": "on",
        }
        self._log = (directory / f"web-{port}.log").open("w+b")
        command = [sys.executable, "-m", *COMMAND, "--port", str(port)]
        self._start = partial(subprocess.Popen, command, cwd=ROOT, env=environment, stdout=self._log, stderr=self._log)
        self.process = self._start()

    def kill_and_start(self) -> None:
        """Kill it, and start another one at its port."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def ask(self, path: str, token: str = "", method: str = "GET", **headers: str) -> Reply | None:
        """None while no server listens."""
        try:
            return ask(self.url, path, token, method, None, **headers)
        except ConnectionError:
            return None

    def pay(self, account: str, cents: int, key: str) -> Reply:
        """Post a payment until it is answered: 503 and 504 say that it may be posted again."""
        while True:
            reply = self.ask(f"/payments/{account}?cents={cents}", method="POST", **{"Idempotency-Key": key})
            assert reply is not None
            if reply.status not in (503, 504):
                return reply
            assert reply.headers["retry-after"] == "1"

    def balance(self, account: str, after: str = "") -> int:
        reply = self.ask(f"/balances/{account}?after={after}")
        while reply is not None and reply.status == 503:
            reply = self.ask(f"/balances/{account}?after={after}")
        assert reply is not None
        assert reply.status == 200, reply
        return int(reply.json["balance"])

    def says(self, path: str, status: int) -> bool:
        reply = self.ask(path)
        return reply is not None and reply.status == status

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


@contextlib.contextmanager
def started(kafka: Cluster, directory: Path, count: int) -> Iterator[list[Web]]:
    """Start this number of instances with topics of their own."""
    namespace = f"web-{uuid.uuid4().hex[:8]}."
    environment = {
        "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "STATEHOLD_SERVICE__NAMESPACE": namespace,
    }
    names = Names(declared.name, declared.input, namespace)
    findings = ServiceTopics(load(env=environment), names, output_topics(declared.handler, names)).create(
        "end", partitions=PARTITIONS
    )
    assert all(finding.good for finding in findings), findings
    webs = [Web(kafka.bootstrap_servers, namespace, directory) for _ in range(count)]
    try:
        yield webs
    finally:
        for web in webs:
            web.end()


@pytest.fixture
def webs(kafka: Cluster, tmp_path: Path) -> Iterator[tuple[Web, Web]]:
    with started(kafka, tmp_path, 2) as (first, second):
        yield first, second


def test_two_of_them_and_one_is_killed(webs: tuple[Web, Web]) -> None:
    first, second = webs
    for web in webs:
        await_true(lambda: web.says("/ops/ready", 200), "both are ready")  # noqa: B023
    held = "statehold_partitions_assigned"
    await_true(
        lambda: all(f"{held}{{" in metrics(web) and f"}} {PARTITIONS / 2}" in metrics(web) for web in webs), "two each"
    )
    for account in ACCOUNTS:
        paid = first.pay(account, 500, "order-1")
        assert (paid.status, paid.json["balance"]) == (200, 500)
        assert second.balance(account, paid.json["receipt"]) == 500
        assert second.pay(account, 500, "order-1").json == paid.json
        assert second.pay(account, 700, "order-2").json["balance"] == 1200
    assert first.pay(ACCOUNTS[0], 501, "order-1").status == 409
    assert first.balance("nobody-was-here") == 0
    for path, method, status in (
        (f"/payments/{ACCOUNTS[0]}?cents=1", "POST", 422),
        ("/balances/ann?after=x", "GET", 400),
    ):
        reply = first.ask(path, method=method)
        assert reply is not None
        assert reply.status == status, reply  # no Idempotency-Key, no receipt
    assert first.pay(ACCOUNTS[0], 1, "").status == 422, "an empty Idempotency-Key would book each time"
    assert first.pay(ACCOUNTS[0], 10**26, "order-4").status == 422, "no table could store it"

    second.process.send_signal(signal.SIGKILL)
    second.process.wait()
    for account in ACCOUNTS:
        assert first.pay(account, 700, "order-2").json["balance"] == 1200
        last = first.pay(account, 1, "order-3")
        assert last.json["balance"] == 1201
        assert first.balance(account, last.json["receipt"]) == 1201
    await_true(lambda: first.says("/ops/ready", 200), "it is ready again")
    on_the_same_port(first)
    page, watch = open_stream(first, "/changes"), open_stream(first, "/ops/watch/balances")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) in (0, -signal.SIGTERM), "open streams do not hold its end"
    page.close()
    watch.close()


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")
def test_a_page_shows_balances_change_also_when_another_instance_dies(webs: tuple[Web, Web]) -> None:
    first, second = webs
    for web in webs:
        await_true(lambda: web.says("/ops/ready", 200), "both are ready")  # noqa: B023
    first.pay("before", 100, "order-1")
    with Browser() as page:
        page.open(first.url)
        await_true(lambda: "before" in page.text("#balances"), "the page has the balance of before")
        for account in ACCOUNTS:
            second.pay(account, 500, "order-1")
        await_true(lambda: page.text("#balances").count("5.00") == len(ACCOUNTS), "the page has all changes")
        second.process.send_signal(signal.SIGKILL)
        second.process.wait()
        for account in ACCOUNTS:
            first.pay(account, 250, "order-2")
        await_true(lambda: page.text("#balances").count("7.50") == len(ACCOUNTS), "the page has them after a takeover")
        assert page.text("#balances").split().count("before") == 1
        assert page.complaints() == []


class Follower:
    """Reads the stream of changes from one instance after the other; each continues by the last event's id."""

    def __init__(self, webs: tuple[Web, ...], position: str) -> None:
        self._webs, self._position = cycle(webs), position
        #: account -> its balances in the order of their events
        self.seen: dict[str, list[int]] = {account: [] for account in ACCOUNTS}
        self.streams = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read(next(self._webs))
            self._ended.wait(0.1)

    def _read(self, web: Web) -> None:
        connection = http.client.HTTPConnection(web.url.removeprefix("http://"), timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/changes", headers={"Last-Event-ID": self._position})
            answer = connection.getresponse()
            assert answer.status == 200
            self.streams += 1
            fields: dict[str, str] = {}
            while not self._ended.is_set() and (line := answer.readline()):
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                    continue
                change = json.loads(fields["data"])
                self.seen[change["key"]].append(change["value"])
                self._position, fields = fields["id"], {}


@pytest.mark.long
def test_a_follower_misses_no_change_while_instances_are_killed_in_turn(webs: tuple[Web, Web]) -> None:
    first, second = webs
    for web in webs:
        await_true(lambda: web.says("/ops/ready", 200), "both are ready")  # noqa: B023
    reply = first.ask("/balances")
    assert reply is not None
    follower, expected = Follower(webs, reply.json["position"]), list[int]()
    try:
        for turn in range(4):
            for number in range(5):
                payer, key = (second, first)[turn % 2], f"order-{turn}-{number}"
                paid = [payer.pay(account, 100, key).json["balance"] for account in ACCOUNTS]
                expected.append(100 * (5 * turn + number + 1))
                assert paid == [expected[-1]] * len(ACCOUNTS)
                if number == 2:
                    webs[turn % 2].kill_and_start()
            await_true(lambda: webs[turn % 2].says("/ops/ready", 200), "it is ready again")  # noqa: B023
        await_true(lambda: all(len(found) >= 20 for found in follower.seen.values()), "it has all changes")
    finally:
        follower.end()
    assert follower.seen == dict.fromkeys(ACCOUNTS, expected), "each balance once, in order"
    assert follower.streams > 2


class Customer:
    """Pays through the proxy, one payment after the other; what fails it sends again with the same key."""

    def __init__(self, port: int, account: str) -> None:
        self.url, self.account = f"http://127.0.0.1:{port}", account
        #: the receipt and the balance of each payment
        self.paid: list[tuple[str, int]] = []
        self.sent_again = 0
        self.balances: list[int] = []
        self.failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"customer-{account}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End after the payment that is under way."""
        self._ended.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def pay(self, number: int) -> Reply:
        return self._until_answered(
            f"/payments/{self.account}?cents={number + 1}", "POST", {"Idempotency-Key": f"order-{number}"}
        )

    def balance(self, receipt: str) -> int:
        return int(self._until_answered(f"/balances/{self.account}?after={receipt}", "GET", {}).json["balance"])

    def _until_answered(self, path: str, method: str, headers: dict[str, str]) -> Reply:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                reply = ask(self.url, path, "", method, None, **headers)
                if reply.status == 200:
                    return reply
                assert reply.status in (503, 504), reply
                assert reply.headers["retry-after"] == "1"
            self.sent_again += 1
            self._ended.wait(0.05)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                paid = self.pay(len(self.paid)).json
                self.paid.append((paid["receipt"], paid["balance"]))
                self.balances.append(self.balance(paid["receipt"]))
        except BaseException as error:  # noqa: BLE001  `end` raises it
            self.failure = error


@pytest.mark.long
def test_three_behind_a_plain_proxy_are_killed_in_turn_and_each_payment_counts_once(
    kafka: Cluster, tmp_path: Path
) -> None:
    with started(kafka, tmp_path, 3) as webs, RoundRobin([web.port for web in webs]) as proxy:
        for web in webs:
            await_true(lambda: web.says("/ops/ready", 200), "all are ready")  # noqa: B023
        customers = [Customer(proxy.port, account) for account in ACCOUNTS[:6]]
        try:
            for web in webs:
                before = [len(customer.paid) for customer in customers]
                await_true(lambda: all(len(c.paid) > n + 1 for c, n in zip(customers, before, strict=True)), "all pay")  # noqa: B023
                web.kill_and_start()
                await_true(lambda: web.says("/ops/ready", 200), "it is ready again")  # noqa: B023
        finally:
            for customer in customers:
                customer.end()
        assert sum(customer.sent_again for customer in customers) > 0
        for customer in customers:
            count = len(customer.paid)
            totals = list(accumulate(range(1, count + 1)))
            assert [balance for _, balance in customer.paid] == totals, "each payment once, in order"
            assert customer.balances == totals, "a balance includes the payment of its receipt"
            assert customer.pay(0).json["balance"] == 1, "a payment that is posted again has its first answer"
            assert customer.balance(customer.paid[-1][0]) == totals[-1]


def open_stream(web: Web, path: str) -> http.client.HTTPConnection:
    """Return the connection of a stream that has begun."""
    connection = http.client.HTTPConnection(web.url.removeprefix("http://"), timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 200
    return connection


def metrics(web: Web) -> str:
    reply = web.ask("/ops/metrics")
    return reply.body.decode() if reply is not None else ""


def on_the_same_port(web: Web) -> None:
    """Health, metrics, state and the console, below the application's mount."""
    assert 'statehold_partition_phase{partition="0",phase="live"' in metrics(web)
    assert web.says("/ops/live", 200)
    assert web.says("/ops/startup", 200)
    assert web.says("/ops/status", 401)
    status = web.ask("/ops/status", TOKEN)
    assert status is not None
    assert len(status.json["partitions"]) == PARTITIONS
    state = web.ask(f"/ops/state/balances/{ACCOUNTS[0]}", TOKEN)
    assert state is not None
    assert state.json["partition"] == murmur2(ACCOUNTS[0].encode(), PARTITIONS)
    assert state.json["value"] == 1201
    page = web.ask("/ops/")
    assert page is not None
    assert b"<title>statehold</title>" in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    bare = web.ask("/ops")
    assert bare is not None
    assert bare.status in (307, 308)
    assert bare.headers["location"].endswith("/ops/")
