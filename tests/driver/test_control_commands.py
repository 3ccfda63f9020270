"""Users' commands of the control topic: each handled once, where its commit record pins it, by any owner."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support.handlers import Interval, commit_records, events, snapshot

from statehold import Handler, Output, Record, Table
from statehold.errors import HandlerFailed, MessageRefused, OutcomeUnknown, OutputRefused
from statehold.messages.command import FINISH_UPGRADE, TAKE, header
from statehold.snapshot.format import frame
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0, "off"]


class Register(Handler[int]):
    """The sum of the records since the last command; every answer names what it followed."""

    sums = Table(key=str, value=int)
    seen = Table(key=str, value=str)
    answers = Output("answers", value=str)
    broken = False

    def on_record(self, record: Record[int]) -> None:
        self.sums["now"] = self.sums.get("now", 0) + record.value
        self.answers.send(f"record {record.offset}")

    def on_command(self, command: str, record: Record[bytes]) -> None:
        if command == "break" and self.broken:
            raise ValueError("cannot do that")
        self.sums[command] = self.sums.get("now", 0)
        self.sums["now"] = 0
        self.seen[command] = (
            f"{record.topic}@{record.offset} {len(record.value)} {record.timestamp} {record.uuid()} {self.partition}"
        )
        self.answers.send(f"{command} {self.sums[command]}")
        self.effect(tell, command)


def tell(key: tuple[str, int, int, int], command: str) -> None:
    """An external system."""


def ordered(driver: Driver) -> list[str]:
    """What must have been answered: the records and the pinned commands, as the marks place them."""
    said, total, read = [], 0, 0
    values = {message.offset(): int(message.value() or b"0") for message in driver.broker.log("input", 0).committed()}
    for commit_record in commit_records(driver):
        for offset in range(read, commit_record.positions["input"]):
            said.append(f"record {offset}")
            total += values[offset]
        read = commit_record.positions["input"]
        for command in commit_record.pinned:
            name = json.loads(dict(command.headers)["statehold-command"] or b"")["name"]
            said.append(f"{name} {total}")
            total = 0
    return said


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_command_is_handled_once_and_a_replay_handles_it_at_the_same_place(interval: Interval) -> None:
    driver = Driver(Register, delta_interval=interval)
    driver.feed_all([1, 2])
    at = driver.command("cut", b"why", id="one", via_control_topic=True)
    driver.feed(4)
    driver.commit()
    acknowledging = driver.commit_record()
    assert [(command.name, command.id, command.offset) for command in acknowledging.commands] == [("cut", "one", at)]
    assert [(pinned.offset, pinned.value) for pinned in acknowledging.pinned] == [(at, b"why")]
    assert acknowledging.positions == {"input": 3, driver.names.control: at + 1}
    driver.feed(8)
    driver.commit()
    before, seen = driver.table("sums"), driver.table("seen")
    assert before == {"cut": 7, "now": 8}
    for _ in range(2):
        driver.broker.log(driver.names.control, 0).truncate(99)  # nothing of it is needed any more
        driver.crash()
        driver.restore()
        assert (driver.table("sums"), driver.table("seen")) == (before, seen)
    driver.advance(30.0)
    assert driver.outputs("answers") == ["record 0", "record 1", "record 2", "cut 7", "record 3"]
    assert [call.key[:3] for call in driver.effects] == [(driver.names.control, 0, at)]
    driver.replay()


def test_a_command_in_a_later_delta_is_not_handled_again() -> None:
    driver = Driver(Register, delta_interval=5.0)
    driver.feed(1)
    driver.commit()
    driver.advance(6.0)
    driver.feed(2)
    driver.commit()
    for number in range(3):
        driver.command(f"c{number}", via_control_topic=True)
        driver.feed(4)
        driver.commit()
    assert not any(commit_record.delta for commit_record in commit_records(driver) if commit_record.pinned)
    driver.advance(6.0)
    driver.feed(8)
    driver.commit()
    assert driver.commit_record().delta
    driver.command("last", via_control_topic=True)
    driver.feed(16)
    driver.commit()
    before = driver.table("sums"), driver.table("seen")
    driver.crash()
    driver.restore()
    assert (driver.table("sums"), driver.table("seen")) == before


@pytest.mark.parametrize("interval", INTERVALS)
def test_without_records_a_command_gets_a_transaction_of_its_own(interval: Interval) -> None:
    driver = Driver(Register, delta_interval=interval)
    driver.feed(5)
    driver.commit()
    snapshot(driver, periodic_full=False)
    n = driver.commit_record().n
    for name in ("a", "b", "c"):
        driver.command(name, via_control_topic=True)
        driver.advance(1.0)
    assert [
        [c.name for c in commit_record.commands]
        for commit_record in commit_records(driver)
        if commit_record.n > n and commit_record.pinned
    ] == [
        ["a"],
        ["b"],
        ["c"],
    ]
    driver.crash()
    driver.restore()
    assert driver.table("sums") == {"a": 5, "b": 0, "c": 0, "now": 0}
    assert driver.outputs("answers") == ["record 0", "a 5", "b 0", "c 0"]
    assert driver.position() == 1


def test_commands_keep_their_order_also_among_those_of_statehold() -> None:
    driver = Driver(Register, delta_interval="off")
    driver.feed(1)
    for name in ("a", TAKE, "b", FINISH_UPGRADE, "c"):
        driver.command(name, via_control_topic=True)
    driver.feed(2)
    driver.commit()
    first = driver.commit_record()
    assert [command.name for command in first.commands] == ["a", TAKE, "b", FINISH_UPGRADE]
    assert [pinned.offset for pinned in first.pinned] == [0, 2]
    driver.advance(1.0)
    assert [
        command.name
        for commit_record in commit_records(driver)
        if commit_record.n > first.n
        for command in commit_record.commands
    ] == ["c"]
    assert driver.table("sums") == {"a": 3, "b": 0, "c": 0, "now": 0}


def test_a_commit_record_pins_no_more_than_fits() -> None:
    driver = Driver(Register)
    driver.feed(1)
    driver.commit()
    for number in range(250):
        driver.command(f"many-{number}", via_control_topic=True)
    driver.advance(5.0)
    assert [len(commit_record.pinned) for commit_record in commit_records(driver) if commit_record.pinned] == [
        100,
        100,
        50,
    ]
    for number in range(5):
        driver.command(f"long-{number}", b"x" * 200_000, via_control_topic=True)
    driver.advance(5.0)
    assert [
        len(commit_record.pinned)
        for commit_record in commit_records(driver)
        if any(each.value for each in commit_record.pinned)
    ] == [2, 2, 1]
    assert (
        Counter(c.name for commit_record in commit_records(driver) for c in commit_record.commands).most_common(1)[0][1]
        == 1
    )
    assert len(driver.table("seen")) == 255


def test_a_rolled_back_command_is_handled_again_and_counts_once() -> None:
    driver = Driver(Register)
    driver.feed(1)
    driver.commit()
    driver.feed(2)
    driver.command("cut", via_control_topic=True)
    driver.rebalance()
    driver.commit()
    assert len(events(driver, "rolled_back")) == 1
    assert driver.table("sums") == {"cut": 3, "now": 0}
    assert driver.outputs("answers") == ["record 0", "record 1", "cut 3"]


@pytest.mark.parametrize("committed", [True, False])
def test_an_unknown_outcome_is_resolved_by_the_last_commit_record(committed: bool) -> None:
    driver = Driver(Register)
    driver.feed(1)
    driver.commit()
    driver.command("cut", via_control_topic=True)
    driver.broker.fail("commit", OutcomeUnknown("no answer"), after=committed)
    driver.advance(5.0)
    driver.commit()
    assert driver.table("sums") == {"cut": 1, "now": 0}
    assert driver.outputs("answers") == ["record 0", "cut 1"]
    assert sum(len(commit_record.pinned) for commit_record in commit_records(driver)) == 1


def test_a_command_that_fails_stops_the_partition_after_a_commit_of_what_came_before() -> None:
    driver = Driver(Register, autocommit=False)
    driver.feed(1)
    driver.command("first", via_control_topic=True)
    driver.commit()
    Register.broken = True
    try:
        driver.feed(2)
        at = driver.command("break", via_control_topic=True)
        with pytest.raises(HandlerFailed, match=r"register\.input\.control\[0\]@1: .*cannot do that") as failure:
            driver.commit()
        assert failure.value.position == at
        assert [commit_record.positions["input"] for commit_record in commit_records(driver)][-1] == 2
        assert sum(len(commit_record.pinned) for commit_record in commit_records(driver)) == 1
        driver.restore()
        with pytest.raises(HandlerFailed):
            driver.advance(2.0)
    finally:
        Register.broken = False
    driver.restore()
    driver.advance(2.0)
    driver.commit()
    assert driver.table("sums") == {"first": 1, "break": 2, "now": 0}
    assert driver.outputs("answers") == ["record 0", "first 1", "record 1", "break 2"]


def test_a_command_fails_by_name_when_its_answer_is_too_large() -> None:
    driver = Driver(Register)
    driver.feed(1)
    driver.commit()
    driver.broker.fail("send", MessageRefused("too large"), times=1_000)
    driver.command("shout", via_control_topic=True)
    with pytest.raises(OutputRefused, match="an output of a command of the control topic"):
        driver.advance(5.0)


def test_the_older_format_pins_nothing_and_says_so() -> None:
    class Old(Driver):
        _format = frame.PINNING - 1

    driver = Old(Register)
    driver.feed(1)
    driver.command("cut", via_control_topic=True)
    driver.feed(2)
    driver.advance(5.0)
    assert driver.table("sums") == {"now": 3}
    (refused,) = events(driver, "command_rejected")
    assert "run `statehold finish-upgrade`" in refused["cause"]
    driver.command(FINISH_UPGRADE)
    driver.commit()
    driver.command("cut", via_control_topic=True)
    driver.advance(5.0)
    assert driver.table("sums")["cut"] + driver.table("sums")["now"] == 3


def test_a_malformed_command_is_skipped_and_logged() -> None:
    driver = Driver(Register)
    driver.feed(1)
    driver.broker.log(driver.names.control, 0).append(b"hello")
    driver.broker.log(driver.names.control, 0).append(None, headers=[header("cut")])
    driver.advance(5.0)
    assert driver.table("sums") == {"cut": 1, "now": 0}


moves = st.lists(
    st.one_of(
        st.integers(1, 9), st.sampled_from(["command", "commit", "advance", "crash", "rebalance", "stop", "full"])
    ),
    max_size=40,
)


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves, st.sampled_from(INTERVALS))
def test_in_any_history_each_command_is_handled_once_where_its_commit_record_pins_it(
    moves: list[object], interval: Interval
) -> None:
    driver = Driver(Register, delta_interval=interval, autocommit=False)
    driver.feed(0)
    sent = 0
    for move in moves:
        match move:
            case int():
                driver.feed(move)
            case "command":
                driver.command(f"c{sent}", via_control_topic=True)
                sent += 1
            case "commit":
                driver.commit()
            case "advance":
                driver.advance(2.0)
            case "rebalance":
                driver.rebalance()
            case "crash" | "stop":
                driver.crash() if move == "crash" else driver.stop()
                driver.restore()
            case "full":
                driver.take_full()
    driver.advance(5.0)
    driver.commit()
    order = ordered(driver) if driver.broker.log(driver.names.changelog, 0).start == 0 else None
    answers = driver.outputs("answers")
    if order is not None:
        assert answers == order
    assert [answer for answer in answers if answer.startswith("c")] == [
        answer for answer in answers if answer.split()[0] in {f"c{number}" for number in range(sent)}
    ]
    assert Counter(answer.split()[0] for answer in answers if answer.startswith("c")) == Counter(
        f"c{number}" for number in range(sent)
    )
    tables = driver.table("sums"), driver.table("seen")
    driver.crash()
    driver.restore()
    assert (driver.table("sums"), driver.table("seen")) == tables
