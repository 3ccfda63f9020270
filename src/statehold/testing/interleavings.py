"""Draw the order in which the records of several inputs arrive, for tests with hypothesis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from statehold.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


class Arrival(NamedTuple):
    """A value that arrives on an input."""

    input: str
    value: Any


def interleavings(inputs: Mapping[str, Iterable[Any] | SearchStrategy[Any]]) -> SearchStrategy[list[Arrival]]:
    """Return a hypothesis strategy for the orders in which the values of several inputs may arrive.

    Each input keeps its own order. Every interleaving may be drawn, and all values of each input are in it.
    A counterexample shrinks towards one input after the other, in the order of `inputs`.

    :param inputs: by topic the values of an input, or a hypothesis strategy that draws them, such as
        `strategies.lists(...)`. Hypothesis leaves out values of a strategy that a counterexample does not need.
    :raises UsageError: hypothesis is not installed, or there is no input.
    """
    try:
        from hypothesis import strategies
    except ImportError as error:
        raise UsageError(f"interleavings needs hypothesis ({error}). Next: pip install hypothesis") from error
    if not inputs:
        raise UsageError("interleavings: there is no input. Next: name the topics that the handler reads")
    drawn = {
        topic: values if isinstance(values, strategies.SearchStrategy) else strategies.just(tuple(values))
        for topic, values in inputs.items()
    }

    @strategies.composite
    def orders(draw: DrawFn) -> list[Arrival]:
        order: list[Arrival] = []
        for topic, values in drawn.items():
            arrivals = [Arrival(topic, value) for value in draw(values)]
            # Hypothesis shrinks the draws to 0. As they count from the end, this input then comes after the others.
            behind = strategies.integers(0, len(order)) if order else strategies.just(0)
            places = sorted(len(order) - draw(behind) for _ in arrivals)
            for place, arrival in zip(reversed(places), reversed(arrivals), strict=True):
                order.insert(place, arrival)
        return order

    return orders()
