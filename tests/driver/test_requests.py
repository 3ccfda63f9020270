"""Requests and replies: each id takes effect once (W1), an answer exists only with its effect (W2), and it goes to the
service's own topic of replies (W3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from tests.support.inside import lane
from tests.support.rebuilding import rebuilt
from tests.support.rehearsing import compared, rehearsed

from statehold import Handler, Json, Record, Rekey, Replies, StoredReply, Table, Timer, dead_letter, on, retry_later
from statehold.admin.state.key_layout import KeyLayout, drop_partition_data
from statehold.api.record import Request
from statehold.common.partitioner import murmur2
from statehold.config.sections.connection import KafkaSettings
from statehold.config.sections.effects_timers_sinks import TimeSettings
from statehold.config.sections.processing import CommitSettings
from statehold.config.settings import Settings
from statehold.errors import (
    HandlerFailed,
    NoAnswerInTime,
    RequestConflict,
    RequestFailed,
    UndecodableRecord,
    UsageError,
)
from statehold.messages.request import LONGEST_ADDRESS, LONGEST_ID, headers_of, read_reply
from statehold.state.system_names import EXPIRY
from statehold.testing import Driver


class Payment(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Booked(msgspec.Struct, frozen=True):
    balance: int


class Unlucky(ValueError):
    """The handler does not take this amount."""


class Payments(Handler[Payment]):
    balances = Table(key=str, value=int)
    replies = Replies(Booked, keep=timedelta(hours=1))

    def on_record(self, record: Record[Payment]) -> None:
        record.reply(Booked(self.book(record.value)))

    def book(self, payment: Payment) -> int:
        balance = self.balances.get(payment.account, 0) + payment.amount
        self.balances[payment.account] = balance
        if payment.amount == 13:
            raise Unlucky("13")
        return balance


class Dying(Payments):
    on_failure: ClassVar = {Unlucky: dead_letter()}


class Retrying(Payments):
    on_failure: ClassVar = {Unlucky: retry_later(60, any_order=True)}


class Later(Handler[Payment]):
    """Answers 10 s later, by a timer."""

    asked = Table(key=str, value=Request)
    replies = Replies(Booked, keep=timedelta(hours=1))
    times = Table(key=str, value=int)

    def on_record(self, record: Record[Payment]) -> None:
        if record.request is not None:
            self.asked[record.value.account] = record.request
            self.schedule(record.timestamp + 10_000, [record.value.account, record.value.amount])

    def on_timer(self, timer: Timer) -> None:
        account, amount = timer.payload
        self.times[account] = self.times.get(account, 0) + self.replies.answer(self.asked[account], Booked(amount))
        assert not self.replies.answer(self.asked[account], Booked(-1))


def sent(driver: Driver) -> list[tuple[str, bytes, str, Any]]:
    """Return id, return address, outcome and value of each committed reply."""
    found: list[tuple[str, bytes, str, Any]] = []
    for message in driver.broker.log(driver.names.replies, 0).committed():
        reply = read_reply(message)
        assert reply is not None
        found.append((reply.id, reply.address, reply.outcome, msgspec.json.decode(reply.value or b"")))
    return found


# W1: each id takes effect once


def test_an_id_takes_effect_once_and_gets_the_same_answer_again() -> None:
    driver = Driver(Payments)
    assert [driver.ask(Payment("ann", 5), "ann", id="order-17", reply=Booked) for _ in range(3)] == [Booked(5)] * 3
    assert driver.ask(Payment("ann", 5), "ann") == Booked(10)
    assert driver.table(Payments.balances) == {"ann": 10}
    driver.replay()


def test_an_id_belongs_to_its_key() -> None:
    driver = Driver(Payments)
    assert driver.ask(Payment("ann", 5), "ann", id="1") == Booked(5)
    assert driver.ask(Payment("ann", 5), "bob", id="1") == Booked(10)


def test_another_value_under_an_id_is_rejected_and_changes_nothing() -> None:
    driver = Driver(Payments)
    driver.ask(Payment("ann", 5), "ann", id="1")
    with pytest.raises(RequestConflict, match=r"input\[0\]@1: id '1': another value") as conflict:
        driver.ask(Payment("ann", 6), "ann", id="1")
    assert (conflict.value.id, conflict.value.offset) == ("1", 1)
    assert driver.table(Payments.balances) == {"ann": 5}
    assert driver.ask(Payment("ann", 5), "ann", id="1") == Booked(5)


@pytest.mark.parametrize("delta_interval", ["commit", 1000.0])
@pytest.mark.parametrize("full", [False, True])
def test_an_id_is_known_after_a_takeover(delta_interval: Any, full: bool) -> None:
    driver = Driver(Payments, delta_interval=delta_interval)
    driver.ask(Payment("ann", 5), "ann", id="1")
    if full:
        driver.take_full()
        driver.ask(Payment("ann", 2), "ann", id="2")
    driver.crash()
    driver.restore()
    assert driver.ask(Payment("ann", 5), "ann", id="1") == Booked(5)
    driver.upgrade(Dying)
    assert driver.ask(Payment("ann", 5), "ann", id="1") == Booked(5)
    assert driver.table(Payments.balances) == {"ann": 7 if full else 5}


def test_a_kept_id_ends_by_the_partitions_own_time() -> None:
    driver = Driver(Payments)
    start, hour = 1_000_000, 3_600_000
    driver.ask(Payment("ann", 5), "ann", id="1", timestamp=start)
    assert driver.ask(Payment("ann", 5), "ann", id="1", timestamp=start + hour - 1) == Booked(5)
    assert driver.ask(Payment("ann", 5), "ann", id="1", timestamp=start + hour) == Booked(10)
    driver.replay()


@pytest.mark.parametrize("wrong", [0, 4_102_444_800_000])
def test_askers_whose_clock_is_wrong_end_no_kept_id(wrong: int) -> None:
    """One is in 1970 or in 2100; the id of the others and its own one are kept as long as any."""
    driver = Driver(Payments, settings=Settings(time=TimeSettings(max_ahead=3600.0)))

    def now() -> int:
        return int(driver.clock.wall() * 1000)

    assert driver.ask(Payment("ann", 5), "ann", id="1", timestamp=now()) == Booked(5)
    assert driver.ask(Payment("ann", 7), "ann", id="2", timestamp=wrong + 1) == Booked(12)
    driver.advance(1800)
    for timestamp in (now(), wrong + 2, now()):
        assert driver.ask(Payment("ann", 5), "ann", id="1", timestamp=timestamp) == Booked(5)
        assert driver.ask(Payment("ann", 7), "ann", id="2", timestamp=timestamp) == Booked(12)
    driver.advance(1801)
    assert driver.ask(Payment("ann", 5), "ann", id="1", timestamp=now()) == Booked(17)
    driver.replay()


def test_an_id_has_ended_before_its_row_is_removed() -> None:
    driver = Driver(Payments)
    for number in range(30):  # more than a record removes
        driver.ask(Payment("ann", 1), "ann", id=f"{number}", timestamp=1_000_000)
    assert driver.ask(Payment("ann", 1), "ann", id="29", timestamp=4_600_000) == Booked(31)
    driver.replay()


def test_two_with_an_id_in_one_batch_get_one_effect_and_both_get_the_answer() -> None:
    driver = Driver(Payments, batch=5)
    for address in (b"x", b"y"):
        driver.feed(Payment("ann", 5), "ann", headers_of("1", address))
    driver.commit()
    assert sent(driver) == [("1", b"x", "answered", {"balance": 5}), ("1", b"y", "answered", {"balance": 5})]


def test_a_batch_that_is_cut_does_the_same() -> None:
    driver = Driver(Payments, batch=4)
    for number in range(12):
        headers = headers_of(f"{number % 5}", b"") if number % 3 else None
        driver.feed(Payment("ann", number % 5), "ann", headers)
    driver.commit()
    driver.replay()


# W2: an answer exists only with its effect


def test_a_transaction_that_is_rolled_back_answers_once() -> None:
    driver = Driver(Payments, autocommit=False)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"))
    driver.rebalance()
    driver.commit()
    assert sent(driver) == [("1", b"x", "answered", {"balance": 5})]
    driver.feed(Payment("ann", 6), "ann", headers_of("2", b"y"))
    driver.crash()
    driver.restore()
    driver.commit()
    assert sent(driver)[1:] == [("2", b"y", "answered", {"balance": 11})]


def test_the_asker_gets_a_dead_letter_as_a_failure_without_effect() -> None:
    driver = Driver(Dying)
    with pytest.raises(RequestFailed, match="Unlucky: 13") as failed:
        driver.ask(Payment("ann", 13), "ann", id="1")
    assert (failed.value.error, failed.value.text, failed.value.became) == ("Unlucky", "13", "dead letter")
    with pytest.raises(RequestFailed, match="its key waits since offset 0"):
        driver.ask(Payment("ann", 1), "ann", id="2")
    assert driver.table("balances") == {}
    assert dict(driver.table(Dying.replies)) == {}


def test_an_id_that_took_effect_is_answered_while_its_key_is_blocked() -> None:
    driver = Driver(Dying)
    assert driver.ask(Payment("ann", 5), "ann", id="1") == Booked(5)
    with pytest.raises(RequestFailed):
        driver.ask(Payment("ann", 13), "ann", id="2")
    assert driver.ask(Payment("ann", 5), "ann", id="1") == Booked(5)
    with pytest.raises(RequestConflict):
        driver.ask(Payment("ann", 6), "ann", id="1")
    assert [each.offset for each in driver.dead_letters()] == [1], "a redrive after `keep` would handle it again"
    driver.crash()
    driver.restore()
    assert driver.release(discard=True) == 1
    driver.advance(2)
    assert driver.ask(Payment("ann", 1), "ann", id="3") == Booked(6)


def test_an_id_that_took_effect_is_answered_if_a_copy_of_its_record_fails() -> None:
    class Small(msgspec.Struct, frozen=True):
        account: str
        amount: Annotated[int, msgspec.Meta(le=100)]

    class Strict(Handler[Small]):
        balances = Table(key=str, value=int)
        replies = Replies(Booked, keep=timedelta(hours=1))
        on_failure: ClassVar = {UndecodableRecord: dead_letter()}

        def on_record(self, record: Record[Small]) -> None:
            record.reply(Booked(record.value.amount))

    driver = Driver(Payments)
    assert driver.ask(Payment("ann", 500), "ann", id="1") == Booked(500)
    driver.upgrade(Strict)
    assert driver.ask(Payment("ann", 500), "ann", id="1") == Booked(500)
    assert [each.offset for each in driver.dead_letters()] == [1]


def test_an_error_whose_text_is_no_utf_8_is_a_dead_letter_as_any_other() -> None:
    """The name of a file may be such a text."""

    class Raising(Dying):
        def on_record(self, record: Record[Payment]) -> None:
            raise Unlucky("caf\udce9.csv")

    driver = Driver(Raising)
    with pytest.raises(RequestFailed) as failed:
        driver.ask(Payment("ann", 5), "ann")
    assert (failed.value.error, failed.value.text) == ("Unlucky", "caf?.csv")
    assert [each.offset for each in driver.dead_letters()] == [0]


def test_a_redriven_dead_letter_answers_and_its_id_counts_once() -> None:
    class Fixed(Dying):
        def book(self, payment: Payment) -> int:
            self.balances[payment.account] = self.balances.get(payment.account, 0) + payment.amount
            return self.balances[payment.account]

    driver = Driver(Dying)
    with pytest.raises(RequestFailed):
        driver.ask(Payment("ann", 13), "ann", id="1")
    driver.upgrade(Fixed)
    assert driver.release() == 1
    driver.advance(2)
    assert sent(driver)[-1][2:] == ("answered", {"balance": 13})
    assert driver.ask(Payment("ann", 13), "ann", id="1") == Booked(13)


def test_a_record_that_is_retried_later_is_reported_and_may_be_asked_again() -> None:
    driver = Driver(Retrying)
    with pytest.raises(RequestFailed) as failed:
        driver.ask(Payment("ann", 13), "ann", id="1")
    assert failed.value.became == "retried in 60 s"


def test_a_request_that_fails_without_a_policy_has_no_answer_and_is_not_lost() -> None:
    driver = Driver(Payments)
    with pytest.raises(HandlerFailed, match="Unlucky"):
        driver.ask(Payment("ann", 13), "ann", id="1")
    assert sent(driver) == []


@pytest.mark.parametrize("early", [True, False])
def test_an_answer_does_not_wait_for_the_interval(early: bool) -> None:
    settings = Settings(commit=CommitSettings(interval=9.0, early=early))
    driver = Driver(Payments, settings=settings, autocommit=False)
    driver.feed(Payment("ann", 5), "ann")
    driver.advance(1)
    assert driver.position() == 0
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"))
    driver.advance(1)
    assert (driver.position(), len(sent(driver))) == ((2, 1) if early else (0, 0))


# Later answers


def test_an_answer_comes_later_to_all_who_asked_meanwhile() -> None:
    driver = Driver(Later)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"), 1000)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"y"), 2000)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"y"), 2000)
    with pytest.raises(NoAnswerInTime, match="id='1'"):
        driver.ask(Payment("ann", 5), "ann", id="1", timestamp=3000)
    driver.crash()
    driver.restore()
    driver.feed(Payment("bob", 1), "bob", timestamp=20_000)
    driver.commit()
    assert [each[:1] + each[2:] for each in sent(driver)] == [("1", "answered", {"balance": 5})] * 3
    assert [each[1] for each in sent(driver)][:2] == [b"x", b"y"]
    assert driver.ask(Payment("ann", 5), "ann", id="1", timestamp=21_000) == Booked(5)
    assert driver.table(Later.times) == {"ann": 1}
    driver.replay()


def test_an_answer_comes_later_to_who_asks_again_while_the_key_is_blocked() -> None:
    class Failing(Later):
        on_failure: ClassVar = {Unlucky: dead_letter()}

        def on_record(self, record: Record[Payment]) -> None:
            if record.value.amount == 13:
                raise Unlucky("13")
            super().on_record(record)

    driver = Driver(Failing)
    for number, amount in ((1, 5), (2, 13), (1, 5)):
        driver.feed(Payment("ann", amount), "ann", headers_of(f"{number}", b"%d" % driver.position()), 1000)
    driver.feed(Payment("bob", 1), "bob", timestamp=20_000)
    driver.commit()
    assert [each[:3] for each in sent(driver)] == [
        ("2", b"1", "failed"),
        ("1", b"0", "answered"),
        ("1", b"2", "answered"),
    ]
    driver.replay()


def test_only_some_addresses_wait_for_one_answer() -> None:
    driver = Driver(Later)
    for number in range(40):
        driver.feed(Payment("ann", 5), "ann", headers_of("1", b"%d" % number), 1000)
    driver.feed(Payment("bob", 1), "bob", timestamp=20_000)
    driver.commit()
    assert [each[1] for each in sent(driver)] == [b"%d" % number for number in range(24, 40)]


# W3: strangers


@pytest.mark.parametrize(
    ("headers", "key", "cause"),
    [
        ([("statehold-request", b"")], b"ann", "an id has 1 to 200 characters"),
        ([("statehold-request", b"x" * (LONGEST_ID + 1))], b"ann", "this one has 201"),
        ([("statehold-request", b"\xff")], b"ann", "no UTF-8"),
        ([("statehold-request", None)], b"ann", "an id has 1 to"),
        ([("statehold-request", b"1"), ("statehold-reply-to", b"x" * (LONGEST_ADDRESS + 1))], b"ann", "more than 200"),
        ([("statehold-request", b"1")], None, "needs a key"),
    ],
)
def test_a_request_with_bad_headers_fails_as_a_record_that_cannot_be_decoded(
    headers: Any, key: bytes | None, cause: str
) -> None:
    driver = Driver(Payments)
    with pytest.raises(UndecodableRecord, match=f"BadRequest.*{cause}"):
        driver.feed(Payment("ann", 5), key, headers)
    driver.withdraw()
    assert sent(driver) == []
    assert driver.table(Payments.balances) == {}


def test_a_forged_return_address_stays_within_the_topic_of_replies() -> None:
    driver = Driver(Payments)
    driver.feed(Payment("ann", 5), "ann")
    driver.commit()
    before = {topic for topic, _ in driver.broker.logs}
    driver.feed(Payment("ann", 5), "ann", [*headers_of("1", b"other-topic\n[3]"), ("statehold-reply-to", b"second")])
    driver.commit()
    assert sent(driver) == [("1", b"other-topic\n[3]", "answered", {"balance": 10})]
    assert {topic for topic, _ in driver.broker.logs} - before == {driver.names.replies}


def test_a_command_is_no_request() -> None:
    driver = Driver(Payments)
    driver.feed(b"", "ann", [("statehold-command", b"x"), *headers_of("1", b"x")])
    driver.commit()
    assert sent(driver) == []


# What a handler may do


def test_a_reply_to_an_ordinary_record_goes_nowhere() -> None:
    driver = Driver(Payments)
    driver.feed(Payment("ann", 5), "ann")
    assert driver.table(Payments.balances) == {"ann": 5}
    assert (sent(driver), dict(driver.table(Payments.replies))) == ([], {})


def test_a_handler_without_replies_handles_a_request_as_any_record() -> None:
    class Plain(Handler[Payment]):
        balances = Table(key=str, value=int)

        def on_record(self, record: Record[Payment]) -> None:
            assert record.request is None
            self.balances[record.value.account] = record.value.amount
            if record.value.amount == 0:
                record.reply(1)

    driver = Driver(Plain)
    driver.feed(Payment("ann", 5), "ann", headers_of("1", b"x"))
    assert driver.table(Plain.balances) == {"ann": 5}
    assert lane(driver).engine().requests is None
    with pytest.raises(HandlerFailed, match=r"replies = Replies\(TYPE"):
        driver.feed(Payment("ann", 0), "ann", headers_of("1", b"x"))
    with pytest.raises(UsageError, match="answers no requests"):
        driver.ask(Payment("ann", 5), "ann")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (["twice"], "answered already"),
        ("x" * 300_000, "300002 bytes, the limit is 250000"),
        ("by hand", "holds the answers to requests"),
    ],
)
def test_a_bad_reply_fails_the_record_before_anything_is_sent(value: Any, error: str) -> None:
    class Bad(Handler[Payment]):
        replies = Replies(Json(Any), keep=60)

        def on_record(self, record: Record[Payment]) -> None:
            if value == "by hand":
                self.replies["", b""] = StoredReply(b"", 0)  # type: ignore[index]
            record.reply(value)
            if isinstance(value, list):
                record.reply(value)

    driver = Driver(Bad)
    with pytest.raises(HandlerFailed, match=error):
        driver.ask(Payment("ann", 1), "ann")
    assert sent(driver) == []


class Amounts(msgspec.Struct, frozen=True):
    amounts: list[int]


class FarAway(Exception):
    """The error of a serde of one's own."""


