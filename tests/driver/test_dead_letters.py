"""Dead letters in the driver: the key's order, what the state remembers, replays, and the limits."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest
from tests.support.handlers import Interval

from statehold import Handler, Output, Record, Table, dead_letter, park, retry, retry_later
from statehold.api.handler import EffectKey
from statehold.config.sections.effects_timers_sinks import EffectsSettings
from statehold.errors import (
    HandlerFailed,
    MessageRefused,
    OutputRefused,
    TooManyFailures,
    UndecodableRecord,
    UsageError,
)
from statehold.messages.dead_letter import BLOCKED_KEYS, DISCARDED, FAILED_AGAIN, DeadLetter, Resolution, read
from statehold.testing import Driver

DELTAS: list[Interval] = ["commit", 5.0]


class Posting(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Down(ConnectionError):
    """The other side does not answer."""


class Book(Handler[Posting]):
    on_failure: ClassVar = {
        ValueError: dead_letter(),
        ConnectionError: retry(2, seconds=0.2).then(dead_letter()),
        UndecodableRecord: dead_letter(),
    }
    balances = Table(key=str, value=int)
    lines = Output("lines", value=str)
    rejected: ClassVar[set[int]] = set()
    down = 0

    def on_record(self, record: Record[Posting]) -> None:
        posting = record.value
        balance = self.balances.get(posting.account, 0) + posting.amount
        self.balances[posting.account] = balance
        self.lines.send(f"{posting.account} {posting.amount}", key=posting.account)
        if posting.amount in Book.rejected:
            raise ValueError(f"{posting.amount} is rejected")
        if Book.down > 0:
            Book.down -= 1
            raise Down("no answer")


@pytest.fixture(autouse=True)
def _as_new() -> None:
    Book.rejected, Book.down = set(), 0


def dead_letters(driver: Driver) -> list[DeadLetter]:
    return [each for each in found(driver) if isinstance(each, DeadLetter)]


def found(driver: Driver) -> list[object]:
    driver.commit()
    return [read(message) for message in driver.broker.log(driver.names.dead, 0).committed()]


def post(driver: Driver, account: str, amount: int) -> int:
    return driver.feed(Posting(account, amount), key=account)


@pytest.mark.parametrize("interval", DELTAS)
def test_later_records_of_the_key_follow_and_others_continue(interval: Interval) -> None:
    Book.rejected = {13}
    driver = Driver(Book, delta_interval=interval)
    for account, amount in (("ann", 1), ("ann", 13), ("bob", 2), ("ann", 3), ("ann", 13), ("bob", 4)):
        post(driver, account, amount)
    assert driver.table("balances") == {"ann": 1, "bob": 6}
    assert driver.outputs("lines") == ["ann 1", "bob 2", "bob 4"]
    assert [(each.offset, each.why, each.previous) for each in dead_letters(driver)] == [
        (1, "raised", -1),
        (3, "followed", 1),
        (4, "followed", 3),
    ]
    first = dead_letters(driver)[0]
    assert (first.error, first.text, first.attempts, first.topic) == ("ValueError", "13 is rejected", 1, "input")
    assert first.value == b'{"account":"ann","amount":13}'
    assert driver.table(BLOCKED_KEYS)[b"ann"].waiting == 3
    driver.crash()
    Book.rejected = set()  # it would work now: what was decided stays decided
    driver.restore()
    assert driver.table("balances") == {"ann": 1, "bob": 6}
    assert driver.table(BLOCKED_KEYS)[b"ann"].waiting == 3
    post(driver, "ann", 5)
    assert [each.offset for each in dead_letters(driver)] == [1, 3, 4, 6]


@pytest.mark.parametrize("interval", DELTAS)
def test_a_released_key_is_handled_in_its_order_once_and_a_replay_does_the_same(interval: Interval) -> None:
    Book.rejected = {13}
    driver = Driver(Book, delta_interval=interval)
    for amount in (1, 13, 2, 3):
        post(driver, "ann", amount)
    Book.rejected = set()
    assert driver.release("ann", why="fixed") == 3
    driver.release("ann")  # asked for twice: the second one finds nothing to do
    post(driver, "ann", 4)  # handled before the commands: it follows, too
    driver.commit()
    assert driver.outputs("lines") == ["ann 1", "ann 13", "ann 2", "ann 3"]
    assert [each.offset for each in driver.dead_letters()] == [4]
    assert driver.release("ann") == 1
    driver.advance(1)
    post(driver, "ann", 5)
    assert driver.outputs("lines") == ["ann 1", "ann 13", "ann 2", "ann 3", "ann 4", "ann 5"]
    assert driver.table("balances") == {"ann": 28}
    assert driver.table(BLOCKED_KEYS) == {}
    driver.replay()
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {"ann": 28}


def test_a_dead_letter_that_fails_again_stays_at_the_head_of_its_key() -> None:
    Book.rejected = {13}
    driver = Driver(Book)
    for amount in (1, 13, 2):
        post(driver, "ann", amount)
    post(driver, "bob", 7)
    driver.release("ann")
    driver.advance(1)
    assert driver.outputs("lines") == ["ann 1", "bob 7"]
    assert [each.offset for each in driver.dead_letters()] == [1, 2]
    traces = [each for each in found(driver) if isinstance(each, Resolution)]
    assert [(each.what, each.offset, each.error, each.who) for each in traces] == [
        (FAILED_AGAIN, 1, "ValueError", "driver")
    ]
    assert driver.release("ann", discard=True, why="test data") == 2
    driver.advance(1)
    assert driver.dead_letters() == []
    traces = [each for each in found(driver) if isinstance(each, Resolution)]
    assert [(each.what, each.offset, each.why) for each in traces[1:]] == [
        (DISCARDED, 1, "test data"),
        (DISCARDED, 2, "test data"),
    ]
    post(driver, "ann", 5)
    assert driver.table("balances") == {"ann": 6, "bob": 7}
    driver.replay()


def test_a_retry_in_place_keeps_the_order_and_ends_in_a_dead_letter() -> None:
    Book.down = 2
    driver = Driver(Book)
    post(driver, "ann", 1)
    post(driver, "ann", 2)
    assert driver.outputs("lines") == ["ann 1", "ann 2"]
    Book.down = 3
    post(driver, "bob", 3)
    assert [(each.offset, each.error, each.attempts) for each in driver.dead_letters()] == [(2, "Down", 3)]
    assert [event for event, _ in driver.events].count("record_retried") == 4


def test_a_record_that_failed_and_then_worked_may_fail_again_in_a_replay() -> None:
    Book.down = 1
    driver = Driver(Book, delta_interval=60.0)
    post(driver, "ann", 1)
    driver.commit()
    driver.crash()
    Book.down = 2
    driver.restore()
    assert driver.table("balances") == {"ann": 1}
    assert Book.down == 0


def test_an_undecodable_record_and_one_without_a_key() -> None:
    Book.rejected = {13}
    driver = Driver(Book)
    driver.feed(b"no json", key="ann", headers=[("trace", b"t-1")])
    driver.feed(Posting("ann", 13))
    driver.feed(Posting("ann", 13))
    post(driver, "ann", 1)
    found = driver.dead_letters()
    assert [(each.offset, each.error, each.ordered) for each in found] == [
        (0, "UndecodableRecord", True),
        (1, "ValueError", False),
        (2, "ValueError", False),
        (3, "UndecodableRecord", True),
    ]
    assert (found[0].value, found[0].headers) == (b"no json", (("trace", b"t-1"),))
    Book.rejected = set()
    driver.release()
    driver.release()
    driver.advance(1)  # the one without a key is replayed once, however often that is asked
    assert driver.outputs("lines") == ["ann 13", "ann 13"]
    assert [each.offset for each in driver.dead_letters()] == [0, 3]


def test_a_rejected_output_is_the_first_failure_of_a_process() -> None:
    """It is no exception of the handler, and must not be retried in place without end."""

    class Sends(Book):
        on_failure: ClassVar = {OutputRefused: dead_letter()}

    driver = Driver(Sends)
    driver.broker.fail("send", MessageRefused("too large"), times=1)
    post(driver, "ann", 1)
    post(driver, "bob", 2)
    assert [(each.offset, each.error, each.text, each.attempts) for each in driver.dead_letters()] == [
        (0, "OutputRefused", "MessageRefused: too large", 1)
    ]
    assert driver.outputs("lines") == ["bob 2"]


def test_a_dead_letter_whose_output_is_rejected_again_fails_alone() -> None:
    class Sends(Book):
        on_failure: ClassVar = {OutputRefused: dead_letter()}

    driver = Driver(Sends)
    driver.broker.fail("send", MessageRefused("too large"), times=1)
    post(driver, "ann", 1)
    post(driver, "bob", 2)
    driver.broker.fail("send", MessageRefused("too large"), times=1)
    assert driver.release("ann") == 1
    driver.advance(1)
    post(driver, "bob", 3)
    assert driver.outputs("lines") == ["bob 2", "bob 3"]
    traces = [each for each in found(driver) if isinstance(each, Resolution)]
    assert [(each.what, each.offset, each.error) for each in traces] == [(FAILED_AGAIN, 0, "OutputRefused")]
    driver.release("ann")
    driver.advance(1)
    assert driver.table("balances") == {"ann": 1, "bob": 5}
    driver.release("ann")
    driver.replay()


def test_a_later_try_whose_output_is_rejected_follows_its_policy() -> None:
    class Sends(Hooks):
        on_failure: ClassVar = {OutputRefused: dead_letter(ordered=False), ValueError: retry_later(60)}

    driver = Driver(Sends)
    Hooks.rejected = {13}
    driver.feed(Posting("ann", 13), key="ann")
    driver.commit()
    Hooks.rejected = set()
    driver.broker.fail("send", MessageRefused("too large"), times=1)
    driver.advance(61)
    driver.feed(Posting("ann", 1), key="ann")
    assert [line.split()[0] for line in driver.outputs("lines")] == ["1"]
    assert [(each.offset, each.error, each.attempts) for each in driver.dead_letters()] == [(0, "OutputRefused", 2)]


def test_a_rejected_dead_letter_fails_the_partition() -> None:
    """What was decided cannot be carried out, and nothing is passed over."""
    Book.rejected = {13}
    driver = Driver(Book)
    post(driver, "ann", 13)
    driver.commit()
    driver.release("ann")
    driver.broker.fail("send", MessageRefused("no room"), times=1)
    with pytest.raises(OutputRefused, match="no room"):
        driver.advance(1)
    driver.restore()
    driver.advance(1)
    assert [each.offset for each in driver.dead_letters()] == [0]


def test_a_flood_of_failures_is_an_outage() -> None:
    Book.rejected = {13}
    driver = Driver(Book)
    for number in range(20):
        post(driver, f"k{number}", 13)
    with pytest.raises(TooManyFailures, match="21 records in a row"):
        post(driver, "last", 13)
    assert len(driver.dead_letters()) == 20
    Book.rejected = set()
    driver.restore()
    assert driver.outputs("lines") == ["last 13"]


def test_the_share_of_failures_is_limited_too() -> None:
    Book.rejected = {13}
    driver = Driver(Book)
    for number in range(100):
        post(driver, f"k{number}", 13)
        post(driver, "good", 1)
    with pytest.raises(TooManyFailures, match="101 of the newest 1000"):
        post(driver, "last", 13)


def test_an_abort_takes_the_dead_letter_and_what_it_left_in_the_state_along() -> None:
    Book.rejected = {13}
    driver = Driver(Book)
    post(driver, "ann", 1)
    post(driver, "ann", 13)
    post(driver, "ann", 2)
    driver.rebalance()
    post(driver, "ann", 3)
    assert driver.table("balances") == {"ann": 1}
    assert [(each.offset, each.why) for each in dead_letters(driver)] == [
        (1, "raised"),
        (2, "followed"),
        (3, "followed"),
    ]


class Hooks(Handler[Posting]):
    """No tables: the order does not matter."""

    on_failure: ClassVar = {ValueError: retry_later(60, 600)}
    lines = Output("lines", value=str)
    rejected: ClassVar[set[int]] = set()

    def on_record(self, record: Record[Posting]) -> None:
        self.lines.send(f"{record.offset} {record.value.amount} {dict(record.headers)} {record.timestamp}")
        if record.value.amount in Hooks.rejected:
            raise ValueError("not now")


@pytest.mark.parametrize("interval", DELTAS)
def test_a_record_retried_later_is_handled_once_and_blocks_no_other(interval: Interval) -> None:
    Hooks.rejected = {13, 14, 15}
    driver = Driver(Hooks, delta_interval=interval)
    for amount in (1, 13, 14, 15, 2):
        driver.feed(Posting("ann", amount), key="ann", headers=[("h", b"v")], timestamp=amount)
    assert [line.split()[0] for line in driver.outputs("lines")] == ["0", "4"]
    driver.advance(50)
    driver.crash()
    driver.restore()
    Hooks.rejected = {14, 15}
    driver.advance(15)
    assert driver.outputs("lines")[2:] == ["1 13 {'h': b'v'} 13"]
    driver.advance(500)
    assert len(driver.outputs("lines")) == 3
    Hooks.rejected = {15}
    driver.crash()
    driver.restore()
    driver.advance(200)
    assert driver.outputs("lines")[3:] == ["2 14 {'h': b'v'} 14"]
    assert [(each.offset, each.attempts, each.ordered, each.headers) for each in driver.dead_letters()] == [
        (3, 3, False, (("h", b"v"),))
    ]
    driver.crash()
    driver.restore()
    driver.advance(2000)
    assert len(driver.outputs("lines")) == 4
    Hooks.rejected = set()
    driver.release()
    driver.advance(1)
    assert driver.outputs("lines")[4:] == ["3 15 {'h': b'v'} 15"]
    Hooks.rejected = {1, 2}  # what was decided stays decided, and comes back where it came back
    with pytest.raises(HandlerFailed):
        driver.replay()
    Hooks.rejected = set()
    driver.replay()


class Log(Handler[Posting]):
    """The order in which an account's postings were handled."""

    on_failure: ClassVar = {ValueError: retry_later(60, 600, any_order=True)}
    lines = Table(key=str, value=list[int], mutable=True)
    calls = 0

    def on_record(self, record: Record[Posting]) -> None:
        type(self).calls += 1
        posting = record.value
        self.lines[posting.account] = [*self.lines.get(posting.account, []), posting.amount]
        if posting.amount in Book.rejected:
            raise ValueError(f"{posting.amount} is rejected")


