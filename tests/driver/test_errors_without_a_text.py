"""An exception whose `__str__` raises is handled as any other: its class is named, and that its text cannot be had."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pytest
from tests.support.handlers import events

from statehold import (
    Call,
    CallFailure,
    CallResult,
    Handler,
    Output,
    Record,
    Replies,
    Table,
    Timer,
    dead_letter,
    retry,
)
from statehold.api.handler import EffectKey
from statehold.errors import CallRejected, HandlerFailed, RequestFailed, UndecodableRecord, UsageError
from statehold.testing import Driver

NO_TEXT = "its text raises RuntimeError"


class Mute(ValueError):
    """An error of a library that cannot describe itself."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class MuteRejection(CallRejected, Mute):
    pass


class Raising(Handler[int]):
    on_failure: ClassVar[Any] = {Mute: dead_letter()}
    totals = Table(key=str, value=int)
    replies = Replies(int, keep=60)

    def on_record(self, record: Record[int]) -> None:
        self.totals["all"] = self.totals.get("all", 0) + record.value
        if record.value == 13:
            raise Mute
        record.reply(self.totals["all"])


class Retrying(Raising):
    on_failure: ClassVar[Any] = {Mute: retry(2).then(dead_letter())}


class Strict(Raising):
    on_failure: ClassVar[Any] = {}


@pytest.mark.parametrize(("kind", "retried"), [(Raising, 0), (Retrying, 2)])
def test_it_follows_the_policy_of_its_class(kind: type[Handler[int]], retried: int) -> None:
    driver = Driver(kind)
    for value in (1, 13, 2):
        driver.feed(value, "ann" if value == 13 else "bob")
    [letter] = driver.dead_letters()
    assert (letter.offset, letter.error, letter.text) == (1, "Mute", NO_TEXT)
    causes = [each["cause"] for each in events(driver, "record_retried") + events(driver, "dead_letter")]
    assert causes == [f"Mute: {NO_TEXT}"] * (retried + 1)
    assert driver.table("totals") == {"all": 3}
    driver.release()
    driver.advance(1)
    assert [each["cause"] for each in events(driver, "replay_failed")] == [f"Mute: {NO_TEXT}"]
    driver.replay()


def test_without_a_policy_the_error_of_the_partition_names_its_class() -> None:
    driver = Driver(Strict)
    with pytest.raises(HandlerFailed, match=f"the handler raised Mute: {NO_TEXT}. The record was rolled back"):
        driver.feed(13, "ann")


def test_the_asker_of_a_request_gets_its_class() -> None:
    driver = Driver(Raising)
    with pytest.raises(RequestFailed) as failed:
        driver.ask(13, "ann")
    assert (failed.value.error, failed.value.text, failed.value.became) == ("Mute", NO_TEXT, "dead letter")


class MuteSerde:
    """Reads no digit alone, and writes nothing above a thousand."""

    def encode(self, value: int, /) -> bytes:
        if value > 1000:
            raise Mute
        return b"%d" % value

    def decode(self, data: bytes, /) -> int:
        if len(data) < 2:
            raise Mute
        return int(data)


class OwnSerdes(Handler[Annotated[int, MuteSerde()]]):
    on_failure: ClassVar[Any] = {UndecodableRecord: dead_letter(), UsageError: dead_letter(), Mute: dead_letter()}
    totals = Table(key=str, value=MuteSerde())
    written = Output("written", value=MuteSerde())

    def on_record(self, record: Record[int]) -> None:
        if record.value == 20:
            self.written.send(2000)
        self.totals["all"] = 3000 if record.value == 30 else record.value


def test_serdes_may_raise_it() -> None:
    driver = Driver(OwnSerdes)
    for data in (b"1", b"20", b"30", b"40"):
        driver.feed(data)
        driver.commit()
    assert [(each.offset, each.error, each.text.partition(". ")[0]) for each in driver.dead_letters()] == [
        (0, "UndecodableRecord", f"Mute: {NO_TEXT}"),
        (1, "Mute", NO_TEXT),
        (2, "UnstorableValue", f"table 'totals', key 'all': 3000 cannot be encoded: {NO_TEXT}"),
    ]
    assert driver.table("totals") == {"all": 40}


class Due(Handler[int]):
    def on_record(self, record: Record[int]) -> None:
        if record.value == 1:
            self.schedule(record.timestamp + 10)

    def on_timer(self, timer: Timer) -> None:
        raise Mute


def test_a_timer_may_raise_it() -> None:
    driver = Driver(Due)
    driver.feed(1, "ann", timestamp=1000)
    with pytest.raises(HandlerFailed, match=f"the handler raised Mute: {NO_TEXT}, in on_timer"):
        driver.feed(2, "ann", timestamp=2000)


def ask(id: str, argument: int) -> int:
    raise Mute if argument else MuteRejection


class Asking(Handler[int]):
    call = Call(ask, argument=int, result=int, attempts=2, backoff=1.0)
    failures = Table(key=int, value=str)

    def on_record(self, record: Record[int]) -> None:
        self.call(record.value)

    @call.on_result
    def on_answer(self, done: CallResult[int, int]) -> None:
        raise AssertionError

    @call.on_failed
    def on_failure_of_call(self, failed: CallFailure[int]) -> None:
        self.failures[failed.argument] = failed.error


def test_the_function_of_a_call_may_raise_it() -> None:
    driver = Driver(Asking, run_calls=True)
    driver.feed_all([0, 1], "ann")
    driver.advance(10)
    texts = {0: f"MuteRejection: {NO_TEXT}", 1: f"Mute: {NO_TEXT}"}
    assert driver.table(Asking.failures) == texts
    assert {each["cause"] for each in events(driver, "call_failed")} == {
        f"MuteRejection: {NO_TEXT}",
        f"Mute: {NO_TEXT}",
    }


def effect(key: EffectKey) -> None:
    raise AssertionError


class Acting(Handler[int]):
    def on_record(self, record: Record[int]) -> None:
        self.effect(effect)


def test_an_effect_may_raise_it() -> None:
    driver = Driver(Acting, run_effects=True)
    driver.fail_effects(Mute())
    driver.feed(1)
    driver.commit()
    assert {each["cause"] for each in events(driver, "effect_failed")} == {f"Mute: {NO_TEXT}"}
