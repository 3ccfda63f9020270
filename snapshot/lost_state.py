"""Says from where a state can be had if neither its deltas nor its full snapshots are left."""

from __future__ import annotations

from collections.abc import Callable

from statehold.common.names import Names


def ways_back(names: Names, starts: Callable[[str], int]) -> str:
    """Return the ways to a state without `statehold repair rebase`; `starts` returns the first offset of an input."""
    begins = {topic: starts(topic) for topic in names.inputs}
    cut = [f"{topic} begins at offset {start}" for topic, start in begins.items() if start > 0]
    held = f"only part of it is left: {', '.join(cut)}" if cut else "all of it is there"
    return (
        f"the state of all partitions can be had from a backup or from the input. Delete {names.changelog} and "
        f"{names.snapshot}, then run, with a backup, `statehold snapshot restore MODULE:SERVICE --from DIR --input-at "
        f"same --why TEXT --yes`; or, from the input ({held}), `statehold topics create MODULE:SERVICE --start-at "
        f"beginning`: the service then handles all of it again, and the outputs are duplicated"
    )
