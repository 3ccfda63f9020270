"""A tool changes a state behind a fence; the next owner continues from it, and nothing of the old one returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Balance, Interval, Op, commit_records, events

from statehold.errors import DamagedIncrement, Fenced, MixedLineages, OutcomeUnknown, ProducerFenced
from statehold.snapshot import full_listing, state_replacement
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.snapshot.restore.restore import restore
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.state.state import State
from statehold.testing import Driver
from statehold.testing.memory.broker import Call
from statehold.testing.memory.clients import MemoryFullSink, MemoryReader, MemoryTransactions
from statehold.worker.handler.engine import Engine

REASON = ReplacementReason(tool="test 1", who="ann", why="all totals doubled")
OPS = [Op("ann", 1), Op("bob", 2), Op("ann", 3)]

Change = Callable[[State], None]


class Tool:
    """What `statehold state ...` does, on the cluster in memory: fence, read, write a full, adopt."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.place = driver, inside.place(driver)
        self.reader = MemoryReader(driver.broker, lambda: False)
        self.producer = MemoryTransactions(driver.broker, driver.names, 0)
        self.producer.fence(lambda: False)
        found = last_commit_record(self.reader, driver.names.changelog, 0)
        assert found is not None
        self.old: CommitRecord = found

    def state(self) -> State:
        new = partial(Engine, Accounts, 0)
        return restore(self.reader, self.place, lambda: new().state, lambda *_: None, self.driver.clock).state

    def full(self, state: State, lineage: str) -> FullRef:
        shown = state_replacement.boundary(
            self.place, lineage, self.old.n + 1, {"input": self.old.positions["input"]}, state, self.old, 1.5
        )
        end = self.reader.bounds(self.driver.names.changelog, 0)[1]
        sink = MemoryFullSink(self.driver.broker, self.driver.names.snapshot, 0)
        ref = FullWriter(self.place, state, shown, end, -1, sink, 4096).advance(shown.n, -1, self.driver.clock)
        assert ref is not None
        return ref

    def replace_state(self, change: Change | None, lineage: str = "second") -> CommitRecord:
        """Give the state to `change` and adopt what comes of it; None: an empty state."""
        base, keys, shown = None, 0, 0
        if change is not None:
            state = self.state()
            change(state)
            base, keys, shown = self.full(state, lineage), state.keys, state.digest
        adoption = Adoption(
            place=self.place,
            old=self.old,
            lineage=lineage,
            base=base,
            digest=shown,
            keys=keys,
            inputs={"input": self.old.positions["input"]},
        )
        return state_replacement.commit(self.producer, self.driver.broker.generation, [adoption], REASON, 0.0)[0]


def double(state: State) -> None:
    table = state.tables["balances"]
    for key, value in list(table.items()):
        table[key] = Balance(2 * value.total, value.entries)
    state.commit(state.freeze(), delta=True)


def fed() -> Driver:
    driver = Driver(Accounts)
    driver.feed_all(OPS)
    driver.take_full()
    driver.feed(Op("bob", 5))
    driver.commit()
    return driver


def test_the_next_owner_continues_from_what_was_adopted() -> None:
    driver = fed()
    driver.crash()
    commit_record = Tool(driver).replace_state(double)
    driver.restore()
    assert driver.table("balances") == {"ann": Balance(8, 2), "bob": Balance(14, 2)}
    driver.feed(Op("ann", 1))
    assert driver.table("balances")["ann"] == Balance(9, 3)
    assert driver.outputs("totals")[-1] == 9
    assert driver.commit_record().adopted == commit_record.n
    assert [m.lineage for m in commit_records(driver)][-2:] == ["second", "second"]
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {"ann": Balance(9, 3), "bob": Balance(14, 2)}


def test_a_state_may_begin_empty_at_the_same_position() -> None:
    driver = fed()
    driver.crash()
    Tool(driver).replace_state(None)
    driver.restore()
    assert driver.table("balances") == {}
    driver.feed(Op("ann", 4))
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {"ann": Balance(4, 1)}


