"""How long retention leaves: never more than Kafka itself will leave."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from statehold.runtime.retention_forecast import Rate, Retention, UnreadRecords, hours_left

NOW = 1_750_000_000.0
HOUR = 3_600_000


def test_without_a_limit_there_is_no_end() -> None:
    assert hours_left(Retention(), UnreadRecords(10, 0), 100, 10, NOW) == math.inf
    assert Retention.of({"cleanup.policy": "compact", "retention.ms": "1"}) == Retention()
    assert Retention.of({"cleanup.policy": "compact,delete", "retention.ms": "5"}).milliseconds == 5


def test_the_next_record_goes_by_its_own_time() -> None:
    an_hour_old = UnreadRecords(10, int(NOW * 1000) - HOUR)
    assert hours_left(Retention(milliseconds=3 * HOUR), an_hour_old, 100, 0, NOW) == 2
    assert hours_left(Retention(milliseconds=HOUR // 2), an_hour_old, 100, 0, NOW) == 0
    # Nothing waits: what comes from now on has all of the time.
    assert hours_left(Retention(milliseconds=3 * HOUR), UnreadRecords(0, None), 100, 0, NOW) == 3
    # A producer whose clock is ahead gives no more time than that.
    assert hours_left(Retention(milliseconds=HOUR), UnreadRecords(1, int(NOW * 1000) + 9 * HOUR), 100, 0, NOW) == 1


def test_by_size_it_goes_when_as_much_has_come_after_it() -> None:
    retention = Retention(bytes=36_000_000)
    assert hours_left(retention, UnreadRecords(0, None), 100, 100, NOW) == 1
    assert hours_left(retention, UnreadRecords(180_000, None), 100, 100, NOW) == 0.5
    assert hours_left(retention, UnreadRecords(400_000, None), 100, 100, NOW) == 0
    assert hours_left(retention, UnreadRecords(0, None), 100, 0, NOW) == math.inf


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(1, 1e4), st.floats(0.001, 1e5), st.integers(1, 10**10))
def test_it_is_a_lower_bound_of_a_log_that_grows_as_measured(
    waiting: int, size: float, rate: float, limit: int
) -> None:
    """Kafka keeps at least `retention.bytes`: while less has come after a record, it is there."""
    hours = hours_left(Retention(bytes=limit), UnreadRecords(waiting, None), size, rate, NOW)
    if 0 < hours < math.inf:
        assert (waiting + rate * hours * 3600) * size <= limit * 1.000001


def test_a_rate_is_measured_between_polls_and_restarts_with_another_topic() -> None:
    rate = Rate()
    rate.saw(0, 100)
    assert rate.per_second == 0
    rate.saw(10, 200)
    assert rate.per_second == 10
    rate.saw(20, 50)
    assert rate.per_second == 0
    for second in range(0, 10_000, 100):
        rate.saw(100 + second, 1000 + second * 5)
    assert rate.per_second == 5
