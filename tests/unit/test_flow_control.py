"""Flow control: pause at the high watermark, resume at the low one, skip polls to keep prefetched records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statehold.balancer.flow_control import FlowControl, FlowDecision

NONE = frozenset[int]()


def decide(
    flow: FlowControl, depths: dict[int, int], paused: set[int], now: float, partitions: int = 0
) -> FlowDecision:
    """Decide as the manager does, which names only queues with records; `partitions` counts the empty ones too."""
    return flow.decide(depths, paused, now, empty=partitions > len(depths))


def test_polls_are_skipped_while_all_queues_together_hold_enough() -> None:
    assert decide(FlowControl(10, 5), {0: 3, 1: 3}, set(), 0.0) == FlowDecision(NONE, NONE, False)
    assert decide(FlowControl(10, 5), {0: 2, 1: 3}, set(), 0.0) == FlowDecision(NONE, NONE, True)


def test_a_queue_that_is_low_or_empty_waits_for_a_glance_at_most() -> None:
    for depths, partitions in (({0: 10, 1: 5}, 2), ({0: 10}, 2)):
        flow = FlowControl(10, 5, patience=0.5, glance=0.01)
        assert not decide(flow, depths, set(), 1.0, partitions).poll
        assert not decide(flow, depths, set(), 1.009, partitions).poll
        assert decide(flow, depths, set(), 1.01, partitions) == FlowDecision(frozenset({0}), NONE, True)
        assert not decide(flow, depths, set(), 1.02, partitions).poll  # the next glance begins


def test_a_full_queue_is_not_paused_while_every_other_one_holds_enough() -> None:
    flow = FlowControl(10, 5)
    assert not decide(flow, {0: 10, 1: 6}, set(), 0.0).poll
    assert decide(flow, {0: 10, 1: 6}, set(), 0.4) == FlowDecision(NONE, NONE, False)


def test_between_the_watermarks_nothing_is_paused_or_resumed_and_polls_are_skipped() -> None:
    assert decide(FlowControl(10, 5), {0: 7, 1: 7}, {1}, 0.0) == FlowDecision(NONE, NONE, False)


def test_a_partition_resumes_at_the_low_watermark() -> None:
    assert decide(FlowControl(10, 5), {0: 1, 1: 5}, {1}, 0.0) == FlowDecision(NONE, frozenset({1}), True)


def test_polls_are_skipped_before_all_full_partitions_are_paused() -> None:
    flow = FlowControl(10, 5, patience=0.5)
    assert decide(flow, {0: 10, 1: 30}, set(), 1.0) == FlowDecision(NONE, NONE, False)
    assert decide(flow, {0: 10, 1: 30}, set(), 1.4) == FlowDecision(NONE, NONE, False)
    assert decide(flow, {0: 10, 1: 30}, set(), 1.5) == FlowDecision(frozenset({0, 1}), NONE, True)


def test_the_patience_restarts_when_the_queues_have_room() -> None:
    flow = FlowControl(10, 5, patience=0.5)
    decide(flow, {0: 10}, set(), 1.0)
    assert decide(flow, {0: 5}, set(), 1.4).poll
    assert not decide(flow, {0: 10}, set(), 1.6).poll


def test_without_partitions_the_consumer_polls() -> None:
    assert decide(FlowControl(10, 5), {}, set(), 0.0) == FlowDecision(NONE, NONE, True)


def test_a_paused_partition_that_was_revoked_is_not_resumed() -> None:
    assert decide(FlowControl(10, 5), {}, {3}, 0.0).resume == NONE


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-12, 12), st.floats(0.01, 0.4)), max_size=60),
    st.integers(2, 12),
)
def test_random_depths_never_pause_twice_never_starve_and_always_poll_in_time(
    moves: list[tuple[int, int, float]], high: int
) -> None:
    low = high // 2
    flow, now, polled = FlowControl(high, low, patience=0.5, glance=0.1), 0.0, 0.0
    depths, paused = dict.fromkeys(range(4), 0), set[int]()
    for partition, change, seconds in moves:
        now += seconds
        depths[partition] = max(0, depths[partition] + change)
        told = {p: depth for p, depth in depths.items() if depth or p in paused}
        decision = flow.decide(told, paused, now, empty=len(told) < len(depths))
        assert not decision.pause & paused
        assert decision.resume <= paused
        assert all(depths[p] >= high for p in decision.pause)
        assert all(depths[p] <= low for p in decision.resume)
        paused = (paused | decision.pause) - decision.resume
        assert not any(depths[p] <= low for p in paused)
        polled = now if decision.poll else polled
        running = [depth for p, depth in depths.items() if p not in paused]
        assert decision.poll or sum(running) > low
        assert now - polled < (0.5 if min(running, default=0) > low else 0.1) + 0.4001  # the longest move, rounded
