"""The order of records that only the database has committed: each turn ends at an offset, whatever gaps the log has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import message

from statehold.api.record import MergedMessage
from statehold.worker.inputs.turns import Turn, pack, unpack


def merged(order: list[tuple[int, int]], positions: list[int]) -> list[MergedMessage]:
    """Messages of these inputs; each comes as many offsets after the one before as its gap says."""
    at, found = list(positions), list[MergedMessage]()
    for index, gap in order:
        found.append(MergedMessage(message(at[index] + gap), index, 0))
        at[index] += gap + 1
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60),
    st.lists(st.integers(0, 2**40), min_size=3, max_size=3),
)
def test_each_record_falls_into_its_turn_and_the_last_turn_of_an_input_ends_behind_its_last_record(
    order: list[tuple[int, int]], positions: list[int]
) -> None:
    records = merged(order, positions)
    turns, reached = unpack(pack(records, positions), positions), list(positions)
    left = iter(turns)
    turn = next(left, Turn(0, 0))
    for record in records:
        offset = record.offset() or 0
        while turn.input != record.input or offset >= turn.end:
            turn = next(left)
        reached[record.input] = offset + 1
    ends = {turn.input: turn.end for turn in turns}
    assert ends == {index: reached[index] for index in ends}
    assert len(turns) == sum(1 for i, record in enumerate(records) if i == 0 or records[i - 1].input != record.input)
