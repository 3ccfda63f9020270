"""Standby replica: follows the changelog, is checked at each commit record, is as good as a restore at takeover."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.driver.test_state_replacement import Tool, double
from tests.support import inside
from tests.support.handlers import Accounts, Balance, Interval, Op, agrees, fold, many, with_interval

from statehold import Handler, Record, Table
from statehold.errors import KafkaTrouble, StateRefused
from statehold.snapshot.format import records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Part
from statehold.snapshot.restore.standby_copy import Copy
from statehold.state import digest
from statehold.state.digest import MODULUS, table_digest
from statehold.testing import Driver
from statehold.worker.replicas.standby import Standbys

NAMES = ("ann", "bob", "cyd", "dee", "eve")

OPS = st.builds(Op, account=st.sampled_from(NAMES), amount=st.integers(1, 9), close=st.booleans())
STEPS = st.lists(
    st.one_of(OPS, st.sampled_from(["follow", "full", "crash", "stop", "command", "wait", "abort"])), max_size=40
)


class Commanded(Accounts):
    """A command of the control topic changes the state, too."""

    def on_command(self, command: str, record: Record[bytes]) -> None:
        before = self.balances.get("fees", Balance())
        self.balances["fees"] = Balance(before.total + 1, 0)


def owners_state(driver: Driver) -> Mapping[str, Any]:
    return driver.table("balances")


def copies_state(copy: Copy) -> dict[str, Any]:
    table = copy.state.tables["balances"]
    return {key: table.decode(data) for key, data in table.stored.items()}


def digest_of(copy: Copy) -> bytes:
    """Computed again from every key, as no replica does."""
    tables = copy.state.tables.items()
    return digest.to_bytes(sum(table_digest(n, list(t.stored), t.stored.values()) for n, t in tables) % MODULUS)


def taken_over(driver: Driver) -> int | None:
    """How many incremental snapshots the last takeover read, if it was one from a replica."""
    fields = [fields for event, fields in driver.events if event == "restored"][-1]
    return fields["deltas"] if fields["from_standby"] else None


@given(steps=STEPS, interval=st.sampled_from(["commit", 0.5]))
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_replica_equals_its_owner_at_each_commit_record_and_a_takeover_continues_from_it(
    steps: list[Op | str], interval: Interval
) -> None:
    driver, done = Driver(Commanded, delta_interval=interval), [Op("ann", 1)]
    driver.feed(done[0], key="ann")
    for step in steps:
        match step:
            case Op():
                driver.feed(step, key=step.account)
                done.append(step)
            case "follow":
                driver.stand_by()
                copy = driver.standbys.copies()[0]
                assert digest_of(copy) == digest.to_bytes(copy.state.digest)
                assert copy.commit_record.n == driver.commit_record().n
                if copy.shown.n == copy.commit_record.n:
                    assert (digest_of(copy), copies_state(copy)) == (
                        driver.commit_record().digest,
                        owners_state(driver),
                    )
            case "full":
                driver.take_full()
            case "crash" | "stop":
                (driver.crash if step == "crash" else driver.stop)()
                left = driver.standbys.copies().get(0)
                # Its owner may have truncated what it has not read: it follows when a test says so.
                fit = left is not None and left.offset >= driver.broker.log(driver.names.changelog, 0).start
                driver.restore()
                assert (taken_over(driver) is not None) == fit
            case "command":
                driver.command("fee", via_control_topic=True)
            case "wait":
                driver.advance(1.0)
            case "abort":
                driver.rebalance()
    driver.crash()
    driver.restore()
    without_fees = {key: value for key, value in owners_state(driver).items() if key != "fees"}
    assert (without_fees, driver.outputs("totals")) == fold(done)


def test_a_takeover_reads_the_tail_and_no_full_snapshot() -> None:
    driver = Driver(Accounts)
    ops = [Op(name, 5) for name in NAMES]
    for op in ops:
        driver.feed(op, key=op.account)
        driver.commit()
    driver.take_full()
    driver.stand_by()
    tail = [Op("ann", 1), Op("bob", 2), Op("cyd", close=True)]
    for op in tail:
        driver.feed(op, key=op.account)
        driver.commit()
    driver.crash()
    read: list[str] = []
    driver.broker.on_read = lambda topic, partition: read.append(topic)
    driver.restore()
    driver.broker.on_read = None
    assert taken_over(driver) == len(tail)
    assert driver.names.snapshot not in read
    assert agrees(driver, ops + tail)
    assert driver.standbys.copies() == {}, "it is the owner's state now"


def test_a_replica_whose_partition_is_assigned_here_waits_until_it_is_taken() -> None:
    """The group has given the partition away before this process hears of it, and then comes the fence."""
    driver = Driver(Accounts)
    driver.feed(Op("ann", 5), key="ann")
    driver.commit()
    wanted, assigned = {0}, set[int]()
    around = replace(inside.replica_tools(driver), chosen=lambda: frozenset(wanted), assigned=lambda: assigned)
    standbys = Standbys(around)
    standbys.turn()
    wanted.clear()
    for step in ("the group knows", "the process knows", "the fence takes long"):
        standbys.turn()
        assert set(standbys.copies()) == {0}, step
        assigned.add(0)
    assigned.clear()
    standbys.turn()
    assert standbys.copies() == {}, "another member keeps it"


def test_the_counts_of_a_replica_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no full snapshot comes; what it hands its next owner does not depend on that."""
    reported = []
    for counted in (10_000, 5):
        monkeypatch.setattr("statehold.snapshot.restore.standby_copy._COUNTED", counted)
        driver = Driver(Accounts, autocommit=False)
        for op in many(30):
            driver.feed(op)
            driver.commit()
            driver.stand_by()
        copy = driver.standbys.copies()[0]
        assert len(copy._unsaved) <= counted
        work = copy.restored(0, 0.0, driver.clock).work
        reported.append((work.transactions, work.entries, work.increment_bytes))
    assert reported[0] == reported[1]
    assert reported[0][:2] == (29, 30)