class Posts(Log):
    def on_record(self, record: Record[Posting]) -> None:
        super().on_record(record)
        if record.value.amount == 13:
            self.effect(nothing)


def nothing(key: EffectKey) -> None:
    """A side effect."""


class Waits(Log):
    on_failure: ClassVar = {ValueError: retry_later(60, any_order=True).then(park())}


def test_a_handler_with_tables_tries_nothing_later_unless_it_says_so() -> None:
    class Stateful(Book):
        on_failure: ClassVar = {ValueError: retry_later(60)}

    class Declared(Book):
        on_failure: ClassVar = {ValueError: retry_later(60, any_order=True)}

    with pytest.raises(UsageError, match=r"keeps state \(balances\)"):
        Driver(Stateful)
    Book.rejected = {13}
    driver = Driver(Declared, delta_interval=3600.0)
    post(driver, "ann", 13)
    post(driver, "ann", 1)
    Book.rejected = set()
    driver.advance(61)
    assert driver.outputs("lines") == ["ann 1", "ann 13"]
    post(driver, "ann", 2)
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {"ann": 16}
    driver.replay()


def test_a_replay_handles_a_record_retried_later_where_it_came_back() -> None:
    """A table that shows the order: the replay must not take it from the input."""
    driver = Driver(Log, delta_interval=30.0)
    Book.rejected = {13, 14}
    for amount in (1, 13, 2, 14, 3):
        post(driver, "ann", amount)
    driver.advance(61)  # 13 and 14 fail again
    Book.rejected = {14}
    post(driver, "ann", 4)
    driver.advance(601)
    post(driver, "ann", 5)
    assert driver.table("lines") == {"ann": [1, 2, 3, 4, 13, 5]}
    assert [(each.offset, each.attempts) for each in driver.dead_letters()] == [(3, 3)]
    for batches in (1, 4, [1, 3]):
        driver.replay(batches)
    driver.crash()
    driver.restore()
    assert driver.table("lines") == {"ann": [1, 2, 3, 4, 13, 5]}
    driver.crash()
    driver.restore()
    driver.advance(700)
    assert driver.table("lines") == {"ann": [1, 2, 3, 4, 13, 5]}