class Short:
    """A serde that reads less than it writes."""

    def encode(self, value: str, /) -> bytes:
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        if len(data) > 3:
            raise FarAway("too long")
        return data.decode()


@pytest.mark.parametrize("production", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        (Booked, {"balance": 5}, "replies: {'balance': 5} is of type dict, it is declared with Booked"),
        (Booked, Payment("ann", 1), "is of type Payment, it is declared with Booked"),
        (Booked, None, r"a null value \(a tombstone\) needs the type Booked \| None"),
        (Booked, Booked("much"), r"a reader of the answer Booked\(balance='much'\) would fail: Expected `int`"),  # type: ignore[arg-type]
        (Amounts, Amounts([1, "2"]), "would fail: Expected `int`, got `str`"),  # type: ignore[list-item]
        (int, 1.5, "1.5 is of type float, it is declared with int"),
        (str, 7, "7 is of type int, it is declared with str"),
        (bytes, "x", "'x' is of type str, it is declared with bytes"),
        (list[int], [1, "x"], "would fail: Expected `int`, got `str`"),
        (dict[str, int], {"a": None}, "would fail: Expected `int`, got `null`"),
        (Short(), "long", "would fail: too long"),
    ],
)
def test_an_answer_that_cannot_be_read_as_declared_is_rejected_before_it_is_stored(
    kind: Any, value: Any, error: str, production: bool
) -> None:
    class Wrong(Handler[Payment]):
        on_failure: ClassVar = {UsageError: dead_letter()}
        replies = Replies(kind, keep=60)

        def on_record(self, record: Record[Payment]) -> None:
            record.reply(value)

    settings = Settings(commit=CommitSettings(max_records=1000)) if production else None
    driver = Driver(Wrong, settings=settings)
    with pytest.raises(RequestFailed, match=error) as failed:
        driver.ask(Payment("ann", 1), "ann", id="1")
    assert (failed.value.error, failed.value.became) == ("UsageError", "dead letter")
    assert driver.table(Wrong.replies) == {}
    driver.replay()


