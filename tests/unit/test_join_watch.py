"""A join that lasts long is an outage only if the group's coordinator does not answer another client either."""

from __future__ import annotations

from tests.system.processes import await_true

from statehold.errors import KafkaTrouble
from statehold.health.connectivity import GROUP, Contact, NoContact
from statehold.kafka.clients.join_watch import JoinWatch
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
