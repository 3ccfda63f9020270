"""What operators see of requests: counted once, with the commit, and never by a replay."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.driver.test_requests import Booked, Dying, Later, Payment, Payments
from tests.support.inside import lane

from statehold import Handler, Record
from statehold.errors import NoAnswerInTime, RequestConflict, RequestFailed
from statehold.messages.request import headers_of
from statehold.telemetry import metrics
from statehold.testing import Driver
from statehold.worker.status import LiveStatus

START = 1_000_000


def counted(driver: Driver) -> dict[str, float]:
    driver.commit()
    families = [each for each in driver.metrics.registry.collect() if f"{each.name}_total" == metrics.REQUESTS.name]
    return {sample.labels["what"]: sample.value for family in families for sample in family.samples}


def live(driver: Driver) -> LiveStatus:
    driver.commit()
    return LiveStatus.of(lane(driver).live())


def test_each_request_is_counted_by_what_became_of_it() -> None:
    driver = Driver(Payments)
    for _ in range(3):
        driver.ask(Payment("ann", 5), "ann", id="1", reply=Booked)
    with pytest.raises(RequestConflict):
        driver.ask(Payment("ann", 6), "ann", id="1")
    driver.feed(Payment("bob", 1), "bob")
    assert counted(driver) == {"taken": 1, "answered": 1, "repeated": 2, "conflict": 1}
    assert (live(driver).requests, live(driver).requests_waiting, live(driver).requests_since) == (1, 0, None)


def test_a_failed_request_is_counted_as_such_alone() -> None:
    driver = Driver(Dying)
    with pytest.raises(RequestFailed):
        driver.ask(Payment("ann", 13), "ann", id="1")
    assert counted(driver) == {"failed": 1}


def test_what_is_rolled_back_is_counted_once() -> None:
    driver = Driver(Payments, autocommit=False)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"))
    driver.rebalance()
    driver.commit()
    assert counted(driver) == {"taken": 1, "answered": 1}


def test_a_replay_counts_nothing() -> None:
    driver = Driver(Payments, delta_interval="off")
    for _ in range(2):
        driver.ask(Payment("ann", 5), "ann", id="1")
    driver.crash()
    driver.restore()
    driver.ask(Payment("ann", 5), "ann", id="1")
    assert counted(driver) == {"taken": 1, "answered": 1, "repeated": 2}


def test_a_request_waits_until_it_is_answered() -> None:
    driver = Driver(Later)
    for account, at in (("ann", START), ("bob", START + 1_000)):
        driver.feed(Payment(account, 5), account, headers_of("1", b"x"), timestamp=at)
    with pytest.raises(NoAnswerInTime):
        driver.ask(Payment("ann", 5), "ann", id="1", timestamp=START + 2_000)
    assert (live(driver).requests_waiting, live(driver).requests_since) == (2, START / 1000)
    driver.feed(Payment("cy", 1), "cy", timestamp=START + 10_500)  # the timer of ann is due
    assert (live(driver).requests_waiting, live(driver).requests_since) == (1, START / 1000 + 1)
    driver.feed(Payment("cy", 1), "cy", timestamp=START + 20_000)
    assert (live(driver).requests_waiting, live(driver).requests_since) == (0, None)
    assert counted(driver) == {"taken": 2, "joined": 1, "answered": 2}


class Silent(Payments):
    replies = Payments.replies

    def on_record(self, record: Record[Payment]) -> None:
        self.book(record.value)


def test_a_request_whose_id_is_kept_no_more_waits_no_more() -> None:
    driver = Driver(Silent)
    hour = int(timedelta(hours=1) / timedelta(milliseconds=1))
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"), timestamp=START)
    assert live(driver).requests_waiting == 1
    driver.feed(Payment("bob", 5), "bob", headers_of("1", b"x"), timestamp=START + hour)
    assert (live(driver).requests_waiting, live(driver).requests_since) == (1, (START + hour) / 1000)


class Plain(Handler[Payment]):
    def on_record(self, record: Record[Payment]) -> None:
        pass


def test_without_replies_there_is_nothing_to_see() -> None:
    driver = Driver(Plain)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"))
    assert counted(driver) == {}
    assert live(driver).requests is live(driver).requests_waiting is live(driver).requests_since is None