def test_a_handler_that_catches_a_rejected_answer_does_so_in_a_replay_too() -> None:
    class Catching(Payments):
        def on_record(self, record: Record[Payment]) -> None:
            try:
                record.reply(Booked("much"))  # type: ignore[arg-type]
            except UsageError:
                record.reply(Booked(-1))

    driver = Driver(Catching, delta_interval="off")
    assert driver.ask(Payment("ann", 1), "ann", id="1") == Booked(-1)
    driver.crash()
    driver.restore()
    assert driver.ask(Payment("ann", 1), "ann", id="1") == Booked(-1)


@pytest.mark.parametrize("delta_interval", ["commit", 3600.0])
def test_a_handler_that_catches_a_rejected_size_does_so_once(delta_interval: Any) -> None:
    """A replay accepts each size, because the limit is a setting, so it must not repeat that transaction."""

    class Catching(Handler[Payment]):
        replies = Replies(str, keep=60)

        def on_record(self, record: Record[Payment]) -> None:
            try:
                record.reply("x" * 1_000_000)
            except UsageError:
                record.reply("too long")

    driver = Driver(Catching, delta_interval=delta_interval)
    assert driver.ask(Payment("ann", 1), "ann", id="0") == "too long"
    assert driver.ask(Payment("ann", 1), "ann", id="1") == "too long"
    driver.crash()
    driver.restore()
    assert driver.ask(Payment("ann", 1), "ann", id="1") == "too long"


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (int, True, 1),
        (int | None, None, None),
        (Booked | None, None, None),
        (list[int], (1, 2), [1, 2]),
        (float, 1, 1.0),
    ],
)
def test_an_answer_that_reads_as_an_equal_one_is_sent(kind: Any, value: Any, read: Any) -> None:
    class Right(Handler[Payment]):
        replies = Replies(kind, keep=60)

        def on_record(self, record: Record[Payment]) -> None:
            record.reply(value)

    assert Driver(Right).ask(Payment("ann", 1), "ann") == read


