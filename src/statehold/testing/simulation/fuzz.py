"""Tries a crash, a takeover and an abort at every step of some inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from statehold.api.handler import HandlerFactory
from statehold.bound.topics import class_of
from statehold.config.settings import Settings
from statehold.testing.simulation.cluster import encoders, quick_settings, topics_of
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import timeline
from statehold.testing.simulation.simulation import InputRecord, RunReport, RunResult, Scenario, Simulation, run

#: seconds between two inputs, so that they are committed one by one
_APART: Final = 0.4
#: what is tried at each place; the others only where they mean something
_EVERYWHERE: Final = ("kill", "halt 12")
_AT: Final = {
    "offsets": ("fail aborted", "fail stale"),
    "commit": ("fail unknown", "fail-after unknown"),
    "call": ("fail call",),
    "answer": ("fail call", "twice"),
}


class FuzzedCrashes(NamedTuple):
    """What was tried: the places that the undisturbed run reaches, and the schedules."""

    places: int
    schedules: int


def fuzz_crashes(
    handler: HandlerFactory,
    inputs: Iterable[Any],
    *,
    settings: Settings | None = None,
    check: Callable[[RunResult], None] | None = None,
    most: int = 500,
) -> FuzzedCrashes:
    """Compare every disturbed run of a handler with the undisturbed one.

    Two processes run the service. At each place that the undisturbed run reaches one of them is killed, suspended
    until the other has taken over, or gets an error of a transaction. Outputs and rows of sinks must be the same.

        def test_crashes():
            fuzz_crashes(Clearing, [Trade("ann", 3), Trade("bob", 5)])

    :param inputs: values, all of one partition, or `InputRecord`s with keys, times, and the topic of one of several
        inputs. Plain values go to the first input.
    :param check: replaces the comparison, for a handler whose outputs depend on the time, such as one with timers. It
        raises AssertionError.
    :param most: most schedules; if there are more places, it takes them evenly.
    :raises AssertionError: a run differs. The text is its timeline, with the schedule to repeat it.
    """
    topics = topics_of(handler)
    records = _records(handler, topics, inputs)
    scenario = Scenario(handler, records, settings or quick_settings(), topics=topics, name="fuzz_crashes")
    places: list[tuple[str, str]] = []
    undisturbed = Simulation(scenario, Schedule.listed({}))
    undisturbed.scheduler.reached = places
    report = undisturbed.run()
    _require(report)
    expected = _left(undisturbed.result)

    def compare(result: RunResult) -> None:
        found = _left(result)
        assert found == expected, f"{found} instead of {expected}"

    schedules = [{place: fault} for place, kind in places for fault in (*_EVERYWHERE, *_AT.get(kind, ()))]
    schedules = schedules[:: max(1, -(-len(schedules) // most))]
    disturbed = Scenario(
        handler,
        records,
        scenario.settings,
        topics=topics,
        name=scenario.name,
        verify=check if check is not None else compare,
    )
    for actions in schedules:
        _require(run(disturbed, Schedule.listed(actions)))
    return FuzzedCrashes(len(places), len(schedules))


def _records(handler: Any, topics: tuple[str, ...], inputs: Iterable[Any]) -> Sequence[InputRecord]:
    kind = class_of(handler)
    encode = encoders(kind, topics)[topics[0]]
    found = []
    for number, each in enumerate(inputs):
        if isinstance(each, InputRecord):
            found.append(each)
        else:
            data = each if each is None or isinstance(each, bytes) else encode(each)
            found.append(InputRecord(1.0 + number * _APART, 0, data))
    return found


def _left(result: RunResult) -> dict[str, Any]:
    """Return all that a run has left for others."""
    outputs = {topic: result.outputs(topic) for topic in result.application.all_outputs}
    return {**outputs, **result.application.database.tables}


def _require(report: RunReport) -> None:
    if report.violation is not None:
        raise AssertionError(timeline(report)) from report.violation
