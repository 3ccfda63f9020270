"""When to commit, write a delta, take a full: pure decisions over time."""

from __future__ import annotations

from typing import Literal
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.worker.full_snapshots.deltas import SnapshotPolicy
from statehold.worker.transaction.record_buffer import CommitPolicy


def commits(others: WeakSet[object] | None = None, **settings: float) -> CommitPolicy:
    chosen = CommitSettings(**{"interval": 0.1, "max_records": 10, **settings})  # type: ignore[arg-type]
    return CommitPolicy(chosen, WeakSet() if others is None else others)


def rested(policy: CommitPolicy) -> CommitPolicy:
    """A policy whose partition waited for records in vain since its transaction opened."""
    policy.waited(0.0, records=False)
    return policy


def test_a_commit_is_due_by_age_of_the_first_record() -> None:
    policy = commits()
    assert not policy.due(1000.0)
    policy.handled(1, 1000.0)
    policy.handled(1, 1000.09)
    policy.waited(0.03, records=True)
    assert not policy.due(1000.09)
    assert policy.due(1000.1)


def test_a_partition_that_is_behind_commits_after_two_intervals() -> None:
    policy = commits()
    policy.handled(1, 5.0)
    policy.waited(0.019, records=True)
    assert not policy.due(5.199)
    assert policy.due(5.2)
    policy.close()
    policy.waited(0.5, records=True)
    policy.handled(1, 6.0)
    assert not policy.due(6.15), "waits before the transaction do not count"


def test_a_partition_that_catches_up_after_an_interval_commits_at_its_next_wait() -> None:
    policy = commits()
    policy.handled(1, 5.0)
    policy.waited(0.005, records=True)
    assert policy.wait(5.12, 0.5) == pytest.approx(0.015), "the rest of a fifth of the interval"
    assert policy.wait(5.19, 0.5) == pytest.approx(0.01), "two intervals end before that"
    policy.waited(0.0151, records=True)
    assert policy.due(5.135)
    assert policy.wait(5.135, 0.5) == 0.0


def test_a_wait_without_records_says_that_the_partition_is_not_behind() -> None:
    policy = commits()
    policy.handled(1, 1000.0)
    assert not policy.due(1000.1)
    assert rested(policy).due(1000.1)


def test_a_longer_transaction_leaves_two_thirds_of_its_timeout() -> None:
    policy = commits(interval=2.0, transaction_timeout=9.0)
    policy.handled(1, 5.0)
    assert not policy.due(7.9)
    assert policy.due(8.0)


def test_a_commit_is_due_by_size_and_no_more_is_taken() -> None:
    policy = commits()
    policy.handled(7, 0.0)
    assert policy.room() == 3
    policy.handled(3, 0.0)
    assert policy.due(0.0)
    assert policy.room() == 0


def test_waiting_ends_when_the_commit_is_due() -> None:
    policy = commits()
    assert policy.wait(5.0, 0.5) == 0.5
    policy.handled(1, 5.0)
    assert policy.wait(5.04, 0.5) == pytest.approx(0.06)
    assert policy.wait(6.0, 0.5) == 0.0
    assert rested(policy).wait(5.1, 0.5) == pytest.approx(0.0)
    assert policy.wait(5.11, 0.5) == 0.0


def test_an_idle_partition_is_renewed_and_a_busy_one_needs_it_not() -> None:
    policy = commits(renew_after=100.0)
    policy.last_commit = 50.0
    assert not policy.renewal_due(149.0)
    assert policy.renewal_due(150.0)
    policy.handled(1, 150.0)
    assert not policy.renewal_due(999.0)


def test_many_open_transactions_of_a_process_end_one_after_the_other() -> None:
    others: WeakSet[object] = WeakSet()
    policies = [commits(others, max_rate=50, transaction_timeout=9.0) for _ in range(200)]
    for policy in policies:
        policy.handled(1, 0.0)
    ends = [policy.wait(0.0, 0.5) for policy in policies]
    assert ends[:6] == [0.1] * 6
    assert ends[10:13] == [0.2, 0.22, 0.24]
    assert max(ends) == 3.0, "a third of commit.transaction_timeout"
    assert not rested(policies[100]).due(1.99)
    assert policies[100].due(2.0)
    for policy in policies[1:]:
        policy.close()
    policies[1].handled(1, 5.0)
    assert policies[1].wait(5.0, 0.5) == pytest.approx(0.1)


def test_a_partition_that_ends_with_an_open_transaction_counts_no_longer() -> None:
    others: WeakSet[object] = WeakSet()
    gone = commits(others, max_rate=1)
    gone.handled(1, 0.0)
    assert len(others) == 1
    del gone
    policy = commits(others, max_rate=1)
    policy.handled(1, 0.0)
    assert policy.wait(0.0, 0.5) == 0.1