def test_a_replay_accepts_an_answer_that_was_within_the_limit_of_its_time() -> None:
    """Its record is committed, so a check could only stop the restore after kafka.message_max_bytes was lowered."""

    class Long(Handler[Payment]):
        replies = Replies(str, keep=60)

        def on_record(self, record: Record[Payment]) -> None:
            record.reply("x" * 10_000)

    driver = Driver(Long, delta_interval="off")
    assert driver.ask(Payment("ann", 1), "ann", id="1") == "x" * 10_000
    driver.crash()
    small = replace(driver.settings.snapshot, chunk_bytes=4096)
    driver.settings = replace(driver.settings, kafka=KafkaSettings(message_max_bytes=16_384), snapshot=small)
    driver.restore()
    assert driver.ask(Payment("ann", 1), "ann", id="1") == "x" * 10_000
    with pytest.raises(HandlerFailed, match="10000 bytes, the limit is 4096"):
        driver.ask(Payment("ann", 1), "ann", id="2")


def test_only_the_method_of_the_first_input_answers() -> None:
    class Two(Handler[Any]):
        replies = Replies(str, keep=60)

        @on("orders", value=Payment)
        def order(self, record: Record[Payment]) -> None:
            record.reply(f"order {record.value.amount}")

        @on("prices", value=str)
        def price(self, record: Record[str]) -> None:
            record.reply(f"price {record.value}")

    driver = Driver(Two)
    assert driver.ask(Payment("ann", 1), "ann", id="1") == "order 1"
    for number in ("1", "2"):
        driver.feed("7", "ann", headers_of(number, b"x"), input="prices")
    driver.commit()
    assert driver.ask(Payment("ann", 1), "ann", id="1") == "order 1"
    replies = driver.broker.log(driver.names.replies, 0).committed()
    assert [message.value() for message in replies] == [b"order 1", b"order 1"]


