"""Marks without deltas: the gap is replayed, with every side effect off, to the same state (5.6, rules D1, M4)."""

from __future__ import annotations

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Caller, Interval, Op, agrees, commit_records, events, rewrite

from statehold import Handler, Output, Record, Table
from statehold.bound.output import ORIGIN
from statehold.config import Settings
from statehold.config.sections.processing import OutputSettings
from statehold.errors import (
    DamagedIncrement,
    DigestMismatch,
    HandlerFailed,
    HangingTransaction,
    NonDeterministicReplay,
    RetentionGap,
    TopicReplaced,
    UnknownSchema,
)
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Part
from statehold.state.partition_table import Changes
from statehold.testing import Driver
from statehold.testing.memory.log import Transaction


@pytest.mark.parametrize("interval", ["off", 3600.0])
def test_outputs_and_effects_are_not_sent_again_and_coordinates_give_the_same(interval: Interval) -> None:
    driver = Driver(Caller, delta_interval=interval)
    driver.feed_all(range(5))
    seen, out = driver.table("seen"), driver.sent("out")
    driver.advance(1)
    effects = driver.effects
    driver.crash()
    driver.restore()
    assert events(driver, "replayed")[-1]["records"] == 5
    assert (driver.table("seen"), driver.sent("out"), driver.effects) == (seen, out, effects)
    assert len({identifier for _, _, identifier in seen.values()}) == 5


class Watcher(Handler[int]):
    """Knows whether it is replaying."""

    counts = Table(key=str, value=int)
    out = Output("out", value=int)

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []
        self.lives = 0

    def on_record(self, record: Record[int]) -> None:
        self.calls.append((record.value, self.replaying))
        self.counts["all"] = self.counts.get("all", 0) + 1
        self.out.send(record.value)

    def on_live(self) -> None:
        self.lives += 1


def test_a_handler_can_read_that_it_replays() -> None:
    driver = Driver(Watcher, delta_interval="off")
    driver.feed_all([1, 2])
    driver.commit()
    driver.crash()
    driver.restore()
    driver.feed(3)
    handler = driver.handler()
    assert isinstance(handler, Watcher)
    assert handler.calls == [(1, True), (2, True), (3, False)]
    assert handler.lives == 1
    assert driver.outputs("out") == [1, 2, 3]


def test_commands_are_replayed_too_and_ask_for_no_full_snapshot() -> None:
    class Switch(Handler[int]):
        state = Table(key=str, value=str)

        def on_record(self, record: Record[int]) -> None:
            self.state["last"] = str(record.value)

        def on_command(self, command: str, record: Record[bytes]) -> None:
            self.state["last"] = f"{self.state.get('last')} {command}"

    driver = Driver(Switch, delta_interval="off")
    driver.feed(1)
    driver.command("close")
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("state") == {"last": "1 close"}


def test_only_the_gap_after_the_last_delta_is_replayed() -> None:
    driver = Driver(Accounts, delta_interval=1.0, autocommit=False)
    ops = [Op("ann", 1), Op("bob", 2), Op("ann", 3)]
    driver.commit_record()
    for op in ops:
        driver.advance(0.6)
        driver.feed(op)
        driver.commit()
    assert [commit_record.delta for commit_record in commit_records(driver)] == [True, False, True, False]
    driver.crash()
    driver.restore()
    assert events(driver, "replayed")[-1]["records"] == 1
    assert agrees(driver, ops)


class Clock(Handler[int]):
    """Counts its own calls outside its tables."""

    seen = Table(key=int, value=int)

    def __init__(self) -> None:
        self.calls = 0

    def on_record(self, record: Record[int]) -> None:
        self.calls += 1
        self.seen[record.offset] = self.calls


def test_memory_outside_the_tables_is_found_by_the_digest() -> None:
    driver = Driver(Clock, delta_interval=1.0)
    driver.feed(1)
    driver.advance(1.5)
    driver.feed(1)
    driver.commit()
    driver.advance(1.5)
    driver.feed(1)
    driver.commit()
    driver.feed(1)
    driver.commit()
    driver.crash()
    with pytest.raises(NonDeterministicReplay, match=r'snapshot.delta_interval = "commit"'):
        driver.restore()


class Picky(Handler[int]):
    """Fails on what it has handled before, once `strict` is set."""

    strict = False
    seen = Table(key=int, value=int)

    def on_record(self, record: Record[int]) -> None:
        if self.strict and record.value == 2:
            raise ValueError("no twos")
        self.seen[record.offset] = record.value


def test_a_replay_that_raises_names_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Picky, delta_interval="off")
    driver.feed_all([1, 2, 3])
    driver.commit()
    driver.crash()
    monkeypatch.setattr(Picky, "strict", True)
    with pytest.raises(HandlerFailed, match=r"input\[0\]@1"):
        driver.restore()


