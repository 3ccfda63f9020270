"""What the supervisor of several processes decides: starts, restarts, rolling restarts, scaling, the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from statehold.errors import UsageError
from statehold.ops.supervisor.fleet import Fleet, Order, Sight

LIVE = Sight(silent=0.0, answered=True, running=True, alive=True, settled=True)
RESTORING = Sight(silent=0.0, answered=True, running=True, alive=True)
STUCK = Sight(silent=0.0, answered=True, running=True, alive=False)
STOP_WITHIN, PATIENCE = 30.0, 60.0


@dataclass
class World:
    """A fleet, and processes that obey when the test says so."""

    fleet: Fleet
    now: float = 0.0
    orders: list[Order] = field(default_factory=list)

    def turn(self, seconds: float = 0.0) -> list[Order]:
        self.now += seconds
        self.orders = self.fleet.next(self.now)
        return self.orders

    def see(self, sight: Sight, *numbers: int) -> None:
        for number in numbers or [each.number for each in self.fleet.slots.values() if each.runs]:
            self.fleet.seen(number, sight, self.now)

    def live(self, *numbers: int) -> None:
        """These are live, and stay so."""
        self.see(LIVE, *numbers)
        self.now += 2.0
        self.see(LIVE, *numbers)

    def end(self, number: int, code: int) -> None:
        self.fleet.ended(number, code, self.now)

    def states(self) -> list[str]:
        return [slot.state for _, slot in sorted(self.fleet.slots.items())]

    def events(self) -> list[str]:
        notes, self.fleet.notes = self.fleet.notes, []
        return [event for _, event, _ in notes]

    def roll(self) -> str:
        return self.fleet.roll.state


@pytest.fixture
def three() -> World:
    """Three live processes."""
    world = World(Fleet(3, STOP_WITHIN, PATIENCE))
    assert world.turn() == [Order("start", 1), Order("start", 2), Order("start", 3)]
    world.live()
    assert world.states() == ["live"] * 3
    return world


def test_a_process_is_live_only_after_it_has_stayed_so() -> None:
    world = World(Fleet(1, STOP_WITHIN, PATIENCE))
    world.turn()
    world.see(LIVE)
    world.see(RESTORING)
    world.now += 5.0
    world.see(LIVE)
    assert world.states() == ["starting"]
    world.now += 1.0
    world.see(LIVE)
    assert world.states() == ["live"]


@pytest.mark.parametrize("code", [1, 3, 4, 6, 7, 14, 134, 137, 139])
def test_a_process_that_ended_starts_again_and_waits_longer_each_time(three: World, code: int) -> None:
    delays = []
    for _ in range(4):
        three.end(2, code)
        assert three.turn() == []
        delays.append(three.fleet.slots[2].at - three.now)
        assert three.turn(delays[-1]) == [Order("start", 2)]
    assert delays == [1.0, 2.0, 4.0, 8.0]
    assert three.fleet.slots[2].restarts == 4
    assert three.events() == ["process_restarts"] * 4


@pytest.mark.parametrize("code", [0, 2, 5, 130])
def test_a_process_that_no_restart_helps_stays_down_and_the_others_run(three: World, code: int) -> None:
    three.end(2, code)
    assert three.turn(1000.0) == []
    assert three.states() == ["live", "down", "live"]
    assert not three.fleet.over
    assert three.events() == ["process_down"]


def test_a_process_that_ends_again_and_again_stays_down(three: World) -> None:
    for _ in range(9):
        three.end(1, 1)
        assert three.turn(60.0 if three.fleet.slots[1].at - three.now > 32 else 32.0) == [Order("start", 1)]
    three.end(1, 1)
    assert three.states() == ["down", "live", "live"]


def test_ends_far_apart_do_not_add_up(three: World) -> None:
    for _ in range(30):
        three.end(1, 1)
        assert three.turn(1.0) == [Order("start", 1)]
        three.now += 700.0


def test_it_is_over_when_every_process_stays_down_with_the_exit_code_of_one() -> None:
    world = World(Fleet(2, STOP_WITHIN, PATIENCE))
    world.turn()
    world.end(1, 5)
    assert not world.fleet.over
    world.end(2, 5)
    assert (world.fleet.over, world.fleet.code) == (True, 5)


def test_a_stop_reaches_all_at_once_and_ends_with_0_although_one_had_crashed(three: World) -> None:
    three.end(1, 137)
    three.fleet.stop(three.now)
    assert three.turn() == [Order("stop", 2), Order("stop", 3)]
    three.end(2, 0)
    three.end(3, 0)
    assert (three.fleet.over, three.fleet.code) == (True, 0)


def test_a_stop_keeps_the_exit_code_of_an_end_that_was_not_good(three: World) -> None:
    three.fleet.stop(three.now)
    three.turn()
    three.end(1, 0)
    three.end(2, 6)
    three.end(3, 0)
    assert (three.fleet.over, three.fleet.code) == (True, 6)


def test_a_process_that_does_not_stop_is_killed(three: World) -> None:
    three.fleet.stop(three.now)
    three.turn()
    three.end(1, 0)
    assert three.turn(STOP_WITHIN - 0.1) == []
    assert three.turn(0.1) == [Order("kill", 2), Order("kill", 3)]


def test_a_stuck_process_is_aborted_and_starts_again_and_a_busy_one_is_not(three: World) -> None:
    three.see(STUCK, 2)
    three.turn(PATIENCE - 1)
    three.see(RESTORING, 2)  # it came back
    three.turn(PATIENCE)
    three.see(STUCK, 2)
    assert three.turn(PATIENCE - 1) == []
    three.now += 1
    three.see(STUCK, 2)
    assert three.turn() == [Order("abort", 2)]
    three.turn(9.0)
    assert three.turn(1.0) == [Order("kill", 2)]
    three.end(2, 137)
    assert three.states() == ["live", "waiting", "live"]
    assert three.turn(1.0) == [Order("start", 2)]


def test_a_silent_process_is_aborted_but_one_that_still_loads_gets_longer(three: World) -> None:
    three.see(Sight(silent=PATIENCE, answered=True, running=True, alive=True), 1)
    assert three.turn() == [Order("abort", 1)]
    three.end(1, 134)
    three.turn(1.0)
    three.see(Sight(silent=PATIENCE * 3), 1)
    assert three.turn() == []
    three.see(Sight(silent=PATIENCE * 6), 1)
    assert three.turn() == [Order("abort", 1)]


# Rolling restart


def begin(world: World) -> None:
    world.fleet.restart(world.now)
    assert world.turn() == [Order("check")]
    world.fleet.checked("", world.now)


def test_one_process_is_live_again_before_the_next_one_stops(three: World) -> None:
    begin(three)
    for number in (1, 2, 3):
        assert three.turn() == [Order("stop", number)]
        three.end(number, 0)
        assert three.turn() == [Order("start", number)]
        three.see(RESTORING, number)
        assert three.turn(100.0) == []
        three.see(LIVE, number)
        assert three.turn(0.5) == []
        three.live(number)
    assert three.turn() == []
    assert three.roll() == "done"
    assert three.events() == ["roll_started", "roll_done"]


def test_a_release_that_cannot_be_loaded_stops_no_process(three: World) -> None:
    three.fleet.restart(three.now)
    three.turn()
    three.fleet.checked("exit code 1", three.now)
    assert three.turn(100.0) == []
    assert (three.roll(), three.states()) == ("stopped", ["live"] * 3)
    assert "exit code 1" in three.fleet.roll.why


def test_a_release_that_ends_stops_the_roll_and_the_old_ones_run(three: World) -> None:
    begin(three)
    three.turn()
    three.end(1, 0)
    three.turn()
    three.end(1, 1)
    assert three.turn(1000.0) == []
    assert (three.roll(), three.states()) == ("stopped", ["down", "live", "live"])


def test_a_release_that_fails_a_partition_leaves_it_to_the_old_ones(three: World) -> None:
    begin(three)
    three.turn()
    three.end(1, 0)
    three.turn()
    three.see(Sight(0.0, True, True, True, True, frozenset({7})), 1)
    assert three.turn() == [Order("drain", 1)]
    three.end(1, 0)
    assert (three.roll(), three.states()) == ("stopped", ["down", "live", "live"])
    assert "partition 7" in three.fleet.roll.why


def test_a_partition_that_had_failed_before_does_not_stop_the_roll(three: World) -> None:
    three.see(Sight(0.0, True, True, True, True, frozenset({7})), 3)
    begin(three)
    three.turn()
    three.end(1, 0)
    three.turn()
    failed = Sight(0.0, True, True, True, True, frozenset({7}))
    three.see(failed, 1)
    three.now += 2.0
    three.see(failed, 1)
    assert three.turn() == [Order("stop", 2)]


def test_a_new_process_that_ends_after_it_was_live_stops_the_roll(three: World) -> None:
    begin(three)
    three.turn()
    three.end(1, 0)
    three.turn()
    three.live(1)
    assert three.turn() == [Order("stop", 2)]
    three.end(1, 1)
    assert three.roll() == "stopped"
    three.end(2, 0)
    assert three.turn(1.0) == [Order("start", 2), Order("start", 1)]
    assert three.fleet.slots[3].state == "live"


def test_an_old_process_that_ends_meanwhile_is_live_before_the_next_one_stops(three: World) -> None:
    begin(three)
    assert three.turn() == [Order("stop", 1)]
    three.end(3, 1)
    three.end(1, 0)
    assert three.turn(1.0) == [Order("start", 1), Order("start", 3)]
    three.live(1)
    assert three.turn() == []  # 3 is not live
    three.live(3)
    assert three.turn() == [Order("stop", 2)]
    three.end(2, 0)
    three.turn()
    three.live(2)
    assert three.turn() == []  # 3 has the new code already
    three.turn()
    assert three.roll() == "done"


def test_a_process_that_is_down_comes_first_because_the_release_may_be_its_cure(three: World) -> None:
    three.end(3, 5)
    begin(three)
    assert three.turn() == [Order("start", 3)]
    three.live(3)
    assert three.turn() == [Order("stop", 1)]


def test_a_single_process_starts_again_although_the_release_is_bad() -> None:
    world = World(Fleet(1, STOP_WITHIN, PATIENCE))
    world.turn()
    world.live()
    begin(world)
    world.turn()
    world.end(1, 0)
    world.turn()
    world.end(1, 1)
    assert (world.roll(), world.states()) == ("stopped", ["waiting"])


def test_a_stop_ends_a_roll(three: World) -> None:
    begin(three)
    three.turn()
    three.fleet.stop(three.now)
    assert three.turn() == [Order("stop", 2), Order("stop", 3)]
    three.end(1, 0)
    assert (three.roll(), three.states()) == ("stopped", ["stopping", "stopping"])


# Scale


def test_more_processes_start_and_the_others_run_on(three: World) -> None:
    three.fleet.scale(5, three.now)
    assert three.turn() == [Order("start", 4), Order("start", 5)]
    assert three.states() == ["live", "live", "live", "starting", "starting"]


def test_fewer_processes_leave_their_group_from_the_last_on(three: World) -> None:
    three.fleet.scale(1, three.now)
    assert three.turn() == [Order("drain", 2), Order("drain", 3)]
    three.end(3, 0)
    three.end(2, 0)
    assert (three.states(), three.turn(100.0)) == (["live"], [])


def test_a_process_that_leaves_comes_back_if_it_is_wanted_again(three: World) -> None:
    three.fleet.scale(2, three.now)
    three.turn()
    three.fleet.scale(3, three.now)
    assert three.turn() == []
    three.end(3, 0)
    assert three.turn() == [Order("start", 3)]


def test_scaling_starts_what_stays_down_again(three: World) -> None:
    three.end(2, 5)
    three.fleet.scale(3, three.now)
    assert three.turn() == [Order("start", 2)]


@pytest.mark.parametrize("count", [0, -1, 257])
def test_an_impossible_number_changes_nothing(three: World, count: int) -> None:
    with pytest.raises(UsageError, match="from 1 to 256"):
        three.fleet.scale(count, three.now)
    assert (three.turn(), three.fleet.wanted) == ([], 3)


def test_a_rolling_restart_and_a_stop_reject_other_commands(three: World) -> None:
    begin(three)
    with pytest.raises(UsageError, match="a rolling restart is in progress"):
        three.fleet.scale(4, three.now)
    with pytest.raises(UsageError, match="a rolling restart is in progress"):
        three.fleet.restart(three.now)
    three.fleet.stop(three.now)
    with pytest.raises(UsageError, match="the processes stop"):
        three.fleet.scale(4, three.now)
