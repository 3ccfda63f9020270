"""State-replacement records: what a tool may write, how the chain takes it, which snapshots are of its generation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.snapshot_records import PLACE, commit_record, header, part

from statehold.common.names import Names
from statehold.errors import DamagedIncrement, UsageError
from statehold.snapshot import state_replacement
from statehold.snapshot.format import records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.records import CommitRecord, FullRef, Header, Manifest, Record, StateReplacement
from statehold.snapshot.state_replacement import Adopted, Adoption, ReplacementReason
from statehold.state import digest

REASON = ReplacementReason(tool="state migrate 1", who="ann", why="split of a share", notes={"ticket": "7"})
OLD = commit_record(6, digest=digest.to_bytes(5), keys=2)
BASE = FullRef(10, 12, 7, 7, 100)


def adoption(**changes: Any) -> Adoption:
    fields: dict[str, Any] = {
        "place": PLACE,
        "old": OLD,
        "lineage": "m",
        "base": BASE,
        "digest": 9,
        "keys": 3,
        "inputs": {"input": 60},
    }
    return Adoption(**(fields | changes))


def written(**changes: Any) -> Adopted:
    return state_replacement.records_of(adoption(**changes), "b", REASON, 1.5)


def changed(given: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(given, **changes)


def feed(*found: Record, crossing: bool = True, last: int | None = None) -> list[Increment]:
    chain = Chain("increment", 0, last, crossing=crossing)
    increments = [chain.feed(offset, record) for offset, record in enumerate(found)]
    chain.finish(len(found))
    return [increment for increment in increments if increment is not None]


def test_a_state_replacement_record_names_both_states_the_person_and_the_reason() -> None:
    head, record, closing = written()
    assert head == Header(7, "b", "m", 60, PLACE.writer)
    assert (record.old_lineage, record.lineage, record.old_keys, record.keys) == ("l", "m", 2, 3)
    assert (record.old_digest, record.digest) == (digest.to_bytes(5), digest.to_bytes(9))
    assert (record.who, record.why, record.tool, record.notes) == ("ann", "split of a share", REASON.tool, REASON.notes)
    assert (closing.n, closing.adopted, closing.last_delta, closing.full_snapshots) == (7, 7, 7, (BASE,))
    assert [records.unpack(records.pack(each)) for each in (head, record, closing)] == [head, record, closing]


def test_a_replacement_keeps_the_positions_of_control_and_retry_topics() -> None:
    names = PLACE.names
    side_inputs = {names.control: 4, names.retry(60): 17}
    old = changed(OLD, positions={**OLD.positions, **side_inputs})
    assert written(old=old)[2].positions == {names.input: 60, **side_inputs}


def test_a_first_replacement_is_number_0() -> None:
    head, record, closing = written(old=None, base=None, keys=0, digest=0)
    assert (head.n, record.n, closing.n, record.old_lineage, record.base) == (0, 0, 0, "", None)
    _, moved, _ = written(old=None, source=OLD, base=changed(BASE, first=0, through=0))
    assert (moved.n, moved.old_lineage, moved.old_positions) == (0, "l", {"input": 60})


def test_a_state_that_moves_goes_on_with_its_numbers() -> None:
    head, record, closing = written(old=None, source=OLD, begin=7, base=BASE)
    assert (head.n, record.n, closing.n, closing.last_delta) == (7, 7, 7, 7)
    with pytest.raises(UsageError, match="cannot be the base of state-replacement record 8"):
        written(old=None, source=OLD, begin=8, base=BASE)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"base": None}, "a state of 3 keys needs a full snapshot"),
        ({"base": changed(BASE, first=6)}, "cannot be the base of state-replacement record 7"),
        ({"base": changed(BASE, through=8)}, "cannot be the base"),
        ({"lineage": "l"}, "already has state generation l"),
    ],
)
def test_a_replacement_that_could_not_be_restored_is_not_written(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        written(**wrong)


TWO = changed(OLD, inputs=("input", "prices"), positions={"input": 60, "prices": 5})


def test_a_tool_that_changes_the_inputs_names_the_former_ones() -> None:
    head, record, closing = written(old=TWO, former_inputs=("input", "prices"))
    assert (closing.inputs, closing.positions, head.position) == ((), {"input": 60}, 60)
    assert (record.old_positions, record.positions) == (TWO.positions, closing.positions)
    three = changed(PLACE, names=Names("service", "input", "", ("prices",)))
    more = written(place=three, former_inputs=("input",), inputs={"input": 60, "prices": 7})
    assert (more.commit_record.inputs, more.commit_record.start) == (("input", "prices"), 67)


@pytest.mark.parametrize(
    "wrong",
    [
        {"old": TWO},
        {"old": TWO, "former_inputs": ("prices", "input")},
        {"former_inputs": ("prices",)},
        {"old": TWO, "former_inputs": ("input", "prices"), "inputs": {"prices": 5}},
    ],
)
def test_inputs_that_the_state_was_not_built_from_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="replace the state: it was built from"):
        written(**wrong)


def before() -> list[Record]:
    return [header(6), part(6), changed(OLD, parts=1)]


def test_the_history_continues_across_a_state_replacement_record_that_fits() -> None:
    first, second = feed(*before(), *written(), header(8, "c", "m"), commit_record(8, "c", "m", adopted=7))[1:]
    assert (first.commit_record.n, first.replacement) == (7, written().replacement)
    assert (second.commit_record.n, second.replacement) == (8, None)


def test_no_fold_crosses_a_change_of_generation() -> None:
    with pytest.raises(DamagedIncrement, match="state generation m follows l"):
        feed(*before(), *written(), crossing=False)
    assert [found.commit_record.n for found in feed(*before(), *written(), crossing=False, last=6)] == [7]


def wrong_order() -> list[Record]:
    head, record, closing = written()
    return [head, part(7, attempt="b"), record, closing]


DAMAGED: dict[str, tuple[list[Record], str]] = {
    "no state replacement": ([written().header, written().commit_record], "without a state-replacement record"),
    "of another generation": (
        [*written(old=changed(OLD, lineage="x"))],
        "it replaces state generation x, the chain has l",
    ),
    "of another state": ([*written(old=changed(OLD, digest=digest.to_bytes(6)))], "it replaces another state than"),
    "not after its header": (wrong_order(), "without a state-replacement record"),
    "twice": (
        [written().header, written().replacement, written().replacement, written().commit_record],
        "does not follow its header",
    ),
    "another mark": (
        [written().header, written().replacement, changed(written().commit_record, digest=digest.to_bytes(1))],
        "disagrees with the state-replacement record",
    ),
    "a commit record of the old generation": (
        [written().header, written().replacement, changed(written().commit_record, lineage="l")],
        "several state generations",
    ),
    "a header of the old generation": (
        [changed(written().header, lineage="l"), written().replacement, written().commit_record],
        "several state generations",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_state_replacement_record_that_does_not_fit_is_damage(name: str) -> None:
    found, text = DAMAGED[name]
    with pytest.raises(DamagedIncrement, match=text):
        feed(*before(), *found)


def test_a_state_replacement_record_does_not_follow_parts() -> None:
    head, record, closing = written()
    with pytest.raises(DamagedIncrement, match="does not follow its header"):
        feed(head, part(7, attempt="b"), record, closing)


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "full": "f",
        "service": "service",
        "partition": 0,
        "partitions": 4,
        "lineage": "m",
        "first": 7,
        "through": 7,
        "positions": {"input": 60},
        "increment": 100,
        "low": 10,
    }
    return Manifest(**(fields | changes))


def test_a_base_is_of_the_current_generation_and_not_older_than_it() -> None:
    closing: CommitRecord = written().commit_record
    later = changed(closing, n=9)
    assert PLACE.refuses(manifest(), later) == ""
    assert "its state generation is l" in PLACE.refuses(manifest(lineage="l"), later)
    assert "the state generation with 7" in PLACE.refuses(manifest(first=6, through=6), later)
    assert "the last commit record is 9" in PLACE.refuses(manifest(first=10, through=10), later)


def test_all_partitions_get_one_generation_at_once() -> None:
    class Unused:
        attempt = "b"

    for adoptions in (
        [],
        [adoption(), adoption()],
        [adoption(), adoption(place=changed(PLACE, partition=1), lineage="z")],
    ):
        with pytest.raises(UsageError, match="the state of each partition is replaced once"):
            state_replacement.commit(Unused(), None, adoptions, REASON, 0.0)  # type: ignore[arg-type]


def test_a_state_replacement_record_is_no_delta() -> None:
    assert isinstance(records.unpack(records.pack(written().replacement)), StateReplacement)
    assert written().commit_record.delta
    assert written().commit_record.parts == 0


def test_a_state_of_several_inputs_is_not_replaced_by_one_with_the_position_of_the_first() -> None:
    with pytest.raises(UsageError, match=f"built from {PLACE.input}, prices"):
        adoption(old=changed(OLD, inputs=(PLACE.input, "prices"))).check()
