"""Commands have their place in the order, the next commit record acknowledges them; `take` gives a full snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Interval, Op, agrees, commit_records, events, many, sliced, snapshot

from statehold import Handler, Record, Table
from statehold.config.sections.processing import CommandSettings
from statehold.errors import KafkaTrouble, UndecodableRecord
from statehold.messages.command import TAKE, Command, header
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0, "off"]


class Register(Handler[int]):
    """The sum of the records since the last command `cut`."""

    sums = Table(key=str, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.sums["now"] = self.sums.get("now", 0) + record.value

    def on_command(self, command: str, record: Record[bytes]) -> None:
        if command == "cut":
            self.sums["cut"] = self.sums.get("now", 0)
            self.sums["now"] = 0


@pytest.mark.parametrize("interval", INTERVALS)
def test_the_next_commit_record_acknowledges_and_a_replay_keeps_the_order(interval: Interval) -> None:
    driver = Driver(Register, delta_interval=interval)
    driver.feed_all([1, 2])
    at = driver.command("cut", id="one")
    driver.feed(4)
    assert driver.commit_record().commands == (Command("cut", "one", "driver", at),)
    driver.feed(8)
    driver.commit()
    assert driver.commit_record().commands == ()
    driver.crash()
    driver.restore()
    assert driver.table("sums") == {"now": 12, "cut": 3}
    assert [commit_record.commands for commit_record in commit_records(driver)].count(()) == len(
        commit_records(driver)
    ) - 1


def test_a_command_whose_transaction_is_undone_is_acknowledged_once() -> None:
    driver = Driver(Register)
    driver.feed(1)
    driver.rebalance()
    driver.command("cut")
    driver.commit()
    assert len(events(driver, "rolled_back")) == 1
    assert sum(len(commit_record.commands) for commit_record in commit_records(driver)) == 1
    assert driver.table("sums") == {"now": 0, "cut": 1}


@pytest.mark.parametrize("interval", INTERVALS)
def test_take_leads_to_a_full_snapshot_that_begins_no_earlier(interval: Interval) -> None:
    driver = Driver(Accounts, delta_interval=interval)
    snapshot(driver, periodic_full=False)
    driver.feed(Op("ann", 1))
    driver.command(TAKE, id="t")
    driver.feed(Op("ann", 2))
    driver.commit()
    asked = driver.commit_record()
    assert (asked.take, [command.id for command in asked.commands]) == (asked.n, ["t"])
    driver.advance(20.0)
    assert driver.commit_record().take == 0
    assert driver.commit_record().full_snapshots[0].first >= asked.n
    assert agrees(driver, [Op("ann", 1), Op("ann", 2)])
    driver.advance(100.0)
    assert len(driver.commit_record().full_snapshots) == 1


def test_the_next_owner_takes_the_full_snapshot_that_a_command_requested() -> None:
    driver = Driver(Accounts)
    snapshot(driver, periodic_full=False)
    driver.feed(Op("ann", 1))
    driver.command(TAKE)
    driver.commit()
    driver.crash()
    driver.restore()
    driver.advance(20.0)
    assert (driver.commit_record().take, len(driver.commit_record().full_snapshots)) == (0, 1)


def test_a_full_snapshot_begun_before_the_command_does_not_answer_it() -> None:
    driver = Driver(Accounts)
    sliced(driver)
    driver.feed_all(many(40))
    driver.commit()
    inside.lane(driver).live().full_snapshots.ask()
    while not events(driver, "full_started"):
        driver.advance(0.1)
    driver.command(TAKE)
    driver.commit()
    asked = driver.commit_record().n
    driver.advance(30.0)
    newest, older = driver.commit_record().full_snapshots
    assert older.first < asked <= newest.first


def test_a_full_snapshot_that_is_abandoned_is_tried_again_for_the_command() -> None:
    driver = Driver(Accounts)
    snapshot(driver, periodic_full=False)
    driver.feed(Op("ann", 1))
    driver.broker.fail("full", KafkaTrouble("no leader"), times=3)
    driver.command(TAKE)
    driver.commit()
    driver.advance(60.0)
    assert len(events(driver, "full_abandoned")) == 3
    assert (driver.commit_record().take, len(driver.commit_record().full_snapshots)) == (0, 1)


def test_a_full_snapshot_that_a_restore_would_not_load_is_rarely_tried_again_for_the_command() -> None:
    """Each try writes the whole state, and the next one may end likewise."""
    driver = Driver(Accounts)
    snapshot(driver, periodic_full=False)
    driver.feed(Op("ann", 1))
    table = next(iter(inside.lane(driver).live().engine.state.tables.values()))
    table.stored[b"planted"] = b"1"
    table.order.append(b"planted")
    driver.command(TAKE)
    driver.commit()
    driver.advance(290.0)
    assert len(events(driver, "full_abandoned")) == 1
    driver.advance(60.0)
    assert len(events(driver, "full_abandoned")) == 2


def test_a_malformed_command_stops_the_partition_at_its_record() -> None:
    driver = Driver(Register)
    driver.feed(1)
    with pytest.raises(UndecodableRecord, match=r"input\[0\]@1: BadCommand"):
        driver.feed(None, headers=[("statehold-command", b"{")])
    driver.withdraw()
    driver.feed(2)
    assert driver.table("sums") == {"now": 3}


@pytest.mark.parametrize("interval", INTERVALS)
def test_commands_that_come_by_the_input_can_be_rejected(interval: Interval) -> None:
    """The right to produce is no right to command; a command when it was handled is a command in a replay."""
    driver = Driver(Register, delta_interval=interval)
    driver.feed(1)
    driver.command("cut")
    driver.commit()
    driver.settings = replace(driver.settings, commands=CommandSettings(from_input=False))
    driver.crash()
    driver.restore()
    before = driver.table("sums")
    for name in ("cut", TAKE, "statehold.tick"):
        with pytest.raises(UndecodableRecord, match=r"commands\.from_input is off"):
            driver.command(name)
        driver.withdraw()
    assert driver.table("sums") == before
    driver.command("cut", via_control_topic=True)
    driver.feed(2)
    driver.commit()
    assert driver.table("sums") != before
    after = driver.table("sums")
    driver.restore()
    assert driver.table("sums") == after


def test_the_whole_input_handled_again_includes_its_commands() -> None:
    driver = Driver(Register, batch=2)
    driver.feed_all([1, 2, 3])
    driver.command("cut")
    driver.command(TAKE)
    driver.feed(5)
    driver.replay()
    assert driver.table("sums") == {"now": 5, "cut": 6}


def send_control(driver: Driver, name: str) -> None:
    """What `snapshot take --via-control-topic` does."""
    driver.broker.log(driver.names.control, 0).append(None, headers=[header(name, f"id of {name}")])


@pytest.mark.parametrize("interval", INTERVALS)
def test_take_on_the_control_topic_runs_once(interval: Interval) -> None:
    driver = Driver(Accounts, delta_interval=interval)
    snapshot(driver, periodic_full=False)
    driver.feed(Op("ann", 1))
    driver.commit()
    send_control(driver, TAKE)
    driver.advance(30.0)
    (acknowledging,) = [commit_record for commit_record in commit_records(driver) if commit_record.commands]
    assert acknowledging.commands == (Command(TAKE, f"id of {TAKE}", "", 0),)
    assert acknowledging.positions == {"input": 1, driver.names.control: 1}
    assert driver.commit_record().full_snapshots[0].first >= acknowledging.n
    for _ in range(2):
        driver.crash()
        driver.restore()
        driver.feed(Op("ann", 2))
        driver.advance(30.0)
    assert (len(driver.commit_record().full_snapshots), driver.commit_record().positions[driver.names.control]) == (
        1,
        1,
    )
    send_control(driver, TAKE)
    driver.advance(30.0)
    assert len(driver.commit_record().full_snapshots) == 2
    assert agrees(driver, [Op("ann", 1), Op("ann", 2), Op("ann", 2)])


def test_the_successful_commit_acknowledges_a_command_of_the_control_topic() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    send_control(driver, TAKE)
    driver.rebalance()
    driver.feed(Op("ann", 2))
    driver.commit()
    assert len(events(driver, "rolled_back")) == 1
    assert [len(commit_record.commands) for commit_record in commit_records(driver)][-1] == 1
    assert sum(len(commit_record.commands) for commit_record in commit_records(driver)) == 1
