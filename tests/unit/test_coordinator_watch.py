"""A coordinator that answers no heartbeat, or during a long join no other client either, is an outage."""

from __future__ import annotations

import itertools

from tests.support.processes import await_true

from statehold.errors import KafkaTrouble
from statehold.health.connectivity import GROUP, Contact, NoContact
from statehold.kafka.clients.coordinator_watch import HeartbeatWatch, JoinWatch
from statehold.telemetry.log_events import Log


class Lab:
    """A watch with a clock of the test's; `answers`: whether the coordinator answers the questions."""

    def __init__(self) -> None:
        self.now, self.answers, self.asked, self.answered = 100.0, True, 0, 0
        self.contact = Contact(NoContact(), lambda: self.now, Log())
        self.watch = JoinWatch(self.ask, self.contact, lambda: self.now)

    def ask(self) -> None:
        self.asked += 1
        if not self.answers:
            raise KafkaTrouble("no answer")

    def pass_seconds(self, seconds: int, *, joining: bool) -> None:
        """Look once a second, each time after the last question has ended."""
        for _ in range(seconds):
            self.now += 1.0
            self.watch.saw(joining=joining)
            await_true(lambda: not self.watch._asking, "the answer")


def test_a_short_join_asks_nothing() -> None:
    lab = Lab()
    for _ in range(10):
        lab.pass_seconds(2, joining=True)
        lab.pass_seconds(1, joining=False)
    assert lab.asked == 0


def test_a_long_join_of_a_reachable_group_is_no_outage() -> None:
    lab = Lab()
    lab.pass_seconds(300, joining=True)
    assert 50 < lab.asked <= 100
    assert lab.contact.view() is None


def test_an_outage_counts_from_the_last_answer() -> None:
    lab = Lab()
    lab.pass_seconds(60, joining=True)
    last, lab.answers = lab.watch._answered, False
    lab.pass_seconds(10, joining=True)
    view = lab.contact.view()
    assert view is not None
    assert last is not None
    assert view["seconds"] == lab.now - last
    assert "a join" in view["cause"]
    lab.answers = True
    lab.pass_seconds(3, joining=True)
    assert lab.contact.view() is None


def test_an_answer_after_the_join_says_nothing() -> None:
    lab = Lab()
    lab.answers = False
    lab.pass_seconds(3, joining=True)
    lab.contact.works(GROUP)
    lab.pass_seconds(1, joining=False)
    lab.watch._question(lab.now)
    assert lab.contact.view() is None


class Heart:
    """A member in its group; the coordinator answers a heartbeat each 3 s until it is frozen."""

    def __init__(self) -> None:
        self.now, self.answers, self.heard, self.frozen = 100.0, 0, 100.0, False
        self.watch = HeartbeatWatch(lambda: self.now)

    def second(self) -> float | None:
        self.now += 1.0
        waits = self.frozen and self.now - self.heard >= 3.0
        if not self.frozen and self.now - self.heard >= 3.0:
            self.answers, self.heard = self.answers + 1, self.now
        numbers = {"rx": self.answers, "waitresp_cnt": int(waits), "rxidle": (self.now - self.heard) * 1e6}
        return self.watch.silent_since(numbers)


def test_heartbeats_that_are_answered_are_no_outage() -> None:
    heart = Heart()
    assert [heart.second() for _ in range(60)] == [None] * 60


def test_an_unanswered_heartbeat_is_seen_within_seconds_and_counts_from_the_last_answer() -> None:
    heart = Heart()
    for _ in range(10):
        heart.second()
    heart.frozen = True
    seen = [heart.second() for _ in range(8)]
    first = next(at for at, since in enumerate(seen) if since is not None)
    assert first < 7
    assert set(seen[first:]) == {heart.heard}
    assert heart.watch.silent_since({"rx": heart.answers, "waitresp_cnt": 1, "rxidle": -1}) == heart.heard
    heart.frozen = False
    assert heart.second() is None


def test_one_heartbeat_on_its_way_each_second_is_no_outage() -> None:
    seconds = itertools.count(0.0)
    watch = HeartbeatWatch(lambda: next(seconds))
    assert watch.silent_since({}) is None
    for answers in range(10):
        assert watch.silent_since({"rx": answers, "waitresp_cnt": 1, "rxidle": 15e6}) is None