def test_an_owner_commits_while_its_replica_is_built() -> None:
    """No owner is fenced then: the log grows after the last commit record was read."""
    driver = Driver(Accounts, autocommit=False)
    ops = [Op(name, 5) for name in NAMES]
    for op in ops:
        driver.feed(op, key=op.account)
    driver.take_full()

    def goes_on(topic: str, partition: int) -> None:
        if topic == driver.names.snapshot and len(ops) < 40:
            for name in NAMES:
                ops.append(Op(name, 1))
                driver.feed(ops[-1], key=name)
                driver.commit()

    driver.broker.on_read = goes_on
    driver.standbys.turn()
    driver.broker.on_read = None
    assert len(ops) > len(NAMES)
    copy = driver.standbys.copies()[0]
    driver.standbys.follow()
    assert driver.standbys.copies()[0] is copy, "it continues from what it has"
    assert (digest_of(copy), copy.commit_record.n) == (driver.commit_record().digest, driver.commit_record().n)
    driver.crash()
    driver.restore()
    assert taken_over(driver) == 0
    assert agrees(driver, ops)


def test_the_fence_comes_before_the_last_commit_record_is_read() -> None:
    """A zombie that commits after the copy has looked, and before the fence, is not lost."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    driver.stand_by()
    driver.feed(Op("ann", 2), key="ann")
    committed: list[bool] = []
    zombie = inside.lane(driver)

    def before(call: str) -> None:
        if call == "fence" and not committed:
            committed.append(True)
            zombie.commit()

    inside.replace_lane(driver, zombie.inputs)
    driver.broker.on_call = before
    driver.restore()
    assert committed
    assert (taken_over(driver), driver.table("balances")["ann"].total) == (1, 3)


def damage_part(driver: Driver) -> None:
    """A delta loses a key: only the digest shows it."""
    log = driver.broker.log(driver.names.changelog, 0)
    for message in log.committed():
        record = records.unpack(message.value())
        if isinstance(record, Part) and record.n == driver.commit_record().n:
            log.replace(message.offset(), records.pack(Part(record.n, record.attempt, record.k, [])))


def lose_header(driver: Driver) -> None:
    log = driver.broker.log(driver.names.changelog, 0)
    log.abort_record(next(log.committed(log.end - 4)).offset())


@pytest.mark.parametrize("damage", [damage_part, lose_header], ids=["delta", "header"])
def test_a_mismatch_ends_the_replica_and_a_restore_decides(damage: Callable[[Driver], None]) -> None:
    driver = Driver(Accounts, autocommit=False)
    for op in (Op("ann", 1), Op("bob", 1)):
        driver.feed(op, key=op.account)
        driver.commit()
    driver.stand_by()
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    damage(driver)
    driver.standbys.follow()
    assert driver.standbys.copies() == {}
    (dropped,) = [fields for event, fields in driver.events if event == "standby_dropped"]
    assert dropped["partition"] == 0
    driver.crash()
    with pytest.raises(StateRefused):
        driver.restore()


def test_a_tail_that_was_truncated_is_no_damage() -> None:
    driver = Driver(Commanded)
    driver.feed(Op("ann", 1))
    driver.stand_by()
    for _ in range(2):
        driver.feed(Op("ann", 1))
        driver.take_full()
    driver.feed(Op("ann", 1))
    driver.stop()
    driver.restore()
    dropped = [fields["cause"] for event, fields in driver.events if event == "standby_dropped"]
    assert [cause.split(",")[0] for cause in dropped] == ["the log begins at 11 now"]
    assert taken_over(driver) is None
    assert owners_state(driver)["ann"].total == 4


def test_a_tail_that_does_not_fit_is_no_takeover() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    driver.stand_by()
    copy = driver.standbys.copies()[0]
    copy.state.digest ^= 1  # as if a bit of the memory had gone bad
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    driver.crash()
    driver.restore()
    assert taken_over(driver) is None, "a restore from the topic took its place"
    assert driver.table("balances")["ann"].total == 2


def test_a_takeover_trusts_the_log_over_a_replica_that_differs() -> None:
    """As after an unclean leader election: what the copy has read is not what the log holds now."""
    driver = Driver(Accounts, autocommit=False)
    for _ in range(2):
        driver.feed(Op("ann", 1), key="ann")
        driver.commit()
    driver.stand_by()
    driver.crash()
    log = driver.broker.log(driver.names.changelog, 0)
    for message in list(log.committed()):
        record = records.unpack(message.value())
        if getattr(record, "n", 0) == 2:
            log.replace(message.offset(), records.pack(rewritten(record), 3))
    driver.restore()
    assert taken_over(driver) is None
    assert driver.commit_record().attempt == "another"


def rewritten(record: Any) -> Any:
    if isinstance(record, CommitRecord):
        return msgspec.structs.replace(record, attempt="another")
    kind, fields = type(record), list(msgspec.structs.astuple(record))
    fields[1] = "another"
    return kind(*fields)


def test_the_next_owner_replays_a_command_that_no_delta_holds() -> None:
    driver = Driver(Commanded, delta_interval=1000.0, autocommit=False)
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    driver.stand_by()
    driver.command("fee", via_control_topic=True)
    driver.feed(Op("bob", 1), key="bob")
    driver.commit()
    driver.stand_by()
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    assert not driver.commit_record().delta
    driver.crash()
    driver.restore()
    assert taken_over(driver) == 1
    assert {key: value.total for key, value in owners_state(driver).items()} == {"ann": 2, "bob": 1, "fees": 1}


def test_another_generation_ends_the_replica() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1), key="ann")
    driver.stand_by()
    driver.crash()
    Tool(driver).replace_state(double)
    driver.restore()
    assert taken_over(driver) is None
    assert driver.table("balances") == {"ann": Balance(2, 1)}


def test_deltas_that_begin_again_do_not_lead_on() -> None:
    """With snapshot.delta_interval off in between, what changed is in no delta."""
    driver = Driver(Accounts, autocommit=False)
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    driver.stand_by()
    driver.stop()
    with_interval(driver, "off")
    kept = driver.standbys.take(0)
    driver.restore()
    assert kept is not None
    driver.standbys._copies[0] = kept
    driver.feed(Op("bob", 5), key="bob")
    driver.commit()
    driver.take_full()
    driver.stop()
    with_interval(driver, "commit")
    kept = driver.standbys.take(0)
    driver.restore()
    assert kept is not None
    driver.standbys._copies[0] = kept
    driver.feed(Op("ann", 1), key="ann")
    driver.commit()
    driver.standbys.follow()
    assert 0 not in driver.standbys.copies()
    assert "continue from" in [fields for event, fields in driver.events if event == "standby_dropped"][-1]["cause"]
    driver.crash()
    driver.restore()
    assert {name: value.total for name, value in driver.table("balances").items()} == {"ann": 2, "bob": 5}


class Timed(Handler[str]):
    seen = Table(key=str, value=int, ttl=60)
    sorted_ = Table(key=str, value=int, sorted=True)

    def on_record(self, record: Record[str]) -> None:
        self.seen[record.value] = record.offset
        self.sorted_[record.value] = record.offset
        if record.value == "x":
            self.schedule(record.timestamp + 5_000, "later", id="t")

    def on_timer(self, timer: Any) -> None:
        self.sorted_["timer"] = 1


def test_tables_that_sort_expire_or_fall_due_work_after_a_takeover() -> None:
    driver = Driver(Timed, autocommit=False)
    driver.feed("m", timestamp=1_000)
    driver.commit()
    driver.stand_by()
    for value in ("x", "a", "q"):
        driver.feed(value, timestamp=2_000)
        driver.commit()
    driver.stand_by()
    driver.crash()
    driver.restore()
    assert taken_over(driver) == 0
    handler: Any = driver.handler()
    assert [key for key, _ in handler.sorted_.range()] == ["a", "m", "q", "x"]
    driver.feed("z", timestamp=9_000)
    driver.commit()
    assert driver.table("sorted_")["timer"] == 1
    driver.feed("late", timestamp=100_000)
    driver.commit()
    assert set(driver.table("seen")) == {"late"}
    assert isinstance(driver.commit_record(), CommitRecord)


def followed(driver: Driver) -> Copy:
    """A copy that has followed two commits."""
    for op in (Op("ann", 1), Op("bob", 1)):
        driver.feed(op, key=op.account)
        driver.commit()
    driver.stand_by()
    return driver.standbys.copies()[0]


def test_a_log_that_was_cut_behind_the_copy_ends_it() -> None:
    """As after an unclean leader election: what the copy holds may never have been committed."""
    driver = Driver(Accounts, autocommit=False)
    copy = followed(driver)
    copy.offset += 3
    driver.advance(1.0)
    driver.standbys.follow()
    assert driver.standbys.copies() == {}
    (cause,) = [fields["cause"] for event, fields in driver.events if event == "standby_dropped"]
    assert cause == f"the log ends at {copy.offset - 3}, and was read up to {copy.offset}"


def test_a_copy_that_its_new_owner_takes_during_a_read_is_not_fed() -> None:
    driver = Driver(Accounts, autocommit=False)
    copy = followed(driver)
    before = copy.offset, copy.commit_record.n
    driver.feed(Op("cyd", 1), key="cyd")
    driver.commit()
    taken = list[Copy | None]()
    driver.broker.on_read = lambda topic, partition: taken.append(driver.standbys.take(partition))
    driver.advance(1.0)
    driver.standbys.follow()
    driver.broker.on_read = None
    assert taken == [copy]
    assert (copy.offset, copy.commit_record.n) == before
    assert driver.commit_record().n > copy.commit_record.n


def test_an_outage_delays_the_replica_after_it_by_half_a_minute_at_most() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1), key="ann")
    answers = False

    def locate(partition: int) -> Place:
        if not answers:
            raise KafkaTrouble("no broker answers")
        return around.locate(partition)

    around = driver.standbys._around
    standbys = Standbys(replace(around, locate=locate))
    for _ in range(8):
        standbys.turn()
        driver.advance(30.0)
    waits = [fields["again_in"] for event, fields in driver.events if event == "standby_dropped"]
    assert waits == [5.0, 10.0, 20.0, 30.0, 30.0, 30.0, 30.0, 30.0]

    answers = True
    standbys.turn()

    assert standbys.copies().keys() == {0}


def test_a_copy_of_topics_that_were_created_again_is_not_taken() -> None:
    driver = Driver(Accounts, autocommit=False)
    copy = followed(driver)
    copy.place = msgspec.structs.replace(copy.place, topic_ids=dict.fromkeys(copy.place.topic_ids, "another"))
    driver.crash()
    driver.restore()
    assert taken_over(driver) is None
    dropped = [fields["cause"] for event, fields in driver.events if event == "standby_dropped"]
    assert dropped == ["the topics are not those that it was read from"]
    assert driver.table("balances")["bob"].total == 1
