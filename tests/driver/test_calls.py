"""Durable calls: the answer enters the state once, a replay calls nothing, and what was in progress is asked again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import msgspec
import pytest
from tests.support import inside

from statehold import Call, CallFailure, CallResult, Handler, Output, Record, Table, Timer, retry
from statehold.api.call import PendingCall
from statehold.api.handler import EffectKey
from statehold.config.sections.effects_timers_sinks import CallsSettings
from statehold.config.sections.processing import CommitSettings
from statehold.errors import (
    CallDelayed,
    CallRejected,
    HandlerFailed,
    NonDeterministicReplay,
    TableTypeChanged,
    UnknownSchema,
    UsageError,
)
from statehold.messages.call_outcome import DISCARD, FAIL, RETRY, CallOutcome, CallRequest
from statehold.messages.pinned_command import PinnedMessage
from statehold.testing import Driver, OpenCall, check_upcasters


class Payment(msgspec.Struct, frozen=True):
    card: str
    cents: int


class Score(msgspec.Struct, frozen=True):
    risk: int


def ask(id: str, payment: Payment) -> Score:
    """Another system."""
    return Score(payment.cents // 100)


class Scoring(Handler[Payment]):
    """One call for each record."""

    score = Call(ask, argument=Payment, result=Score, attempts=3, backoff=1.0)
    risks = Table(key=str, value=int)
    failures = Table(key=str, value=str)
    scored = Output("scored", value=str)

    def on_record(self, record: Record[Payment]) -> None:
        self.score(record.value)

    @score.on_result
    def on_score(self, done: CallResult[Payment, Score]) -> None:
        self.risks[done.argument.card] = self.risks.get(done.argument.card, 0) + done.result.risk
        self.scored.send(done.id)

    @score.on_failed
    def on_no_score(self, failed: CallFailure[Payment]) -> None:
        self.failures[failed.argument.card] = failed.error


def started(*cards: str, kind: type[Handler[Payment]] = Scoring, **options: Any) -> Driver:
    driver = Driver(kind, **options)
    for card in cards:
        driver.feed(Payment(card, 500), key=card)
    return driver


def cards(driver: Driver) -> list[str]:
    return [call.argument.card for call in driver.calls]


def test_an_answer_goes_to_the_handler_once_and_its_row_leaves_in_the_same_transaction() -> None:
    driver = started("ann", "bob")
    ann, bob = driver.calls
    assert ann == OpenCall("input/0/0/score/0", "score", Payment("ann", 500), b"ann", 1)
    driver.answer(bob, Score(7))
    assert driver.table(Scoring.risks) == {"bob": 7}
    assert driver.outputs(Scoring.scored) == [bob.id]
    assert list(driver.table(Scoring.score)) == [ann.id]
    assert len(driver.commit_record().pinned) == 1
    with pytest.raises(UsageError, match="is not pending"):
        driver.answer(bob, Score(7))


def test_an_uncommitted_record_calls_nothing() -> None:
    driver = started("ann", autocommit=False)
    assert driver.calls == []
    driver.commit()
    assert cards(driver) == ["ann"]


@pytest.mark.parametrize("interval", ["commit", 5.0, "off"])
def test_a_restore_repeats_answers_and_asks_only_what_was_not_answered(interval: Any) -> None:
    driver = started("ann", "bob", "eve", delta_interval=interval)
    driver.answer(driver.calls[1], Score(7))
    before = driver.calls
    driver.crash()
    driver.restore()
    assert driver.table(Scoring.risks) == {"bob": 7}
    assert driver.calls == before, "the same ids, in the same order"
    driver.answer(driver.calls[0], Score(1))
    driver.feed(Payment("kim", 100), key="kim")
    assert driver.table(Scoring.risks) == {"bob": 7, "ann": 1}
    assert cards(driver) == ["eve", "kim"]
    driver.replay()


def test_a_crash_between_answer_and_commit_asks_again_with_the_same_id() -> None:
    driver = started("ann", autocommit=False)
    driver.commit()
    (call,) = driver.calls
    driver.answer(call, Score(7))
    driver.crash()
    driver.restore()
    assert driver.table(Scoring.risks) == {}
    assert driver.calls == [call]


def test_an_aborted_transaction_gives_its_answers_again() -> None:
    driver = started("ann")
    (call,) = driver.calls
    driver.rebalance()
    driver.answer(call, Score(7))
    driver.advance(5)
    assert driver.table(Scoring.risks) == {"ann": 7}
    assert driver.outputs(Scoring.scored) == [call.id]


def test_an_aborted_transaction_requests_its_calls_again() -> None:
    driver = started(autocommit=False)
    driver.feed(Payment("ann", 1), key="ann")
    driver.rebalance()
    driver.commit()
    assert [call.id for call in driver.calls] == ["input/0/0/score/0"]


def late(driver: Driver, call: OpenCall, risk: int) -> None:
    """Let an answer arrive that the partition did not ask for any more, such as a second one."""
    data = msgspec.msgpack.encode(Score(risk))
    inside.calls(driver).finished_late(CallOutcome("score", call.id, 1, data))
    driver.advance(3)


def test_a_second_answer_changes_nothing() -> None:
    driver = started("ann", "bob")
    ann = driver.calls[0]
    driver.answer(ann, Score(7))
    n = driver.commit_record().n
    late(driver, ann, 100)
    assert driver.table(Scoring.risks) == {"ann": 7}
    assert driver.commit_record().n == n, "it commits nothing"


def test_two_answers_of_one_call_that_come_together_count_once() -> None:
    driver = started("ann", autocommit=False)
    driver.commit()
    (ann,) = driver.calls
    driver.answer(ann, Score(7))
    late(driver, ann, 100)
    assert driver.table(Scoring.risks) == {"ann": 7}


def test_an_answer_to_a_call_that_never_was_changes_nothing() -> None:
    driver = started("ann")
    (ann,) = driver.calls
    late(driver, ann._replace(id="input/0/99/score/0"), 100)
    assert driver.table(Scoring.risks) == {}


def test_an_answer_that_an_earlier_owner_gets_is_none_of_the_next_one() -> None:
    driver = started("ann")
    (ann,) = driver.calls
    former = inside.calls(driver)
    driver.crash()
    driver.restore()
    former.answer(ann, Score(100))
    driver.advance(3)
    assert driver.table(Scoring.risks) == {}
    driver.answer(driver.calls[0], Score(7))
    assert driver.table(Scoring.risks) == {"ann": 7}


def test_an_attempt_that_fails_is_followed_by_another_one_after_its_wait() -> None:
    driver = started("ann")
    driver.fail(driver.calls[0], ConnectionError("down"))
    assert driver.calls == []
    driver.advance(1.1)
    assert driver.calls[0].attempt == 2
    driver.lose(driver.calls[0])
    driver.advance(1.1)
    assert driver.calls == [], "the second wait is twice as long"
    driver.advance(1.1)
    driver.fail(driver.calls[0], ConnectionError("still down"))
    assert driver.table(Scoring.failures) == {"ann": "ConnectionError: still down"}
    assert driver.table(Scoring.score) == {}
    driver.advance(60)
    assert driver.calls == []
    driver.replay()


def test_the_log_has_the_begin_of_a_long_text() -> None:
    driver = started("ann")
    driver.fail(driver.calls[0], ConnectionError("x" * 10_000_000))
    (cause,) = (fields["cause"] for event, fields in driver.events if event == "call_failed")
    assert cause == f"ConnectionError: {'x' * 10_000_000}"[:500]


def test_a_rejected_call_has_no_further_attempt_and_a_delayed_one_waits() -> None:
    driver = started("ann", "bob")
    ann, bob = driver.calls
    driver.fail(ann, CallRejected("no such card"))
    assert driver.table(Scoring.failures) == {"ann": "CallRejected: no such card"}
    driver.fail(bob, CallDelayed(30))
    driver.advance(29)
    assert driver.calls == []
    driver.advance(2)
    assert cards(driver) == ["bob"]


class Unforgiving(Handler[Payment]):
    """Has no method for failed calls."""

    score = Call(ask, argument=Payment, result=Score, attempts=1)
    risks = Table(key=str, value=int)

    def on_record(self, record: Record[Payment]) -> None:
        self.score(record.value)

    @score.on_result
    def on_score(self, done: CallResult[Payment, Score]) -> None:
        self.risks[done.argument.card] = done.result.risk


@pytest.mark.parametrize("interval", ["commit", "off"])
def test_without_on_failed_a_call_whose_attempts_are_used_up_is_dead_and_stays(interval: Any) -> None:
    driver = started("ann", kind=Unforgiving, delta_interval=interval)
    (ann,) = driver.calls
    driver.fail(ann, ValueError("bad"))
    driver.crash()
    driver.restore()
    assert driver.calls == []
    row = driver.table(Unforgiving.score)[ann.id]
    assert (row.error, row.attempts) == ("ValueError: bad", 1)
    late(driver, ann, 100)
    assert driver.table(Unforgiving.risks) == {}


class InOrder(Scoring):
    """The calls of a key run one after the other."""

    score = Call(ask, argument=Payment, result=Score, per_key_order=True)

    @score.on_result
    def on_score(self, done: CallResult[Payment, Score]) -> None:
        super().on_score(done)


def test_calls_of_one_key_run_in_their_order() -> None:
    driver = started("ann", "bob", "ann", kind=InOrder)
    assert cards(driver) == ["ann", "bob"]
    driver.fail(driver.calls[0], ConnectionError("down"))
    assert cards(driver) == ["bob"], "the second one of ann waits behind the first"
    driver.crash()
    driver.restore()
    assert [call.id for call in driver.calls] == ["input/0/0/score/0", "input/0/1/score/0"]
    driver.answer(driver.calls[0], Score(1))
    assert [call.id for call in driver.calls] == ["input/0/1/score/0", "input/0/2/score/0"]


def test_pending_calls_hold_back_records_and_answers_are_always_taken() -> None:
    driver = Driver(Scoring, batch=50)
    driver.settings = replace(driver.settings, calls=CallsSettings(pending=20))
    for number in range(50):
        driver.feed(Payment(f"{number}", 100))
    driver.advance(1)
    asked: list[str] = []
    while driver.calls:
        assert len(driver.table(Scoring.score)) <= 20
        asked.append(driver.calls[0].argument.card)
        driver.answer(driver.calls[0], Score(1))
        driver.advance(1)
    assert sorted(asked, key=int) == [f"{number}" for number in range(50)]
    assert len(driver.table(Scoring.risks)) == 50


class Chained(Handler[Payment]):
    """Each answer makes further calls, a timer and an effect."""

    score = Call(ask, argument=Payment, result=Score)
    fired = Table(key=str, value=int)

    def on_record(self, record: Record[Payment]) -> None:
        self.score(record.value)

    @score.on_result
    def on_score(self, done: CallResult[Payment, Score]) -> None:
        if done.argument.cents > 1:
            for _ in range(2):
                self.score(Payment(done.argument.card, done.argument.cents - 1))
        self.schedule(done.answered + 1000, done.id)
        self.effect(post, done.id)

    def on_timer(self, timer: Timer) -> None:
        self.fired[timer.payload] = 1


def post(key: EffectKey, id: str) -> None:
    """A third system."""


def test_what_an_answer_requests_has_names_of_its_own() -> None:
    driver = started(kind=Chained, run_calls=True)
    driver.feed(Payment("ann", 4))
    driver.advance(60)
    assert len(driver.table(Chained.fired)) == 1 + 2 + 4 + 8
    assert len({call.key for call in driver.effects}) == 15
    assert driver.table(Chained.score) == {}
    driver.replay()


def test_a_limit_stops_no_call_that_an_answer_makes() -> None:
    driver = Driver(Chained, run_calls=True)
    driver.settings = replace(driver.settings, calls=CallsSettings(pending=1))
    driver.feed(Payment("ann", 4))
    driver.feed(Payment("bob", 4))
    driver.advance(60)
    assert len(driver.table(Chained.fired)) == 30


def test_a_paused_partition_takes_no_answer_until_it_resumes() -> None:
    driver = started("ann")
    (ann,) = driver.calls
    driver.command("pause", via_control_topic=True)
    driver.advance(2)
    driver.answer(ann, Score(7))
    driver.advance(2)
    assert driver.table(Scoring.risks) == {}
    driver.command("resume", via_control_topic=True)
    driver.advance(2)
    assert driver.table(Scoring.risks) == {"ann": 7}


def test_a_stop_commits_the_answers_that_are_there() -> None:
    driver = started("ann", "bob", autocommit=False)
    driver.commit()
    driver.answer(driver.calls[0], Score(7))
    driver.stop()
    driver.restore()
    assert driver.table(Scoring.risks) == {"ann": 7}
    assert cards(driver) == ["bob"]


class Flaky(Scoring):
    """Asks, fails, and does not ask when it is retried."""

    on_failure: ClassVar = {ValueError: retry(1, seconds=0.1)}
    failed: bool = False

    def on_record(self, record: Record[Payment]) -> None:
        if not type(self).failed:
            type(self).failed = True
            super().on_record(record)
            raise ValueError("once")


def test_a_call_of_a_record_that_was_rolled_back_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flaky, "failed", False)
    driver = started("ann", kind=Flaky)
    assert Flaky.failed
    assert driver.calls == []
    assert driver.table(Scoring.score) == {}


def test_an_answer_that_is_pinned_for_a_dead_call_changes_nothing() -> None:
    """Code of another release may have pinned it."""
    driver = started("ann", kind=Unforgiving)
    (ann,) = driver.calls
    driver.fail(ann, CallRejected("no"))
    before = driver.table(Unforgiving.score)
    outcome = CallOutcome("score", ann.id, 1, msgspec.msgpack.encode(Score(100)))
    engine = inside.lanes(driver)[0].engine()
    assert not engine.obey(PinnedMessage(driver.names.control, 0, outcome.pin(10**16, 1, b"ann")))
    assert driver.table(Unforgiving.score) == before
    assert driver.table(Unforgiving.risks) == {}


def test_an_answer_by_hand_has_no_effect() -> None:
    driver = started("ann")
    (ann,) = driver.calls
    forged = msgspec.msgpack.encode(CallOutcome("score", ann.id, 1, msgspec.msgpack.encode(Score(100))))
    driver.command("statehold.answer", forged, via_control_topic=True)
    driver.command("statehold.answer", forged)
    driver.advance(5)
    assert driver.table(Scoring.risks) == {}
    assert driver.calls == [ann]


class Cancelling(Scoring):
    def on_record(self, record: Record[Payment]) -> None:
        if record.value.cents:
            super().on_record(record)
        else:
            for each in list(self.score):
                assert self.score.cancel(each)
            assert not self.score.cancel("unknown")


def test_a_cancelled_call_gets_no_answer() -> None:
    driver = started("ann", kind=Cancelling)
    (ann,) = driver.calls
    driver.feed(Payment("ann", 0))
    assert driver.calls == []
    late(driver, ann, 100)
    assert driver.table(Scoring.risks) == {}
    driver.replay()


def test_an_answer_that_its_own_transaction_cancels_is_dropped() -> None:
    driver = started("ann", kind=Cancelling, autocommit=False)
    driver.commit()
    driver.answer(driver.calls[0], Score(7))
    driver.feed(Payment("ann", 0))
    driver.advance(5)
    assert driver.table(Scoring.risks) == {}
    assert driver.calls == []
    assert driver.commit_record().pinned == ()


class Raising(Scoring):
    """Cannot take one answer."""

    broken: bool = True

    def on_record(self, record: Record[Payment]) -> None:
        super().on_record(record)

    def on_score(self, done: CallResult[Payment, Score]) -> None:
        if type(self).broken and done.argument.card == "bad":
            raise ValueError("no")
        super().on_score(done)


def test_a_method_that_raises_fails_the_partition_and_the_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = started("bad", "ann", kind=Raising)
    bad, ann = driver.calls
    driver.answer(ann, Score(1))
    with pytest.raises(HandlerFailed, match=r"ValueError: no, in on_score of the call input/0/0/score/0"):
        driver.answer(bad, Score(7))
    assert driver.table(Scoring.risks) == {"ann": 1}
    monkeypatch.setattr(Raising, "broken", False)
    driver.restore()
    driver.answer(driver.calls[0], Score(7))
    assert driver.table(Scoring.risks) == {"ann": 1, "bad": 7}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"x" * 300_000, "the function returned 300005 bytes, and a commit record takes at most 250000"),
        ("text", "which is no <class 'bytes'>"),
        (None, "which is no <class 'bytes'>"),
        (object(), "which is no <class 'bytes'>"),
    ],
)
def test_what_is_no_answer_is_rejected(value: object, text: str) -> None:
    class Bytes(Handler[str]):
        load = Call(lambda call, name: b"", argument=str, result=bytes)

        def on_record(self, record: Record[str]) -> None:
            self.load(record.value)

        @load.on_result
        def loaded(self, done: CallResult[str, bytes]) -> None: ...

    driver = Driver(Bytes)
    driver.feed("a")
    with pytest.raises(CallRejected, match=text):
        driver.answer(driver.calls[0], value)


@pytest.mark.parametrize("argument", ["text", None, object(), Score(1)])
def test_an_argument_of_another_type_is_rejected_in_the_handler(argument: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scoring, "on_record", lambda self, record: self.score(argument))
    with pytest.raises(HandlerFailed, match=r"the argument is no <class .*Payment"):
        started("ann")


def test_a_row_cannot_be_written_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scoring, "on_record", lambda self, record: self.score.put("a", None))
    with pytest.raises(HandlerFailed, match=r"self\.score\(argument\) makes one"):
        started("ann")


def test_the_class_is_checked_when_it_is_used() -> None:
    class Unanswered(Handler[str]):
        load = Call(lambda call, name: b"", argument=str, result=bytes)

        def on_record(self, record: Record[str]) -> None: ...

    with pytest.raises(UsageError, match=r"a Call without a method for its answers"):
        Driver(Unanswered)

    class Batches(Handler[str]):
        load = Call(lambda call, name: b"", argument=str, result=bytes)

        def on_batch(self, records: Any) -> None: ...

        @load.on_result
        def loaded(self, done: CallResult[str, bytes]) -> None: ...

    with pytest.raises(UsageError, match="has on_batch and a Call"):
        Driver(Batches)


def no_arguments() -> None: ...


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: Call(cast("Any", no_arguments), argument=str, result=str), "statehold calls it with 2 arguments"),
        (lambda: Call(ask, argument=Payment, result=Score, attempts=-1), "give a number, or 0 for no limit"),
        (lambda: Call(ask, argument=Payment, result=Score, timeout=0), "give seconds, from 0.001"),
        (lambda: Call(ask, argument=Payment, result=threading_lock), "values of the class lock cannot be stored"),
        (lambda: Call(ask, argument=Payment, result=Score)(Payment("a", 1)), "is a declaration"),
    ],
)
def test_a_declaration_is_checked(declare: Callable[[], object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        declare()


threading_lock: Any = type(__import__("threading").Lock())


def test_a_release_that_reads_other_arguments_does_not_go_live() -> None:
    class Other(msgspec.Struct, frozen=True):
        card: str
        cents: str

    class Next(Handler[Payment]):
        score = Call(lambda call, other: Score(1), argument=Other, result=Score)

        def on_record(self, record: Record[Payment]) -> None: ...

        @score.on_result
        def on_score(self, done: CallResult[Other, Score]) -> None: ...

    driver = started("ann", kind=Unforgiving)
    with pytest.raises(TableTypeChanged):
        driver.upgrade(Next)
    driver.upgrade(Unforgiving)
    assert cards(driver) == ["ann"]


class Purchase(msgspec.Struct, frozen=True):
    card: str
    amount: str


def typed(old: Payment) -> Purchase:
    return Purchase(old.card, f"{old.cents / 100:.2f}")


def of_rows(old: PendingCall[Payment]) -> PendingCall[Purchase]:
    return PendingCall(typed(old.argument), old.number, old.time)


def untyped(old):  # type: ignore[no-untyped-def]
    return {"card": old["card"], "amount": f"{old['cents'] / 100:.2f}"}


@pytest.mark.parametrize("upcaster", [typed, untyped, (Payment, typed)])
def test_an_upcaster_makes_the_present_argument_of_an_older_one(upcaster: Any) -> None:
    class Next(Handler[Payment]):
        score = Call(
            lambda call, purchase: Score(1),
            argument=Purchase,
            result=Score,
            version=2,
            upcasters={1: upcaster},
        )
        risks = Table(key=str, value=int)

        def on_record(self, record: Record[Payment]) -> None:
            self.score(typed(record.value))

        @score.on_result
        def on_score(self, done: CallResult[Purchase, Score]) -> None:
            self.risks[done.argument.amount] = done.result.risk

    driver = started("ann", "bob", kind=Unforgiving)
    ann = driver.calls[0]
    driver.fail(ann, ValueError("bad"))
    driver.upgrade(Next)
    assert driver.table(Next.score)[ann.id].error == "ValueError: bad"
    driver.feed(Payment("kim", 700), key="kim")
    assert [call.argument for call in driver.calls] == [Purchase("bob", "5.00"), Purchase("kim", "7.00")]
    driver.answer(driver.calls[0], Score(7))
    assert driver.table(Next.risks) == {"5.00": 7}
    driver.crash()
    driver.restore()
    assert cards(driver) == ["kim"]
    assert check_upcasters(Next, examples=20) == (0 if upcaster is untyped else 1)


def test_an_upcaster_of_an_argument_is_checked() -> None:
    with pytest.raises(UsageError, match="the upcaster of version 1"):
        Call(ask, argument=Payment, result=Score, version=2, upcasters={1: cast("Any", no_arguments)})


@pytest.mark.parametrize("upcaster", [of_rows, (PendingCall[Payment], typed)])
def test_an_upcaster_of_rows_is_rejected_with_what_it_takes(upcaster: Any) -> None:
    with pytest.raises(UsageError, match=r"of version 1 takes .*PendingCall.* Next: let it take and return the arg"):
        Call(ask, argument=Payment, result=Score, version=2, upcasters={1: upcaster})


def test_a_release_without_the_call_does_not_go_live_and_a_renamed_one_does() -> None:
    class Without(Handler[Payment]):
        risks = Table(key=str, value=int)

        def on_record(self, record: Record[Payment]) -> None: ...

    class Renamed(Handler[Payment]):
        rating = Call(ask, argument=Payment, result=Score, was="score")
        risks = Table(key=str, value=int)

        def on_record(self, record: Record[Payment]) -> None: ...

        @rating.on_result
        def rated(self, done: CallResult[Payment, Score]) -> None:
            self.risks[done.argument.card] = done.result.risk

    driver = started("ann", kind=Unforgiving)
    with pytest.raises(UnknownSchema, match="score"):
        driver.upgrade(Without)
    driver.upgrade(Renamed)
    driver.answer(driver.calls[0], Score(7))
    assert driver.table(Renamed.risks) == {"ann": 7}


def test_many_answers_are_cut_into_commit_records_that_fit() -> None:
    class Texts(Handler[str]):
        load = Call(lambda call, name: "", argument=str, result=str)
        sizes = Table(key=str, value=int)

        def on_record(self, record: Record[str]) -> None:
            self.load(record.value)

        @load.on_result
        def loaded(self, done: CallResult[str, str]) -> None:
            self.sizes[done.argument] = len(done.result)

    driver = Driver(Texts, autocommit=False)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=1000))
    for number in range(30):
        driver.feed(f"{number}")
    driver.commit()
    for call in driver.calls:
        driver.answer(call, "x" * 100_000)
    driver.advance(10)
    assert len(driver.table(Texts.sizes)) == 30


def test_code_that_makes_something_else_of_an_answer_fails_the_digest() -> None:
    class Otherwise(Unforgiving):
        def on_score(self, done: CallResult[Payment, Score]) -> None:
            self.risks[done.argument.card] = 99

    driver = started("ann", kind=Unforgiving, delta_interval="off")
    driver.answer(driver.calls[0], Score(7))
    with pytest.raises(NonDeterministicReplay):
        driver.upgrade(Otherwise, crash=True)


def resolve(driver: Driver, what: str, *ids: str) -> None:
    """Do what `statehold calls` does."""
    driver.command(what, CallRequest(ids, "ticket 17").value(), via_control_topic=True)
    driver.advance(3)


def dead(kind: type[Handler[Payment]] = Unforgiving) -> tuple[Driver, OpenCall]:
    driver = started("ann", kind=kind)
    (ann,) = driver.calls
    driver.fail(ann, CallRejected("no"))
    return driver, ann


def test_a_dead_call_is_made_again_with_its_id() -> None:
    driver, ann = dead()
    resolve(driver, RETRY, ann.id, "input/0/99/score/0")
    assert driver.calls == [ann]
    driver.crash()
    driver.restore()
    driver.answer(driver.calls[0], Score(7))
    assert driver.table(Unforgiving.risks) == {"ann": 7}
    driver.replay()


def test_only_a_dead_call_is_made_again() -> None:
    driver = started("ann", kind=Unforgiving)
    resolve(driver, RETRY, driver.calls[0].id)
    assert driver.events[-1][0] == "command_rejected"
    assert cards(driver) == ["ann"]


@pytest.mark.parametrize("interval", ["commit", "off"])
def test_a_discarded_call_leaves_the_state_and_gets_no_answer(interval: Any) -> None:
    driver = started("ann", "bob", delta_interval=interval)
    ann, bob = driver.calls
    resolve(driver, DISCARD, ann.id)
    assert driver.calls == [bob]
    late(driver, ann, 100)
    driver.crash()
    driver.restore()
    assert driver.calls == [bob]
    assert driver.table(Scoring.risks) == {}
    assert driver.table(Scoring.failures) == {}
    (fields,) = (fields for event, fields in driver.events if event == "calls_resolved")
    assert (fields["command"], fields["ids"], fields["who"], fields["why"]) == (DISCARD, ann.id, "driver", "ticket 17")


def test_a_call_that_an_operator_fails_goes_to_the_handler_once() -> None:
    driver = started("ann", "bob")
    ann, bob = driver.calls
    resolve(driver, FAIL, ann.id)
    assert driver.table(Scoring.failures) == {"ann": "driver: ticket 17"}
    assert driver.calls == [bob]
    driver.replay()


def test_without_on_failed_a_call_that_an_operator_fails_is_dead() -> None:
    driver = started("ann", kind=Unforgiving)
    (ann,) = driver.calls
    resolve(driver, FAIL, ann.id)
    assert driver.calls == []
    assert driver.table(Unforgiving.score)[ann.id].error == "driver: ticket 17"
    late(driver, ann, 100)
    assert driver.table(Unforgiving.risks) == {}


def test_a_request_that_cannot_be_read_is_rejected() -> None:
    driver = started("ann")
    driver.command(RETRY, b"nonsense", via_control_topic=True)
    driver.advance(3)
    assert cards(driver) == ["ann"]
    driver.answer(driver.calls[0], Score(7))
    assert driver.table(Scoring.risks) == {"ann": 7}


def test_a_call_is_made_after_the_commit_of_its_record() -> None:
    committed: list[int] = []

    class Looking(Scoring):
        score = Call(lambda call, payment: look(), argument=Payment, result=Score)

        @score.on_result
        def on_score(self, done: CallResult[Payment, Score]) -> None: ...

    def look() -> Score:
        committed.append(driver.broker.offsets["input", 0])
        return Score(1)

    driver = Driver(Looking, run_calls=True, autocommit=False)
    driver.feed(Payment("ann", 500))
    driver.feed(Payment("bob", 500))
    driver.commit()
    driver.advance(1)
    assert committed == [2, 2]
