"""The state at a point, verify and history, against a recomputation: fuzzy snapshots, few deltas, other generations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.driver.test_compaction import compacted
from tests.driver.test_fallback import switched
from tests.driver.test_state_replacement import REASON, Tool, double
from tests.support import inside
from tests.support.handlers import Accounts, Balance, Interval, Op, commit_records, events, fold, many, sliced, snapshot

from statehold.errors import NoUsableFull, UsageError
from statehold.snapshot import state_replacement
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord, Part
from statehold.snapshot.full import FullWriter
from statehold.snapshot.inspect import forecast, past
from statehold.snapshot.inspect.compare import history
from statehold.snapshot.inspect.past import PastState, Point
from statehold.snapshot.inspect.survey import Survey, survey
from statehold.snapshot.inspect.verify import PartitionVerification, verify
from statehold.snapshot.restore.estimate import Workload
from statehold.snapshot.state_replacement import Adoption
from statehold.state.partition_table import Changes
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink, MemoryReader

MODES: list[Interval] = ["commit", 0.5, "off"]


def at(driver: Driver, point: Point = past.LATEST) -> PastState:
    return past.at(MemoryReader(driver.broker, lambda: False), inside.place(driver), point)


def verified(driver: Driver) -> PartitionVerification:
    return verify(MemoryReader(driver.broker, lambda: False), inside.place(driver))


def held(found: PastState) -> dict[str, Balance]:
    table = found.contents.tables.get("balances", {})
    return {key: msgspec.msgpack.decode(value, type=Balance) for key, value in table.items()}


def fed(interval: Interval, count: int = 60) -> tuple[Driver, list[Op]]:
    """Full snapshots that are written while the service runs; accounts that are closed and opened again."""
    driver, ops = Driver(Accounts, delta_interval=interval), list[Op]()
    sliced(driver)
    for i in range(count):
        ops.append(Op(f"k{i % 11}", i, close=i % 7 == 6, size=1500))
        driver.feed(ops[-1])
        driver.advance(0.15)
        if i in (20, 40):
            live = inside.lanes(driver)[0].live()
            live.full_snapshots.ask()
    driver.commit()
    return driver, ops


@pytest.mark.parametrize("interval", MODES)
def test_the_state_at_every_position_is_that_of_the_input_up_to_where_it_says(interval: Interval) -> None:
    driver, ops = fed(interval)
    commit_record = driver.commit_record()
    assert any(ref.first < ref.through for ref in commit_record.full_snapshots) == (interval != "off")
    seen, ends = set(), [each.positions["input"] for each in commit_records(driver)]
    for position in range(len(ops) + 1):
        try:
            found = at(driver, Point("position", position))
        except UsageError as error:
            assert "not stored any more" in str(error) or "cannot be reached" in str(error)  # noqa: PT017
            continue
        assert found.position <= position
        if interval == "commit" and found.base is not None:
            assert found.position == max(each for each in ends if each <= position)
        assert held(found) == fold(ops[: found.position])[0], position
        seen.add(found.position)
    assert len(seen) >= {"commit": 40, "off": 2}.get(str(interval), 10)


@pytest.mark.parametrize("interval", MODES)
def test_a_full_snapshot_is_shown_as_the_first_state_that_it_leads_to(interval: Interval) -> None:
    driver, ops = fed(interval)
    for ref in driver.commit_record().full_snapshots:
        found = at(driver, Point("full", ref.offset))
        assert found.n >= ref.through
        assert held(found) == fold(ops[: found.position])[0]


@pytest.mark.parametrize("interval", MODES)
def test_all_is_good_in_every_mode(interval: Interval) -> None:
    driver, _ = fed(interval)
    found = verified(driver)
    assert (found.good, found.findings) == (True, [])
    assert len(found.full_snapshots) == len(driver.commit_record().full_snapshots) >= 2
    assert all(full.good and full.proven_at >= full.through for full in found.full_snapshots)


def test_a_delta_that_says_something_else_is_named_at_its_commit_record() -> None:
    """Its frame and its chain are whole: only the digest differs."""
    driver, _ = fed("commit")
    log = driver.broker.log(driver.names.changelog, 0)
    parts = [(m.offset(), records.unpack(m.value())) for m in log.committed()]
    offset, part = [(o, r) for o, r in parts if isinstance(r, Part)][-3]
    other = records.entry(Changes("balances", ["k1"], [b"\x93\x01\x01\xa0"]))
    log.replace(offset, records.pack(Part(part.n, part.attempt, part.k, [other]), driver.commit_record().format))

    found = verified(driver)

    (fault,) = [each for each in found.findings if each.fault]
    commit_record = next(o for o, r in parts if isinstance(r, CommitRecord) and r.n == part.n)
    assert (fault.topic, fault.offset) == (driver.names.changelog, commit_record)
    assert f"commit record {part.n} is the first" in fault.text


def test_history_and_points_stay_on_their_side_of_a_state_replacement() -> None:
    driver = Driver(Accounts)
    for op in (Op("ann", 1), Op("bob", 2), Op("ann", 3)):
        driver.feed(op)
        driver.commit()
    driver.take_full()
    before = driver.commit_record()
    driver.crash()
    commit_record = Tool(driver).replace_state(double)
    driver.restore()
    driver.feed(Op("ann", 1))
    driver.commit()

    assert held(at(driver, Point("n", before.n))) == {"ann": Balance(4, 2), "bob": Balance(2, 1)}
    assert held(at(driver, Point("n", commit_record.n))) == {"ann": Balance(8, 2), "bob": Balance(4, 1)}
    assert held(at(driver)) == {"ann": Balance(9, 3), "bob": Balance(4, 1)}
    assert verified(driver).findings == []
    changes = list(history(MemoryReader(driver.broker, lambda: False), inside.place(driver), ["ann"]))
    totals = [(msgspec.msgpack.decode(each.new, type=Balance).total if each.new else None) for each in changes]
    assert totals == [1, 4, 9]
    old = changes[-1].old
    assert old is not None
    assert msgspec.msgpack.decode(old, type=Balance).total == 8  # the adopted one, not the 4 before it


def test_a_restore_chooses_what_the_survey_says() -> None:
    for interval in MODES:
        driver, _ = fed(interval)
        seen = survey(MemoryReader(driver.broker, lambda: False), inside.place(driver))
        driver.crash()
        driver.restore()
        assert seen.choice is not None
        assert events(driver, "restored")[-1]["full"] == seen.choice.offset
        assert [commit_record.n for commit_record in commit_records(driver)][-1] >= (
            seen.commit_record.n if seen.commit_record else 0
        )


def surveyed(driver: Driver) -> tuple[Survey, Workload]:
    reader, place = MemoryReader(driver.broker, lambda: False), inside.place(driver)
    seen = survey(reader, place)
    return seen, forecast.workload(reader, place, seen)


def test_a_restore_that_replays_far_is_foreseen() -> None:
    """The deltas lead on from the second full only: an older one, or none, serves with the input after it."""
    driver, _, (first, second, third) = switched()
    log = driver.broker.log(driver.names.snapshot, 0)
    for ref in (third, second):
        assert not surveyed(driver)[0].far
        log.replace(ref.offset, b"\x01Fgone")
    for chosen in (first.offset, None):
        seen, work = surveyed(driver)
        assert (seen.far, seen.choice.offset if seen.choice else None) == (True, chosen)
        assert (seen.trouble, "are replayed" in seen.why) == ("", True)
        driver.restore()
        assert events(driver, "replaying_far")[-1]["full"] == chosen
        assert events(driver, "replayed")[-1]["records"] == work.gap
        driver.crash()
        log.replace(first.offset, b"\x01Fgone")
    driver.broker.log("input", 0).truncate(5)
    seen, _ = surveyed(driver)
    assert "no usable full snapshot (" in seen.trouble
    assert "the input at 5. Next: see NoUsableFull in the runbook" in seen.trouble
    with pytest.raises(NoUsableFull):
        driver.restore()


@pytest.mark.parametrize("interval", [5.0, "off"])
def test_the_gap_of_a_restore_is_foreseen(interval: Interval) -> None:
    driver = Driver(Accounts, delta_interval=interval)
    for i in range(40):
        driver.feed(Op(f"k{i}", i))
        driver.commit()
        driver.advance(1.0)
        if i == 10:
            driver.take_full()
    driver.crash()
    _, work = surveyed(driver)
    driver.restore()
    replayed = events(driver, "replayed")[-1]["records"]
    assert replayed > 0
    assert replayed - 5 <= work.gap <= replayed + 5


def test_without_deltas_there_are_only_full_snapshots() -> None:
    driver, _ = fed("off")
    snapshot(driver)
    full_snapshots = [ref.first for ref in driver.commit_record().full_snapshots]
    assert at(driver).n == max(full_snapshots)


@pytest.mark.parametrize("later", [0, 5])
def test_the_full_snapshot_of_a_compaction_is_chosen_as_a_restore_does(later: int) -> None:
    driver, _ = fed("commit")
    driver.take_full()
    for i in range(later):
        driver.feed(Op("later", i))
    driver.commit()
    ref = compacted(driver)
    seen = survey(MemoryReader(driver.broker, lambda: False), inside.place(driver))
    found = verified(driver)
    driver.crash()
    driver.restore()
    assert seen.choice is not None
    assert events(driver, "restored")[-1]["full"] == seen.choice.offset
    assert seen.choice.offset == ref.offset
    assert found.good
    assert ("compaction", True) in [(full.maker, full.good) for full in found.full_snapshots]


def test_full_snapshots_in_a_directory_are_read_from_there_and_lost_ones_are_reported(tmp_path: Path) -> None:
    driver, ops = Driver(Accounts), many(24)
    snapshot(driver, full_store=f"file://{tmp_path}", chunk_bytes=4096)
    for op in ops:
        driver.feed(op)
    driver.stop()  # waits for the store
    (ref,) = commit_records(driver)[-1].full_snapshots
    assert held(at(driver, Point("full", ref.offset))) == fold(ops)[0]
    assert verified(driver).findings == []

    segment = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file())
    segment.write_bytes(segment.read_bytes()[:-9])
    assert [each.fault for each in verified(driver).findings] != []
    segment.unlink()
    (first, *_) = verified(driver).findings
    assert first.fault
    assert "is not in the store" in first.text
    assert held(at(driver)) == fold(ops)[0], "the deltas from the beginning lead there too"


def test_a_transaction_between_two_replacements_has_its_own_state() -> None:
    """The last commit record refers to no full snapshot of that generation, and an earlier state is another one."""
    driver, ops = fed("commit", 20)
    driver.crash()
    between = Tool(driver).replace_state(double)
    driver.restore()
    driver.feed(Op("k1", 1000))
    driver.commit()
    wanted, n = driver.table("balances"), driver.commit_record().n
    driver.crash()
    Tool(driver).replace_state(double, "third")
    for point, balances in (n, wanted), (between.n, None), (between.n - 1, fold(ops)[0]):
        found = at(driver, Point("n", point))
        assert found.n == point
        assert balances is None or held(found) == balances
    assert at(driver, Point("full", between.full_snapshots[0].offset)).n == between.n


def test_a_state_whose_base_is_gone_is_not_taken_for_an_earlier_one() -> None:
    driver, _ = fed("commit", 20)
    driver.crash()
    between = Tool(driver).replace_state(double)
    assert between.full_snapshots
    Tool(driver).replace_state(double, "third")
    driver.broker.log(driver.names.snapshot, 0).replace(between.full_snapshots[0].low, b"damaged")
    with pytest.raises(UsageError, match=f"n {between.n} "):
        at(driver, Point("n", between.n))


def test_a_position_counts_the_present_inputs_only() -> None:
    """A second input is added at its offset 1000, so that a position says something else than before."""
    driver, ops = fed("commit", 30)
    n, position = driver.commit_record().n, driver.commit_record().positions["input"]
    driver.crash()
    tool = Tool(driver)
    place = msgspec.structs.replace(tool.place, names=replace(driver.names, others=("prices",)))
    state, inputs = tool.state(), {"input": position, "prices": 1000}
    shown = state_replacement.boundary(place, "second", n + 1, inputs, state, tool.old, 0.0)
    sink = MemoryFullSink(driver.broker, driver.names.snapshot, 0)
    base = FullWriter(place, state, shown, 10_000, -1, sink, 4096).advance(n + 1, -1, driver.clock)
    adoption = Adoption(
        place=place,
        old=tool.old,
        lineage="second",
        base=base,
        digest=state.digest,
        keys=state.keys,
        inputs=inputs,
        former_inputs=("input",),
    )
    state_replacement.commit(tool.producer, driver.broker.generation, [adoption], REASON, 0.0)

    reader = MemoryReader(driver.broker, lambda: False)
    assert past.at(reader, place, Point("position", position + 1000)).n == n + 1
    assert held(past.at(reader, place, Point("n", n))) == fold(ops)[0]
    for former in (position, position + 999):
        with pytest.raises(UsageError, match="a position counts the records of input, prices, and"):
            past.at(reader, place, Point("position", former))
