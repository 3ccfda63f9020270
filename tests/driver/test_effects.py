"""Side effects: bounded so that a commit record always fits, made to fail, and pending until they are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support import inside

from statehold import Handler, Record, Table, Timer
from statehold.api.handler import EffectKey
from statehold.config.sections.effects_timers_sinks import EffectsSettings
from statehold.config.sections.processing import CommitSettings
from statehold.errors import HandlerFailed
from statehold.testing import Driver
from statehold.worker.handler.effect_calls import weight
from statehold.worker.handler.effect_recorder import effect_room


class Posting(Handler[str]):
    """One effect for each record, with the record as its argument."""

    seen = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        self.seen[record.value[:8]] = record.offset
        self.effect(post, record.value)


def post(key: EffectKey, body: str) -> None:
    """An external system."""


def test_the_effects_of_one_transaction_fit_its_commit_record() -> None:
    """A batch ends early: without that its mark would be refused, and with it a partition that did nothing wrong."""
    driver = Driver(Posting, batch=500)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=50_000))
    bodies = [f"{number:08}{'x' * 5000}" for number in range(500)]  # two and a half messages full
    driver.feed_all(bodies, key="k")
    driver.commit()
    assert [call.arguments[0] for call in driver.effects] == bodies
    assert len(driver.table("seen")) == 500
    room = effect_room(driver.settings)
    assert weight(driver.commit_record().effects) < 3 * room


class Commanded(Posting):
    def on_command(self, command: str, record: Record[bytes]) -> None:
        self.effect(post, command)


def test_a_command_counts_its_effects_from_0_whatever_came_before_it() -> None:
    """Its offset is one of another topic, and may be that of the record before it."""
    driver = Driver(Commanded, autocommit=False)
    driver.feed("one")
    driver.command("two", via_control_topic=True)
    driver.commit()
    topics = driver.names.input, driver.names.control
    assert [call.key for call in driver.effects] == [(topic, 0, 0, 0) for topic in topics]


def test_pending_effects_hold_back_records_and_nothing_is_lost() -> None:
    driver = Driver(Posting, batch=50)
    driver.settings = replace(driver.settings, effects=EffectsSettings(pending=20))
    driver.fail_effects(ConnectionError("down"))
    driver.feed_all([f"{number}" for number in range(50)])
    driver.advance(1.0)
    assert driver.effects == []
    assert 20 <= len(driver.pending_effects) < 50
    pending = driver.pending_effects
    driver.crash()
    driver.restore()
    assert driver.pending_effects[: len(pending)] == pending, "the next owner has the same, with the same keys"
    driver.fail_effects(None)
    driver.advance(5.0)
    driver.advance(5.0)
    assert [call.arguments[0] for call in driver.effects] == [f"{number}" for number in range(50)]
    assert len({call.key for call in driver.effects}) == 50
    assert driver.pending_effects == []


class Mixed(Handler[str]):
    """Some effects fail."""

    def on_record(self, record: Record[str]) -> None:
        self.effect(stuck if record.value == "stuck" else post, record.value)


def stuck(key: EffectKey, body: str) -> None:
    """An external system that does not answer."""


def test_an_idle_partition_records_within_seconds_which_effects_are_done() -> None:
    """Otherwise a kill would repeat them, however long ago they were done."""
    driver = Driver(Mixed, autocommit=False)
    driver.fail_effects(TimeoutError("slow"), "stuck")
    for body in ("a", "stuck", "stuck", "stuck"):
        driver.feed(body)
    driver.commit()
    driver.advance(3)
    assert [effect.function.rpartition(":")[2] for effect in driver.commit_record().effects] == ["stuck"] * 3


def test_an_effect_may_be_made_to_fail_by_its_name() -> None:
    driver = Driver(Posting, run_effects=True)
    driver.fail_effects(TimeoutError("slow"), "another")
    driver.feed("a")
    assert [call.function for call in driver.effects] == ["post"]
    driver.fail_effects(TimeoutError("slow"), "post")
    driver.feed("b")
    driver.commit()
    assert [call.arguments for call in driver.pending_effects] == [("b",)]


@pytest.mark.parametrize("interval", ["commit", 5.0, "off"])
def test_a_replay_requests_no_effects(interval: float) -> None:
    driver = Driver(Posting, delta_interval=interval)
    driver.feed_all(["a", "b"])
    before = driver.effects
    driver.advance(1.0)
    driver.crash()
    driver.restore()
    driver.feed("c")  # what a replay had asked for would be pending in the next commit record
    driver.commit()
    assert [call.arguments for call in driver.effects[len(before) :]] == [("c",)]
    assert driver.effects[: len(before)] == before


class Waiting(Posting):
    """Says at each record's own time, five seconds later, how many there were."""

    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        self.schedule(record.timestamp + 5000, len(self.seen), id="eod")

    def on_timer(self, timer: Timer) -> None:
        self.seen["timer"] = len(self.seen)


