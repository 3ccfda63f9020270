"""Compares the inputs of a state with those of the code, and names the options that change them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class InputDifference(NamedTuple):
    """The difference of the code's inputs from the state's."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    #: the inputs that both have come in another order
    reordered: bool

    @property
    def options(self) -> str:
        """The options of `statehold state inputs` that confirm the difference."""
        options = [f"--remove {topic}" for topic in self.removed]
        options += [f"--add {topic}=beginning|end|TIME" for topic in self.added]
        if self.reordered:
            options.append("--reorder")
        return " ".join(options)

    @property
    def hint(self) -> str:
        """The other way to read the difference, if one input stands for another; '' otherwise."""
        if len(self.removed) != 1 or len(self.added) != 1:
            return ""
        old, new = self.removed[0], self.added[0]
        return f". If the records of {old} continue in {new}, use --rename {old}={new}"


def difference(before: Sequence[str], after: Sequence[str]) -> InputDifference:
    """Return what changes between the state's inputs and the code's."""
    kept = [topic for topic in before if topic in after]
    return InputDifference(
        added=tuple(topic for topic in after if topic not in before),
        removed=tuple(topic for topic in before if topic not in after),
        reordered=kept != [topic for topic in after if topic in before],
    )
