"""Tries a crash, a takeover and an abort at every step of some inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from statehold.api.handler import HandlerFactory
from statehold.api.values.keys import KeySerde
from statehold.bound.attributes import sinks_of
from statehold.bound.inputs import key_types
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.testing.memory.keys import key_encoders
from statehold.testing.simulation.cluster import encoders, quick_settings, topics_of
from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.shrink import timeline
from statehold.testing.simulation.simulation import (
    UPGRADE,
    InputRecord,
    RunReport,
    RunResult,
    Scenario,
    Simulation,
    run,
)

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
    upgrade: HandlerFactory | None = None,
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
    :param upgrade: the next release. After a third of the inputs one process stops and starts again with it, after
        two thirds the other one: crashes also happen in the middle of the upgrade, and a process of the first release
        may take over from one of the next. If the releases send other outputs, give a `check`.
    :raises UsageError: the next release reads other inputs, or has sinks that the first one has not.
    :raises AssertionError: a run differs. The text is its timeline, with the schedule to repeat it.
    """
    topics = topics_of(handler)
    records = _records(handler, topics, inputs)
    scenario = Scenario(handler, records, settings or quick_settings(), topics=topics, name="fuzz_crashes")
    if upgrade is not None:
        scenario = _upgrading(scenario, upgrade)
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
    disturbed = replace(scenario, verify=check if check is not None else compare)
    for actions in schedules:
        _require(run(disturbed, Schedule.listed(actions)))
    return FuzzedCrashes(len(places), len(schedules))


def _records(handler: Any, topics: tuple[str, ...], inputs: Iterable[Any]) -> Sequence[InputRecord]:
    kind = class_of(handler)
    names = Names("fuzz", topics[0], others=topics[1:])
    encode, keys = encoders(kind, names)[topics[0]], key_encoders(handler, names)
    own = key_types(handler, names).get(topics[0])
    found = []
    for number, each in enumerate(inputs):
        if isinstance(each, InputRecord):
            topic = each.topic or topics[0]
            found.append(each._replace(key=keys[topic](each.key)) if topic in keys else each)
        elif own is not None and not KeySerde(own).nullable:
            raise UsageError(
                f"{each!r:.100} has no key, and {kind.__name__} takes keys of the type {KeySerde(own).name}. Next: "
                f"give InputRecord(TIME, PARTITION, VALUE, KEY), such as InputRecord(1.0, 0, b'1', KEY)"
            )
        else:
            data = each if each is None or isinstance(each, bytes) else encode(each)
            found.append(InputRecord(1.0 + number * _APART, 0, data))
    return found


def _upgrading(scenario: Scenario, release: HandlerFactory) -> Scenario:
    """Return the scenario with an upgrade of both processes; later records come later by as long as it takes."""
    kind, first = class_of(release), class_of(scenario.handler)
    if topics_of(release, scenario.topics[0]) != scenario.topics:
        raise UsageError(
            f"{kind.__name__} reads {', '.join(topics_of(release, scenario.topics[0]))}, {first.__name__} reads "
            f"{', '.join(scenario.topics)}. Next: an upgrade keeps the inputs; `statehold state inputs` changes them"
        )
    if sinks_of(kind).keys() - sinks_of(first).keys():
        raise UsageError(f"{kind.__name__} has sinks that {first.__name__} has not. Next: upgrade without them")
    given = sorted(scenario.inputs, key=lambda each: each.time)
    low, high = -(-len(given) // 3), -(-2 * len(given) // 3)
    begin = (given[low - 1].time if given else 1.0) + _APART
    middle = begin + UPGRADE + (given[high - 1].time - given[low - 1].time if given else 0.0)
    later = [0.0] * low + [UPGRADE] * (high - low) + [2 * UPGRADE] * (len(given) - high)
    inputs = [each._replace(time=each.time + more) for each, more in zip(given, later, strict=True)]
    return replace(scenario, inputs=inputs, release=release, upgrades={"a": begin, "b": middle + _APART})


def _left(result: RunResult) -> dict[str, Any]:
    """Return all that a run has left for others."""
    outputs = {topic: result.outputs(topic) for topic in result.topics}
    return {**outputs, **result.application.database.tables}


def _require(report: RunReport) -> None:
    if report.violation is not None:
        raise AssertionError(timeline(report)) from report.violation