def test_a_gap_that_is_not_in_the_input_any_more_is_rejected() -> None:
    driver = Driver(Accounts, delta_interval="off")
    driver.feed_all([Op("ann", 1), Op("bob", 1)])
    driver.commit()
    driver.crash()
    driver.broker.log("input", 0).truncate(1)
    with pytest.raises(RetentionGap, match="the topic begins at 1"):
        driver.restore()


def test_trailing_markers_and_aborted_records_do_not_shorten_a_replay_or_hang_it() -> None:
    """5.4, in memory."""
    driver = Driver(Accounts, delta_interval="off")
    log = driver.broker.log("input", 0)
    ops = [Op("ann", 1), Op("bob", 2)]
    for op in ops:
        log.abort_record(log.append(b"never"))
        transaction = Transaction()
        log.append(msgspec.json.encode(op), transaction=transaction)
        transaction.outcome = transaction.outcome.COMMITTED
        log.close(transaction)
    log.abort_record(log.append(b"never"))
    log.end += 1
    driver.commit()
    driver.commit_record()
    assert agrees(driver, ops)
    driver.crash()
    driver.restore()
    assert agrees(driver, ops)


def test_an_open_transaction_of_a_stranger_below_the_end_is_named() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()
    driver.broker.log(driver.names.changelog, 0).append(b"?", transaction=Transaction())
    with pytest.raises(HangingTransaction, match="a transaction is open"):
        driver.restore()


def test_a_topic_that_was_deleted_and_created_again_is_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()
    driver.names = type(driver.names)(driver.names.service, driver.names.input)
    place = inside.place(driver)
    place.topic_ids["input"] = "another"
    monkeypatch.setattr(driver, "_place", lambda partition: place)
    with pytest.raises(TopicReplaced, match="topic input was deleted and created again"):
        driver.restore()


def forge(driver: Driver) -> int:
    """Change a value in a delta, with a frame that is right; its offset."""
    log = driver.broker.log(driver.names.changelog, 0)
    for message in log.committed():
        record = records.unpack(message.value())
        if isinstance(record, Part):
            entry = records.entry(Changes("balances", ["ann"], [msgspec.msgpack.encode({"total": 99})]))
            log.replace(message.offset(), records.pack(Part(record.n, record.attempt, record.k, [entry])))
            return message.offset()
    raise AssertionError("no delta")


def test_a_state_that_is_not_the_one_that_was_written_never_goes_live() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()
    forge(driver)
    with pytest.raises(DigestMismatch, match=r"the restored state's digest is .*, its writer recorded"):
        driver.restore()


@pytest.mark.parametrize("garbage", [b"", b"foreign", b"\x01Zgarbage and more of it", b"\x02" + bytes(30)])
def test_a_foreign_record_on_the_changelog_is_damage(garbage: bytes) -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()
    driver.broker.log(driver.names.changelog, 0).append(garbage)
    with pytest.raises(DamagedIncrement, match="a record cannot be read"):
        driver.restore()


def test_a_table_that_the_code_does_not_declare_any_more_is_not_dropped_in_silence() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()
    driver._factory = Clock
    with pytest.raises(UnknownSchema, match="holds table 'balances', this code declares: seen"):
        driver.restore()


class Relaying(Handler[int]):
    """Sends records on with their headers."""

    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.out.send(record.value, headers=record.headers)


@pytest.mark.parametrize("origin", [True, False])
@pytest.mark.parametrize("data", [b"x", None, b"", ORIGIN.pack(5, 999, 0), ORIGIN.pack(0, 999, 0)])
def test_a_header_of_another_program_is_no_difference(data: bytes | None, origin: bool) -> None:
    driver = Driver(Relaying, settings=Settings(output=OutputSettings(origin=origin)))
    driver.feed(1, headers=[("sh", data), ("trace", b"t")])  # type: ignore[list-item]
    driver.replay()
    assert [record.headers for record in driver.sent("out")] == [(("sh", data), ("trace", b"t"))]


def test_a_commit_record_alone_is_compared_although_no_record_is_replayed() -> None:
    """Rule D1: the digest of a record without a delta, behind the last one with a delta."""
    driver = Driver(Accounts, delta_interval=100.0)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.advance(100.0)
    driver.feed(Op("ann", 2))
    driver.commit()
    before = driver.commit_record()
    driver.command("pause", via_control_topic=True)
    driver.advance(1.0)
    alone = driver.commit_record()
    assert (before.delta, alone.delta, alone.start) == (True, False, driver.position())
    driver.crash()
    rewrite(driver, lambda record: msgspec.structs.replace(record, digest=b"?" * 16))
    with pytest.raises(NonDeterministicReplay, match="replaying 2 to 2 gave digest"):
        driver.restore()
