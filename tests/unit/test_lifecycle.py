"""The lifecycle of a partition: random walks over its edges, and the diagram that describes them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold.worker.common import lifecycle
from statehold.worker.common.lifecycle import EDGES, Event, IllegalEvent, Lifecycle, Phase

#: chance alone seldom gets a partition live, so walks begin anywhere on the way
WAY = [Event.START, Event.FENCED, Event.RESTORED, Event.REPLAYED, Event.REVOKED]
walks = st.builds(
    lambda begin, further: WAY[:begin] + further,
    st.integers(0, len(WAY)),
    st.lists(st.sampled_from(Event), max_size=40),
)


def walk(events: list[Event]) -> list[tuple[Event | None, Lifecycle]]:
    """The life so far, illegal events left out."""
    life = Lifecycle()
    path: list[tuple[Event | None, Lifecycle]] = [(None, life)]
    for event in events:
        if event in EDGES[life.phase]:
            life = life.after(event)
            path.append((event, life))
    return path


@given(walks)
def test_a_partition_closes_once_and_nothing_happens_after(events: list[Event]) -> None:
    phases = [life.phase for _, life in walk(events)]
    assert phases.count(Phase.CLOSED) <= 1
    if Phase.CLOSED in phases:
        assert phases[-1] is Phase.CLOSED


@given(walks)
def test_a_partition_fences_restores_and_replays_in_this_order_before_it_is_live(events: list[Event]) -> None:
    steps: list[Phase] = []
    for _, life in walk(events):
        if life.phase in (Phase.FENCING, Phase.FAILED):
            steps = []
        if life.phase is Phase.LIVE:
            assert steps == [Phase.FENCING, Phase.RESTORING, Phase.REPLAYING]
            continue
        steps.append(life.phase)


@given(walks)
def test_nothing_is_committed_after_a_loss(events: list[Event]) -> None:
    lost = False
    for event, life in walk(events):
        lost = lost or event is Event.LOST
        assert not (lost and life.phase in (Phase.LIVE, Phase.DRAINING))


@given(walks)
def test_a_retry_begins_with_a_fence_and_forgets_the_cause(events: list[Event]) -> None:
    for event, life in walk(events):
        if event is Event.RETRY:
            assert life == Lifecycle(Phase.FENCING)


@given(walks, st.sampled_from(Event))
def test_an_illegal_event_is_rejected_by_name(events: list[Event], event: Event) -> None:
    life = walk(events)[-1][1]
    if event not in EDGES[life.phase]:
        with pytest.raises(IllegalEvent, match=f"{event.name} is not possible while {life.phase.value}"):
            life.after(event)


def test_every_phase_can_be_left_and_reached() -> None:
    reached = {target for edges in EDGES.values() for target in edges.values()}
    assert reached == set(Phase) - {Phase.ASSIGNED}
    assert {phase for phase in Phase if not EDGES[phase]} == {Phase.CLOSED}


def test_every_phase_listens_to_a_loss_and_to_a_revocation_until_it_is_leaving() -> None:
    for phase in set(Phase) - {Phase.CLOSED, Phase.ABORTING}:
        assert Event.LOST in EDGES[phase]
        assert Event.REVOKED in EDGES[phase] or phase is Phase.DRAINING


def test_a_failure_keeps_its_cause() -> None:
    cause = ValueError("poison")
    life = Lifecycle(Phase.LIVE).after(Event.FAILED, cause)
    assert life == Lifecycle(Phase.FAILED, cause)
    assert life.after(Event.REVOKED) == Lifecycle(Phase.CLOSED, cause)


def test_the_diagram_says_what_the_table_says() -> None:
    """Read the drawing of the module's docstring: a `+` or a name above it is where an edge starts."""
    lines = [line for line in (lifecycle.__doc__ or "").splitlines() if "->" in line]
    chain, *branches = lines
    names = {match.start(): match.group() for match in re.finditer(r"[A-Z]+", chain)}
    drawn = {(a, b) for a, b in zip([*names.values()], [*names.values()][1:], strict=False)}
    for line in branches:
        starts = {phase_at(names, match.start()) for match in re.finditer(r"\+", line)}
        targets = re.findall(r"> ([A-Z]+)", line)
        drawn |= {(start, targets[0]) for start in starts}
        drawn |= set(pairwise(targets))
    table = {
        (phase.name, target.name)
        for phase, edges in EDGES.items()
        for target in edges.values()
        if phase is not Phase.ASSIGNED or target is Phase.FENCING  # leaving before it began is not drawn
    }
    assert drawn == table - {("FAILED", "CLOSED")}


def phase_at(names: dict[int, str], column: int) -> str:
    """The phase under whose name a column lies."""
    return next(name for start, name in names.items() if start <= column < start + len(name))