def test_later_full_snapshots_are_of_the_new_generation_and_older_ones_are_no_base() -> None:
    driver = fed()
    old = driver.commit_record().full_snapshots
    driver.crash()
    commit_record = Tool(driver).replace_state(double)
    driver.restore()
    driver.feed(Op("ann", 1))
    newest = driver.take_full()
    assert newest is not None
    assert driver.commit_record().full_snapshots == (newest, *commit_record.full_snapshots)
    assert old[0] not in driver.commit_record().full_snapshots
    driver.crash()
    driver.broker.log(driver.names.snapshot, 0).replace(newest.low, b"damaged")
    driver.restore()
    assert driver.table("balances")["ann"] == Balance(9, 3)
    assert len(events(driver, "full_unusable")) == 1


def test_without_the_adopted_full_snapshot_the_older_history_is_not_mistaken_for_the_state() -> None:
    driver = fed()
    driver.crash()
    commit_record = Tool(driver).replace_state(double)
    driver.broker.log(driver.names.snapshot, 0).replace(commit_record.full_snapshots[0].low, b"damaged")
    with pytest.raises(
        DamagedIncrement, match="state-replacement record 5 names a full snapshot, from which the deltas continue"
    ):
        driver.restore()


def test_the_full_snapshot_of_a_tool_has_its_time() -> None:
    """People read its age; 0 would be 1970."""
    driver = fed()
    driver.crash()
    tool = Tool(driver)
    ref = tool.full(tool.state(), "second")
    (found,) = [each for each in full_listing.find(tool.reader, tool.place, None) if each.offset == ref.offset]
    assert found.manifest is not None
    assert found.manifest.time == 1_500


def test_a_paused_partition_stays_paused() -> None:
    """An operator paused it for a reason that no tool knows."""
    driver = fed()
    driver.command("pause", via_control_topic=True)
    driver.commit()
    driver.advance(2.0)
    assert driver.commit_record().paused is not None
    driver.crash()
    record = Tool(driver).replace_state(double)
    assert record.paused is not None
    driver.restore()
    assert len(events(driver, "paused")) == 2
    driver.command("resume", via_control_topic=True)
    driver.advance(2.0)
    assert driver.commit_record().paused is None
    driver.feed(Op("ann", 1))
    assert driver.table("balances")["ann"] == Balance(9, 3)


def test_partitions_of_several_generations_are_rejected() -> None:
    driver = Driver(Accounts, partitions=2)
    for partition in (0, 1):
        driver.feed(Op("ann", 1), partition=partition)
    driver.commit()
    driver.crash()
    Tool(driver).replace_state(double)
    with pytest.raises(
        MixedLineages, match="its state generation is second, that of partition 1 is driver"
    ) as rejected:
        driver.restore()
    assert (rejected.value.topic, rejected.value.partition) == ("input", 0)


def test_an_owner_of_before_is_fenced() -> None:
    driver = fed()
    Tool(driver).replace_state(double)
    driver.offsets.owner = False
    with pytest.raises(Fenced):
        driver.feed(Op("ann", 100))
    driver.offsets.owner = True
    driver.restore()
    assert driver.table("balances")["ann"] == Balance(108, 3)


def test_an_owner_that_comes_back_fences_the_tool() -> None:
    driver = fed()
    driver.crash()
    tool = Tool(driver)
    driver.restore()
    with pytest.raises(ProducerFenced):
        tool.replace_state(double)
    driver.feed(Op("ann", 1))
    assert driver.table("balances")["ann"] == Balance(5, 3)


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done, answer lost"])
@pytest.mark.parametrize("call", ["begin", "increment", "offsets", "commit"])
def test_a_replacement_is_complete_or_absent(call: Call, after: bool) -> None:
    driver = fed()
    driver.crash()
    tool = Tool(driver)
    driver.broker.fail(call, OutcomeUnknown("?"), after=after)
    with pytest.raises(OutcomeUnknown):
        tool.replace_state(double)
    driver.restore()
    doubled = call == "commit" and after
    assert driver.table("balances")["ann"] == (Balance(8, 2) if doubled else Balance(4, 2))
    assert driver.commit_record().adopted == (tool.old.n + 1 if doubled else 0)


@pytest.mark.parametrize("interval", ["commit", 10.0, "off"])
def test_every_mode_continues_from_a_replaced_state(interval: Interval) -> None:
    driver = Driver(Accounts, delta_interval=interval)
    driver.feed_all(OPS)
    driver.take_full()
    driver.crash()
    Tool(driver).replace_state(double)
    driver.restore()
    driver.feed(Op("bob", 1))
    driver.commit()
    driver.crash()
    driver.restore()
    assert driver.table("balances") == {"ann": Balance(8, 2), "bob": Balance(5, 2)}
