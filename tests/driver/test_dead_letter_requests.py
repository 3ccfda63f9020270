"""`dlq add` in the driver: only the record at which the partition failed, in its transaction, and as in a replay."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import Interval

from statehold import Handler, Output, Record, Table, dead_letter, park, retry, stop
from statehold.api.record import MemoryMessage
from statehold.errors import HandlerFailed, OutputRefused, UndecodableRecord
from statehold.messages.command import GO_ON, PAUSE
from statehold.messages.dead_letter import ADD, BLOCKED_KEYS
from statehold.testing import Driver
from statehold.worker.handler.record_failure import SideInputFailed

DELTAS: list[Interval] = ["commit", 5.0]


class Posting(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Ledger(Handler[Posting]):
    """The default policy: the partition fails."""

    balances = Table(key=str, value=int)
    lines = Output("lines", value=str)
    rejected: ClassVar[set[int]] = {13}

    def on_record(self, record: Record[Posting]) -> None:
        posting = record.value
        self.balances[posting.account] = self.balances.get(posting.account, 0) + posting.amount
        self.lines.send(f"{posting.account} {posting.amount}", key=posting.account)
        if posting.amount in self.rejected:
            raise ValueError(f"{posting.amount} is rejected")


class Ordered(Ledger):
    """A key with a dead letter is blocked; this failure has another policy."""

    on_failure: ClassVar = {ConnectionError: dead_letter(), ValueError: retry(1, seconds=0.1).then(park())}


class Stopping(Ledger):
    on_failure: ClassVar = {ValueError: stop()}


def post(driver: Driver, account: str | None, amount: int) -> int:
    return driver.feed(Posting(account or "none", amount), key=account)


def fail(driver: Driver, account: str | None) -> int:
    """Three records, of which the last one is rejected; its offset."""
    for amount in (1, 2):
        post(driver, account, amount)
    with pytest.raises(HandlerFailed, match="13 is rejected"):
        post(driver, account, 13)
    return 2


def rejections(driver: Driver) -> list[str]:
    return [fields["cause"] for name, fields in driver.events if name == "command_rejected"]


@pytest.mark.parametrize("interval", DELTAS)
@pytest.mark.parametrize("kind", [Ledger, Stopping])
def test_a_record_without_a_key_becomes_a_dead_letter_and_the_partition_continues(
    kind: type[Ledger], interval: Interval
) -> None:
    driver = Driver(kind, delta_interval=interval)
    offset = fail(driver, None)
    driver.dead_letter(offset, why="ticket 17")
    driver.restore()
    post(driver, "ann", 4)
    assert driver.table("balances") == {"none": 3, "ann": 4}
    assert driver.outputs("lines") == ["none 1", "none 2", "ann 4"]
    (letter,) = driver.dead_letters()
    assert (letter.offset, letter.why, letter.error, letter.text) == (2, "raised", "ValueError", "13 is rejected")
    assert (letter.who, letter.reason, letter.ordered) == ("driver", "ticket 17", False)
    assert letter.id
    noted = [fields for name, fields in driver.events if name == "dead_letter"]
    assert [(each["offset"], each["who"], each["why"]) for each in noted] == [(2, "driver", "ticket 17")]
    assert rejections(driver) == []
    driver.replay()
    digest = driver.commit_record().digest
    driver.crash()
    driver.restore()
    assert driver.commit_record().digest == digest
    assert driver.table("balances") == {"none": 3, "ann": 4}
    assert len(driver.dead_letters()) == 1


def test_the_transaction_of_the_dead_letter_acknowledges_the_command() -> None:
    driver = Driver(Ledger)
    driver.dead_letter(fail(driver, None))
    before = driver.broker.offsets[driver.names.input, 0]
    driver.restore()
    driver.commit()
    record = driver.commit_record()
    assert (record.start, record.positions[driver.names.input]) == (before, 3)
    assert [each.name for each in record.commands] == [ADD]
    assert record.positions[driver.names.control] == 1
    assert record.pinned == ()


def test_later_records_of_the_key_would_overtake_it_so_the_operator_has_to_say_so() -> None:
    driver = Driver(Ledger)
    offset = fail(driver, "ann")
    driver.dead_letter(offset)
    with pytest.raises(HandlerFailed, match="13 is rejected"):
        driver.restore()
    assert "later records of the key would overtake this one" in rejections(driver)[-1]
    assert "dlq add 0 2 --overtake" in rejections(driver)[-1]
    assert driver.dead_letters() == []
    driver.dead_letter(offset, overtake=True, why="yes")
    driver.restore()
    post(driver, "ann", 4)
    assert driver.table("balances") == {"ann": 7}
    assert [(each.offset, each.ordered) for each in driver.dead_letters()] == [(2, False)]
    driver.advance(1)
    assert driver.commit_record().positions[driver.names.control] == 2
    driver.replay()


def test_a_handler_with_dead_letters_blocks_the_key_so_nothing_overtakes() -> None:
    driver = Driver(Ordered)
    offset = fail(driver, "ann")
    driver.dead_letter(offset, why="ticket")
    driver.restore()
    post(driver, "ann", 4)
    post(driver, "bob", 5)
    assert driver.table("balances") == {"ann": 3, "bob": 5}
    assert [(each.offset, each.why, each.reason) for each in driver.dead_letters()] == [
        (2, "raised", "ticket"),
        (3, "followed", ""),
    ]
    assert driver.table(BLOCKED_KEYS)[b"ann"].waiting == 2
    driver.replay()
    driver.crash()
    driver.restore()
    assert driver.release("ann", discard=True, why="wrong") == 2
    driver.advance(1)
    post(driver, "ann", 6)
    assert driver.table("balances") == {"ann": 9, "bob": 5}
    driver.replay()


def test_a_handler_that_declares_none_cannot_redrive_what_was_written_by_command() -> None:
    driver = Driver(Ledger)
    driver.dead_letter(fail(driver, None))
    driver.restore()
    assert driver.release() == 1
    driver.advance(1)
    assert "declares no dead_letter policy" in rejections(driver)[-1]
    assert len(driver.dead_letters()) == 1
    assert driver.table("balances") == {"none": 3}


@pytest.mark.parametrize("offset", [0, 1, 3, 99])
def test_another_offset_than_the_failed_one_has_no_effect_and_ends_once_the_partition_continues(offset: int) -> None:
    driver = Driver(Ledger)
    failed = fail(driver, None)
    driver.dead_letter(offset)
    with pytest.raises(HandlerFailed, match="13 is rejected"):
        driver.restore()
    assert driver.dead_letters() == []
    driver.dead_letter(failed)
    driver.restore()
    driver.advance(1)
    assert [each.offset for each in driver.dead_letters()] == [failed]
    assert len(rejections(driver)) == 1
    assert driver.commit_record().positions[driver.names.control] == 2


def test_a_record_that_the_handler_accepts_by_now_is_no_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Ledger)
    driver.dead_letter(fail(driver, "ann"), overtake=True)
    monkeypatch.setattr(Ledger, "rejected", set())
    driver.restore()
    driver.advance(1)
    assert driver.table("balances") == {"ann": 16}
    assert driver.dead_letters() == []
    (cause,) = rejections(driver)
    assert cause.startswith("dlq-bury 0 2: the partition has passed the record. `statehold dlq show 0@2` shows")


def test_a_command_that_comes_before_its_record_waits_without_commits() -> None:
    driver = Driver(Ledger)
    post(driver, None, 1)
    driver.commit()
    driver.dead_letter(1)
    first = driver.commit_record().n
    driver.advance(5)
    assert driver.commit_record().n == first
    assert driver.commit_record().positions.get(driver.names.control, 0) == 0
    post(driver, None, 13)
    driver.commit()
    assert [each.offset for each in driver.dead_letters()] == [1]


@pytest.mark.parametrize("wait", [0.0, 2.0])
def test_on_a_paused_partition_it_is_rejected_because_the_command_that_resumes_may_be_behind_it(wait: float) -> None:
    driver = Driver(Ledger)
    post(driver, None, 1)
    driver.commit()
    driver.command(PAUSE, via_control_topic=True)
    driver.advance(wait)
    driver.dead_letter(1)
    driver.advance(2)
    assert driver.commit_record().paused is not None
    driver.command(GO_ON, via_control_topic=True)
    driver.advance(2)
    assert driver.commit_record().paused is None
    assert driver.commit_record().positions[driver.names.control] == 3
    (cause,) = rejections(driver)
    assert cause == "dlq-bury 0 1: the partition is paused. Next: `statehold resume --partitions 0`, then send it again"
    with pytest.raises(HandlerFailed, match="13 is rejected"):
        post(driver, None, 13)
    driver.dead_letter(1)
    driver.restore()
    assert [each.offset for each in driver.dead_letters()] == [1]
    driver.replay()


def test_a_side_input_that_fails_before_the_record_is_not_the_record() -> None:
    """An output of a command of the control topic is rejected; its error names the input's next offset."""
    driver = Driver(Ledger)
    post(driver, None, 1)
    driver.commit()
    driver.dead_letter(1)
    live = inside.lane(driver).live()
    failure = SideInputFailed(1, OutputRefused("too large", topic="input", partition=0, position=1))
    with pytest.raises(OutputRefused, match="too large"):
        live.pipeline.decisions().face(failure, MemoryMessage("input", 0, 1, b""), driver.commit_record())
    assert live.engine.dead_letters is None


