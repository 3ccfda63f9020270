"""What an operator sees of durable calls: the console's page in a real browser, and the findings of the doctor."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.ops.test_console_group import findings, open_page
from tests.support.browser import Browser, missing
from tests.support.desk import Desk, Names, Order, a_desk, ask, await_true, create_topics, feed

from statehold import Call, CallResult, Record, Service
from statehold.config.sections.effects_timers_sinks import CallsSettings
from statehold.dev import Cluster
from statehold.errors import CallRejected
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Level
from statehold.ops.http.server import OpsServer

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]

over = threading.Event()
#: the amount that is posted to the system that is down
DOWN = 99


def settle(id: str, amount: int) -> int:
    """Another system: it rejects one amount, and answers another one only at the end of the test."""
    if amount == 13:
        raise CallRejected("no such account: <b>13</b>")
    over.wait()
    return amount


def post(id: str, amount: int) -> int:
    """A system that is down."""
    raise ConnectionError("no route to the ledger")


class Settling(Desk):
    settle = Call(settle, argument=int, result=int, timeout=600.0)
    post = Call(post, argument=int, result=int, backoff=0.01, outage_after=1)

    def on_record(self, record: Record[Order]) -> None:
        super().on_record(record)
        if record.value.amount == DOWN:
            self.post(record.value.amount)
        else:
            self.settle(record.value.amount)

    @settle.on_result
    def settled(self, done: CallResult[int, int]) -> None:
        """The answer is not needed."""

    @post.on_result
    def posted(self, done: CallResult[int, int]) -> None:
        """Likewise."""


def test_the_page_lists_dead_calls_first_and_then_those_that_wait(kafka: Cluster, page: Browser) -> None:
    names = Names.new(kafka.bootstrap_servers)
    over.clear()
    with ExitStack() as stack:
        service = a_desk(names, handler=Settling)
        service.settings = replace(service.settings, calls=CallsSettings(pending=2))
        create_topics(service, 1)
        stack.enter_context(OpsServer(service))
        stack.callback(service.stop)
        stack.callback(over.set)
        service.start()
        feed(names, [Order("ann", 7), Order("bob", 13)])
        rows = await_true(
            lambda: [row for row in ask(service.url, "/console/calls").json["rows"] if row["error"]], "one is dead"
        )
        assert rows[0]["id"] == f"{names.input}/0/1/settle/0"
        told = ask(service.url, "/console/calls").json
        assert told["counts"] == {"0": {"settle": 2, "post": 0}}
        assert [bool(row["error"]) for row in told["rows"]] == [True, False]
        assert all("argument" not in row and "key" not in row for row in told["rows"])
        page.open(f"{service.url}/")
        await_true(lambda: page.text("#verdict") == "ready", "it is ready")
        open_page(page, service.url, "calls")
        shown = await_true(lambda: page.text("#page table"), "the calls are there")
        assert shown.index("dead") < shown.index("pending")
        assert "no such account: <b>13</b>" in shown
        assert "statehold calls list" in page.text("#page code")
        assert findings(page) == []
        assert [each for each in page.complaints() if "404" not in each] == []
        assert 'statehold_call_seconds_count{call="settle"' in ask(service.url, "/metrics").body.decode()

        assert doctor(service) == [(Level.WARN, "1 calls are dead")]
        feed(names, [Order("cy", DOWN)])
        await_true(lambda: len(doctor(service)) == 3, "a system is down, and the calls are as many as may be")
        assert [level for level, _ in doctor(service)] == [Level.FAIL, Level.FAIL, Level.WARN]
        assert "the system behind post does not answer; 2 calls wait, the oldest since 20" in doctor(service)[0][1]
        assert "as many as calls.pending allows: no record is handled" in doctor(service)[1][1]


def doctor(service: Service) -> list[tuple[Level, str]]:
    case = Case.of_handler(service.settings, service.names, service.handler)
    return [(each.level, each.reason) for each in examine(case, ["durable-calls"])]


def test_a_service_without_calls_says_so(kafka: Cluster, page: Browser) -> None:
    names = Names.new(kafka.bootstrap_servers)
    with ExitStack() as stack:
        service = a_desk(names)
        create_topics(service, 1)
        stack.enter_context(OpsServer(service))
        stack.enter_context(service)
        page.open(f"{service.url}/")
        await_true(lambda: page.text("#verdict") == "ready", "it is ready")
        open_page(page, service.url, "calls")
        await_true(lambda: "has a handler with calls" in page.text("#page"), "it says so")
