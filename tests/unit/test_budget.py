"""The model of restore time: what it adds up, what it learns, when it asks for a full."""

from __future__ import annotations

import pytest

from statehold.snapshot.restore.estimate import Speed, Speeds, Spent, Workload, by_default, full_wanted

LARGE = Workload(
    full_keys=1_000_000, full_bytes=80_000_000, transactions=600, entries=300_000, increment_bytes=30_000_000,
    keys=1_000_000, gap=50_000,
)  # fmt: skip


def test_more_work_takes_longer_in_every_dimension() -> None:
    base = by_default(LARGE).total
    for name in Workload.__struct_fields__:
        more = Workload(
            **{field: getattr(LARGE, field) * (2 if field == name else 1) for field in LARGE.__struct_fields__}
        )
        assert by_default(more).total > base, name


def test_a_million_keys_take_between_a_half_and_two_seconds_by_default() -> None:
    full = Workload(full_keys=1_000_000, full_bytes=100_000_000, keys=1_000_000)
    assert 0.5 < by_default(full).total < 2.0


def test_a_measured_restore_is_predicted_as_it_was() -> None:
    spent = Spent(0.3, 2.5, 1.1, 0.7, 0.9)
    speed = Speed().learned(LARGE, spent)
    assert speed.predict(LARGE).total == pytest.approx(spent.total)


def test_an_unmeasured_part_is_predicted_like_the_rest() -> None:
    """Twice as slow with deltas: a full snapshot, which this process has not loaded yet, takes twice as long, too."""
    increments = Workload(transactions=1000, entries=1_000_000, increment_bytes=50_000_000)
    default = by_default(increments)
    speed = Speed().learned(increments, Spent(0.1, 0.0, 2 * default.increments))
    full = Workload(full_keys=1_000_000, full_bytes=100_000_000)
    assert speed.predict(full).full == pytest.approx(2 * by_default(full).full)


def test_a_small_restore_teaches_the_fixed_part_and_no_speed() -> None:
    tiny = Workload(full_keys=10, full_bytes=1000, transactions=1, keys=10)
    speed = Speed().learned(tiny, Spent(0.2, 0.03, 0.05, 0.0))
    assert speed.full is None
    assert speed.increments is None
    assert speed.fixed == pytest.approx(0.28, abs=0.001)
    assert speed.predict(LARGE).full == by_default(LARGE).full


def test_a_slow_handler_is_learned_from_a_short_replay() -> None:
    speeds = Speeds()
    speeds.learn(Workload(gap=1000), Spent(replay=2.0))
    assert speeds.now.predict(Workload(gap=5000)).replay == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("with_it", "without", "wanted"),
    [
        (1.0, 7.9, False),  # four fifths are not reached
        (1.0, 8.0, True),
        (7.0, 8.0, True),
        (7.5, 8.0, False),  # it would save too little
        (9.0, 12.0, False),  # the full alone is as long as the budget: others decide
        (9.0, 18.0, True),
        (20.0, 30.0, False),
    ],
)
def test_a_full_snapshot_is_wanted_before_the_budget_is_used_up_and_only_where_it_helps(
    with_it: float, without: float, wanted: bool
) -> None:
    assert full_wanted(10.0, with_it, without) is wanted
