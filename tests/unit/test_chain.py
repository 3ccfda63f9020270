"""The changelog as a chain: what a restore finds after each tear (A2), and everything else that is no chain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.snapshot_records import commit_record, header, part

from statehold.errors import DamagedIncrement, TornTransaction
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.records import Chunk, Record

WHOLE: dict[int, list[Record]] = {
    n: [header(n, f"a{n}"), part(n, 0, f"a{n}"), part(n, 1, f"a{n}"), commit_record(n, f"a{n}", parts=2)]
    for n in range(6)
}


def feed(found: list[Record], last: int | None = None, lineage: str | None = None) -> list[Increment]:
    chain = Chain("increment", 0, last, lineage)
    increments = [chain.feed(offset, record) for offset, record in enumerate(found)]
    chain.finish(len(found))
    return [increment for increment in increments if increment is not None]


def numbers(found: list[Increment]) -> list[int]:
    return [increment.commit_record.n for increment in found]


def test_whole_transactions_come_back_with_their_parts_and_offsets() -> None:
    found = feed([*WHOLE[0], *WHOLE[1]])
    assert numbers(found) == [0, 1]
    assert (found[1].offset, found[1].commit_record_offset, [p.k for p in found[1].parts]) == (4, 7, [0, 1])


def test_a_chain_without_an_anchor_may_begin_anywhere() -> None:
    assert numbers(feed([*WHOLE[4], *WHOLE[5]])) == [4, 5]


def test_transactions_in_the_full_snapshot_are_skipped() -> None:
    assert numbers(feed([*WHOLE[2][2:], *WHOLE[3], *WHOLE[4]], last=3)) == [4]


def test_an_anchor_alone_is_no_transaction_after_the_full_snapshot() -> None:
    assert feed([*WHOLE[3]], last=3) == []


TEARS: dict[str, tuple[list[Record], type[Exception], str]] = {
    "header only, then the end: torn commit": (
        [*WHOLE[1], header(2)],
        TornTransaction,
        r"header 2 at offset 4 has no commit record: a torn commit",
    ),
    "header and parts, then the end: torn commit": ([*WHOLE[1], *WHOLE[2][:3]], TornTransaction, "torn commit"),
    "header, then the same number again: torn commit, redone": (
        [*WHOLE[1], header(2, "a2"), *WHOLE[2]],
        TornTransaction,
        "header 2 at offset 4 has no commit record",
    ),
    "mark without header: torn abort": (
        [*WHOLE[1], WHOLE[2][3]],
        TornTransaction,
        "commit record 2 has no transaction header: a torn abort",
    ),
    "part without header: torn abort": (
        [*WHOLE[1], WHOLE[2][1]],
        TornTransaction,
        "chunk 2 has no transaction header: a torn abort",
    ),
    "a part is missing at the end": (
        [WHOLE[1][0], WHOLE[1][1], WHOLE[1][3]],
        TornTransaction,
        "counts 2 chunks, the log holds 1",
    ),
    "a part is missing in the middle": ([WHOLE[1][0], WHOLE[1][2]], DamagedIncrement, "chunk 1 of transaction 1"),
    "parts of another attempt": (
        [header(1, "a"), part(1, 0, "b")],
        TornTransaction,
        "changelog chunk 1 of producer session b follows header 1 of producer session a",
    ),
    "a mark of another attempt": (
        [header(1, "a"), commit_record(1, "b")],
        TornTransaction,
        "commit record 1 of producer session b",
    ),
    "a mark of another number": (
        [header(1), commit_record(2)],
        TornTransaction,
        "commit record 2 of producer session a follows header 1",
    ),
    "a hole": ([*WHOLE[1], *WHOLE[3]], DamagedIncrement, "transaction 3 follows 1: a hole"),
    "a number again": ([*WHOLE[1], *WHOLE[2], *WHOLE[2]], DamagedIncrement, "transaction 2 follows 2"),
    "a number that goes back": ([*WHOLE[1], *WHOLE[2], *WHOLE[1]], DamagedIncrement, "transaction 1 follows 2"),
    "another generation": ([*WHOLE[1], header(2, "a2", "other")], DamagedIncrement, "state generation other follows l"),
}


@pytest.mark.parametrize("name", TEARS)
def test_a2_a_tear_is_named(name: str) -> None:
    found, error, text = TEARS[name]
    with pytest.raises(error, match=text) as failure:
        feed(found)
    assert "increment[0]@" in str(failure.value)


def test_the_full_snapshot_must_be_followed_by_the_next_transaction() -> None:
    with pytest.raises(DamagedIncrement, match="transaction 5 follows 3"):
        feed([*WHOLE[3], *WHOLE[5]], last=3)
    with pytest.raises(DamagedIncrement, match="state generation l follows other"):
        feed([*WHOLE[4]], last=3, lineage="other")


def test_records_of_the_other_topic_do_not_belong_here() -> None:
    with pytest.raises(DamagedIncrement, match="a snapshot chunk does not belong"):
        feed([Chunk("f", 0, -1, part(0).entries)])  # type: ignore[arg-type]


@given(st.integers(0, 23), st.integers(0, 23), st.integers(0, 23))
def test_a2_a_log_with_one_record_lost_doubled_or_moved_is_never_taken(lost: int, doubled: int, moved: int) -> None:
    log = [record for n in range(6) for record in WHOLE[n]]
    for damaged in (log[:lost] + log[lost + 1 :], [*log[:doubled], log[doubled], *log[doubled:]], swap(log, moved)):
        with pytest.raises((TornTransaction, DamagedIncrement)):
            feed(damaged)


def swap(log: list[Record], i: int) -> list[Record]:
    changed = list(log)
    changed[i], changed[i - 1] = changed[i - 1], changed[i]
    return changed