def test_a_record_of_a_rekey_with_the_headers_of_a_request_is_an_ordinary_one() -> None:
    class Splitting(Handler[Any]):
        by_account = Rekey("by_account", key=str, value=int)
        sums = Table(key=str, value=int)
        replies = Replies(int, keep=60)

        @on("payments", value=Payment)
        def payment(self, record: Record[Payment]) -> None:
            for amount in range(1, record.value.amount):
                self.by_account.send(amount, key=record.value.account)
            record.reply(record.value.amount)

        @on(by_account)
        def part(self, record: Record[int, str]) -> None:
            assert record.request is None
            self.sums["all"] = self.sums.get("all", 0) + record.value

    driver = Driver(Splitting)
    assert driver.ask(Payment("ann", 4), "ann", id="1") == 4
    for amount in (4, 5):
        driver.feed(b"%d" % amount, "ann", headers_of("1", b"x"), input=driver.names.rekeys[0])
    assert driver.table(Splitting.sums) == {"all": 1 + 2 + 3 + 4 + 5}
    assert len(sent(driver)) == 1


def test_declarations_that_cannot_work_are_rejected() -> None:
    class Batches(Handler[Payment]):
        replies = Replies(Booked, keep=60)

        def on_batch(self, records: Any) -> None: ...

    class Twice(Payments):
        others = Replies(str, keep=60)

    with pytest.raises(UsageError, match=r"on_batch, and .* Replies"):
        Driver(Batches)
    with pytest.raises(UsageError, match="declares Replies twice"):
        Driver(Twice)
    with pytest.raises(UsageError, match="above 0"):
        Replies(Booked, keep=0)