def test_a_rollback_empties_the_transaction() -> None:
    policy = commits()
    policy.handled(10, 0.0)
    policy.close()
    assert (policy.room(), policy.due(1.0), policy.since) == (10, False, None)


@given(
    st.lists(st.one_of(st.integers(1, 10), st.sampled_from(["commit", "abort", "in vain"]), st.floats(0.001, 0.2))),
    st.lists(st.booleans(), min_size=1),
)
def test_a_walk_keeps_its_promises(moves: list[object], waits: list[bool]) -> None:
    policy, now, first, rest = commits(), 0.0, None, 0.0
    for i, move in enumerate(moves):
        match move:
            case float():
                now += move
                if waits[i % len(waits)]:  # it waited for records meanwhile; otherwise it handled some
                    policy.waited(move, records=True)
                    rest += move
            case "in vain":
                policy.waited(0.0, records=False)
                rest += 0.1
            case int() if policy.room():
                policy.handled(min(move, policy.room()), now)
                first, rest = (now, 0.0) if first is None else (first, rest)
            case "commit":
                policy.close()
                policy.last_commit = now
                first = None
            case "abort":
                policy.close()
                first = None
        assert 0 <= policy.room() <= 10
        longest = 0.1 if rest >= 0.2 * 0.1 else 0.2  # a fifth of the interval
        assert policy.due(now) == (first is not None and (policy.room() == 0 or now - first >= longest))
        assert 0 <= policy.wait(now, 0.5) <= 0.5


def snapshots(delta_interval: float | Literal["commit", "off"] = "commit", **settings: float | bool) -> SnapshotPolicy:
    values = SnapshotSettings(delta_interval=delta_interval, **settings)  # type: ignore[arg-type]
    return SnapshotPolicy(values, last_delta=0.0, last_full=0.0)


def committed(policy: SnapshotPolicy, now: float, *, delta: bool = False, size: int = 100, entries: int = 1) -> None:
    policy.committed(now, delta=delta, increment_bytes=size, entries=entries, keys=10)


def test_deltas_at_every_commit_never_or_when_their_time_has_come() -> None:
    assert snapshots("commit").delta_due(0.0)
    assert not snapshots("off").delta_due(1e9)
    policy = snapshots(5.0)
    assert [policy.delta_due(now) for now in (4.9, 5.0)] == [False, True]
    committed(policy, 5.0, delta=True)
    assert [policy.delta_due(now) for now in (9.9, 10.0)] == [False, True]


def test_a_commit_record_that_refers_to_a_full_snapshot_for_the_first_time_carries_a_delta() -> None:
    policy = snapshots(3600.0)
    policy.force_delta = True
    committed(policy, 1.0)  # aborted or not: only a committed delta lifts it
    assert policy.delta_due(1.0)
    committed(policy, 2.0, delta=True)
    assert not policy.delta_due(2.0)
    without = snapshots("off")
    without.force_delta = True
    assert not without.delta_due(2.0)


def test_a_full_snapshot_is_due_by_time_by_bytes_by_growth_or_on_request_but_not_for_nothing() -> None:
    policy = snapshots(full_interval=600.0, full_bytes=65_536, full_growth=1)
    assert not policy.full_due(1e9)
    committed(policy, 1.0)
    assert [policy.full_due(now) for now in (599.0, 600.0)] == [False, True]
    committed(policy, 2.0, size=65_536)
    assert policy.full_due(2.0)
    policy.full_started(3.0)
    assert not policy.full_due(1e9)
    committed(policy, 4.0, entries=500_000)
    assert policy.full_due(4.0)
    policy.full_started(5.0)
    policy.asked = True
    assert policy.full_due(5.0)


def test_periodic_full_snapshots_can_be_turned_off() -> None:
    policy = snapshots(periodic_full=False)
    committed(policy, 1.0, size=10**9)
    assert not policy.full_due(1e9)
    policy.asked = True
    assert policy.full_due(1.0)


def test_an_answered_request_ends_the_interval_as_soon_as_the_rate_allows() -> None:
    policy = commits(max_rate=200)
    policy.last_commit = 4.0
    policy.handled(1, 5.0)
    assert not policy.due(5.0)
    policy.hasten()
    assert policy.due(5.0), "the partition was idle"
    policy.close()
    policy.last_commit = 5.001
    policy.handled(1, 5.002)
    policy.hasten()
    assert not policy.due(5.004)
    assert policy.due(5.0061)
    policy.close()
    policy.hasten()
    policy.handled(1, 9.0)
    assert not policy.due(9.0), "the next transaction has its interval"