def test_a_delay_may_end_in_a_partition_that_waits() -> None:
    driver = Driver(Waits)
    Book.rejected = {13}
    post(driver, "ann", 13)
    post(driver, "ann", 1)
    with pytest.raises(HandlerFailed, match="13 is rejected") as caught:
        driver.advance(61)
    assert caught.value.position == 0
    driver.restore()
    with pytest.raises(HandlerFailed):
        driver.advance(1)
    Book.rejected = set()
    driver.restore()
    driver.advance(1)
    post(driver, "ann", 2)
    assert driver.table("lines") == {"ann": [1, 13, 2]}


def test_records_that_fail_again_are_each_handled_a_few_times_only() -> None:
    driver = Driver(Log)
    Book.rejected = {12, 13}
    for number in range(900):
        post(driver, "ann", 1 if number % 12 else 12 + number // 12 % 2)
    before = Log.calls
    Book.rejected = {13}
    driver.advance(75)
    assert driver.dead_letters() == []
    assert driver.table("lines")["ann"].count(12) == 38
    assert Log.calls - before < 500
    driver.advance(1200)
    assert len(driver.dead_letters()) == 37


def test_no_record_follows_a_dead_letter_of_a_retry_topic() -> None:
    class Ends(Log):
        on_failure: ClassVar = {ValueError: retry_later(60, any_order=True).then(dead_letter())}

    driver = Driver(Ends)
    Book.rejected = {13}
    post(driver, "ann", 13)
    driver.advance(61)
    post(driver, "ann", 1)
    assert driver.table("lines") == {"ann": [1]}
    assert [(each.offset, each.ordered) for each in driver.dead_letters()] == [(0, False)]


def test_a_removed_delay_is_logged_while_records_wait_for_it() -> None:
    class Other(Hooks):
        on_failure: ClassVar = {ValueError: retry_later(600)}

    def reported(kind: type[Hooks]) -> list[tuple[str, int]]:
        driver.crash()
        driver._factory = kind
        before = len(driver.events)
        driver.restore()
        unread = [fields for event, fields in driver.events[before:] if event == "retries_unread"]
        assert all("add retry_later(60) again until `statehold lag` counts no" in each["cause"] for each in unread)
        return [(each["topic"], each["offset"]) for each in unread]

    driver = Driver(Hooks)
    Hooks.rejected = {13}
    driver.feed(Posting("ann", 13), key="ann")
    driver.commit()
    assert reported(Hooks) == []
    assert reported(Other) == reported(Other) == [("hooks.input.retry.60", 0)]
    driver.feed(Posting("ann", 1), key="ann")
    Hooks.rejected = set()
    driver.advance(1000)
    assert len(driver.outputs("lines")) == 1
    assert reported(Hooks) == []
    driver.advance(1)
    assert len(driver.outputs("lines")) == 2, "it was kept"
    assert reported(Other) == [], "nothing waits"


def test_a_paused_partition_retries_nothing() -> None:
    driver = Driver(Hooks)
    Hooks.rejected = {13}
    driver.feed(Posting("ann", 13), key="ann")
    driver.commit()
    driver.command("pause", via_control_topic=True)
    driver.advance(1)
    Hooks.rejected = set()
    driver.advance(1000)
    assert driver.outputs("lines") == []
    driver.command("resume", via_control_topic=True)
    driver.advance(1)
    assert len(driver.outputs("lines")) == 1


def test_a_retried_record_waits_while_too_many_side_effects_are_pending() -> None:
    driver = Driver(Posts, run_effects=True)
    driver.settings = replace(driver.settings, effects=EffectsSettings(pending=20))
    driver.fail_effects(ConnectionError("no answer"))
    Book.rejected = {13}
    for _ in range(60):
        post(driver, "good", 0)
        post(driver, "ann", 13)
    Book.rejected = set()
    driver.advance(100)
    assert len(driver.pending_effects) <= 21
    driver.fail_effects(None)
    for _ in range(10):
        driver.advance(100)
    assert driver.pending_effects == []
    assert len({call.key for call in driver.effects}) == 60


def test_a_replay_sends_no_dead_letter_again() -> None:
    """The record that follows its key has no delta, so the next owner handles it again."""
    driver = Driver(Book, delta_interval=3600.0, autocommit=False)
    Book.rejected = {13}
    post(driver, "ann", 13)
    post(driver, "ann", 1)
    assert [each.offset for each in dead_letters(driver)] == [0, 1]
    post(driver, "ann", 2)
    assert [each.offset for each in dead_letters(driver)] == [0, 1, 2]
    driver.crash()
    driver.restore()
    assert [fields["records"] for event, fields in driver.events if event == "replayed"][-1] > 0
    post(driver, "bob", 3)
    assert [each.offset for each in dead_letters(driver)] == [0, 1, 2]