def test_an_undecodable_record_too() -> None:
    driver = Driver(Ledger)
    with pytest.raises(UndecodableRecord):
        driver.feed(b"no posting")
    driver.dead_letter(0)
    driver.restore()
    assert [each.error for each in driver.dead_letters()] == ["UndecodableRecord"]


def test_without_deltas_a_replay_would_meet_the_record_so_it_is_rejected() -> None:
    driver = Driver(Ledger, delta_interval="off")
    driver.dead_letter(fail(driver, None))
    with pytest.raises(HandlerFailed):
        driver.restore()
    assert "snapshot.delta_interval is off" in rejections(driver)[-1]


@given(
    st.lists(st.tuples(st.sampled_from(["ann", "bob", None]), st.sampled_from([1, 2, 13])), min_size=1, max_size=20),
    st.sampled_from([Ledger, Ordered]),
    st.sampled_from(DELTAS),
    st.data(),
)
def test_any_input_with_kills_gives_each_record_once_and_the_state_of_a_replay(
    postings: list[tuple[str | None, int]], kind: type[Ledger], interval: Interval, data: st.DataObject
) -> None:
    """Every failing record is dead-lettered by command; the process may be killed before and after the retry."""
    driver = Driver(kind, delta_interval=interval)
    for account, amount in postings:
        try:
            post(driver, account, amount)
            driver.commit()
        except HandlerFailed as error:
            driver.dead_letter(error.position, overtake=True, why="any")
            if data.draw(st.booleans(), "killed before"):
                driver.crash()
            driver.restore()
        if data.draw(st.booleans(), "killed after"):
            driver.crash()
            driver.restore()
    driver.commit()
    good: dict[str, int] = {}
    for account, amount in postings:
        if amount != 13:
            good[account or "none"] = good.get(account or "none", 0) + amount
    bad = [offset for offset, (_, amount) in enumerate(postings) if amount == 13]
    assert driver.table("balances") == good
    assert [(each.offset, each.reason) for each in driver.dead_letters()] == [(offset, "any") for offset in bad]
    driver.replay()
    digest = driver.commit_record().digest
    driver.crash()
    driver.restore()
    assert driver.commit_record().digest == digest