def test_a_partition_whose_records_wait_for_effects_is_not_idle() -> None:
    """A tick would overtake them."""
    driver = Driver(Waiting, batch=50)
    driver.settings = replace(driver.settings, effects=EffectsSettings(pending=20))
    driver.fail_effects(ConnectionError("down"))
    driver.feed_all([f"{number}" for number in range(50)])
    driver.advance(60.0)
    assert "timer" not in inside.lanes(driver)[0].engine().state.tables["seen"]
    driver.fail_effects(None)
    for _ in range(5):
        driver.advance(4.0)
    driver.advance(10.0)
    assert driver.table("seen")["timer"] == 50


def test_each_commit_record_names_the_effects_of_older_transactions_that_are_not_done() -> None:
    driver = Driver(Posting, run_effects=True)
    driver.fail_effects(ConnectionError("down"))
    for body in ("one", "two"):
        driver.feed(body)
        driver.commit()
    assert len(driver.commit_record().effects) == 2
    driver.crash()
    driver.fail_effects(None)
    driver.restore()
    driver.advance(60.0)
    assert [call.arguments[0] for call in driver.effects] == ["one", "two"]


def test_the_log_has_the_begin_of_a_long_text() -> None:
    driver = Driver(Posting, run_effects=True)
    driver.fail_effects(ConnectionError("x" * 1_000_000))
    driver.feed("one")
    driver.commit()
    driver.advance(1.0)
    assert {fields["cause"] for event, fields in driver.events if event == "effect_failed"} == {
        f"ConnectionError: {'x' * 1_000_000}"[:500]
    }


def pay(key: EffectKey, account: str, cents: int = 1, *, note: str = "") -> None:
    """An external system with more parameters."""


class Paying(Handler[str]):
    """Requests an effect as a test says."""

    request: Callable[[Any], None]

    def on_record(self, record: Record[str]) -> None:
        type(self).request(self)

    def own(self, key: EffectKey, account: str) -> None: ...


@pytest.mark.parametrize(
    ("request_", "arguments"),
    [
        (lambda self: self.effect(pay, "ann"), ("ann",)),
        (lambda self: self.effect(pay, "ann", 5), ("ann", 5)),
        (lambda self: self.effect(pay, cents=5, account="ann"), ("ann", 5)),
        (lambda self: self.effect(pay, account="ann"), ("ann", 1)),
        (lambda self: self.effect(self.own, account="ann"), ("ann",)),
        (lambda self: self.effect(print, "ann", 5), ("ann", 5)),
    ],
)
def test_arguments_of_an_effect_are_stored_by_position(
    request_: Any, arguments: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Paying, "request", request_, raising=False)
    driver = Driver(Paying)
    driver.feed("a")
    assert [call.arguments for call in driver.effects] == [arguments]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (lambda self: self.effect(pay), "'pay' takes .*account.*: missing a required argument: 'account'"),
        (lambda self: self.effect(pay, "ann", 5, "x"), r"with \(key, 'ann', 5, 'x'\): too many positional arguments"),
        (lambda self: self.effect(pay, "ann", cent=5), r"with \(key, 'ann', cent=5\): .*'cent'"),
        (lambda self: self.effect(pay, "ann", note="x"), "takes note by name only"),
        (lambda self: self.effect(self.own), r"own' takes .*: missing a required argument: 'account'"),
    ],
)
def test_arguments_that_an_effect_does_not_take_are_rejected_in_the_handler(
    request_: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Paying, "request", request_, raising=False)
    with pytest.raises(HandlerFailed, match=text):
        Driver(Paying).feed("a")
