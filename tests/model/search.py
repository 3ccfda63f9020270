"""Searches every state that a model can reach; nothing here knows what is modelled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Broken(Exception):
    """An invariant does not hold."""


class Found(NamedTuple):
    """What a search has seen."""

    states: int
    #: why an invariant does not hold; '' if all do
    broken: str
    #: the shortest way there, one step each
    path: tuple[str, ...]
    #: every state within `most` was visited
    whole: bool


def search(
    first: S, following: Callable[[S], Iterable[tuple[str, S]]], check: Callable[[S], None], most: int = 1_000_000
) -> Found:
    """Visit the states in the order of their distance from `first`; end at the first that is broken."""
    came: dict[S, tuple[S, str] | None] = {first: None}
    queue = deque([first])
    state = first
    try:
        while queue and len(came) < most:
            state = queue.popleft()
            check(state)
            for step, other in following(state):
                if other not in came:
                    came[other] = (state, step)
                    queue.append(other)
    except Broken as error:
        return Found(len(came), str(error), _way(came, state), whole=False)
    return Found(len(came), "", (), whole=not queue)


def _way(came: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))