# Tools


def test_a_rehearsal_compares_the_answers() -> None:
    class Rounding(Dying):
        def on_record(self, record: Record[Payment]) -> None:
            record.reply(Booked(self.book(record.value) // 10 * 10))

    driver = Driver(Dying)
    for number in range(5):
        driver.ask(Payment("ann", 4), "ann", id=f"{number}")
    driver.ask(Payment("ann", 4), "ann", id="0")
    with pytest.raises(RequestFailed):
        driver.ask(Payment("bob", 13), "bob", id="0")
    assert rehearsed(driver, Dying).verdict == "equal"
    found = compared(rehearsed(driver, Rounding), "outputs", driver.names.replies)
    assert (found.compared, found.changed) == (7, 5)


def test_a_rebuilt_state_has_the_same_answers() -> None:
    driver = Driver(Dying)
    for number in range(5):
        driver.ask(Payment("ann", 4), "ann", id=f"{number}")
    assert rebuilt(driver, Dying).verdict == "equal"


def test_ids_go_to_the_partition_of_their_key() -> None:
    driver = Driver(Payments)
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        driver.ask(Payment(key, 1), key, id="1")
    state = lane(driver).engine().state
    drop_partition_data(state)
    for there, changes in KeyLayout(murmur2, {}, state.tables).redistribute(state, 0, 1, 4):
        if changes.table in ("replies", f"{EXPIRY}replies"):
            assert {murmur2(key, 4) for key, _ in changes.keys} == {there}
