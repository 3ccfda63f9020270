"""The group's offsets of several inputs against the last commit record: which of them an operator must decide about."""

from __future__ import annotations

import pytest
from tests.support.snapshot_records import commit_record

from statehold.worker.recovery.checks import contradicting

RECORD = commit_record(7, positions={"trades": 40, "prices": 60}, inputs=("trades", "prices"), start=95)


@pytest.mark.parametrize(
    ("trades", "prices", "found"),
    [
        (40, 60, {}),
        (None, None, {}),
        (40, None, {}),
        (38, 57, {}),  # those before the transaction, whose offsets are not there yet
        (30, None, {"trades": 30}),  # reset in one input, expired in the other
        (45, 55, {"trades": 45, "prices": 55}),  # the sum is right
        (40, 61, {"prices": 61}),
    ],
)
def test_only_offsets_that_no_failed_commit_explains_contradict(
    trades: int | None, prices: int | None, found: dict[str, int]
) -> None:
    assert contradicting(RECORD, {"trades": trades, "prices": prices}) == found


def test_with_one_input_the_offset_before_the_transaction_does_not_contradict() -> None:
    record = commit_record(7, positions={"input": 70}, start=60)
    assert [contradicting(record, {"input": at}) for at in (70, 60, None, 65)] == [{}, {}, {}, {"input": 65}]
