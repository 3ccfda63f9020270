"""What others may see of a partition: its last mark for people, its committed state for queries. Any thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from statehold.ports import Clock
from statehold.snapshot.format import digest
from statehold.snapshot.format.records import Mark
from statehold.snapshot.restore.standby_copy import Copy
from statehold.snapshot.state import State
from statehold.table import Table
from statehold.worker.loop import Live

T = TypeVar("T")
Tables = Mapping[str, Table[Any, Any]]

_TRIES: Final = 500
_PAUSE: Final = 0.001


class Busy(Exception):
    """Commits changed the state during every try to read it."""


class Committed:
    """A partition's tables as commits leave them. Holds the state: let go of it after the request.

    `mark` is asked for what the state stands for now; `age` for how old it is at most, in seconds: only a copy has one.
    """

    def __init__(self, state: State, mark: Callable[[], Mark], age: Callable[[], float] | None = None) -> None:
        self._state, self._mark, self._age = state, mark, age

    @classmethod
    def of_live(cls, live: Live) -> Committed:
        return cls(live.state, lambda: live.committer.mark)

    @classmethod
    def of_copy(cls, copy: Copy, clock: Clock) -> Committed:
        """Of a partition that another instance owns."""
        return cls(copy.state, partial(_of_copy, copy), lambda: max(0.0, clock() - copy.fresh))

    @property
    def age(self) -> float | None:
        """Seconds; ask before `read`, and it is true of what that finds. None: it is the owner's."""
        return None if self._age is None else self._age()

    @property
    def tables(self) -> Tables:
        """For their declarations; values are read inside `read`."""
        return self._state.tables

    def read(self, look: Callable[[Tables], T]) -> tuple[T, Mark]:
        """What `look` finds in `Table.stored`, all of one commit, and the mark of that commit.

        `look` is called again when a commit came between, so it should be short.

        :raises Busy: one came between every time.
        """
        state = self._state
        for _ in range(_TRIES):
            version, mark = state.version, self._mark()
            if version % 2 == 0:
                found = look(state.tables)
                if state.version == version:
                    return found, mark
            time.sleep(_PAUSE)
        raise Busy


def _of_copy(copy: Copy) -> Mark:
    if copy.taken:
        raise Busy  # it is the owner's state now, who may have committed more
    return copy.shown


def shown(live: Live) -> dict[str, Any]:
    """What `status` says of a live partition beside its phase and position."""
    cost = live.fulls.cost
    return {
        "records": live.records,
        "bytes": cost.state_bytes,
        "since_full": live.fulls.unsaved,
        # keys whose records wait as dead letters; None where there is no policy for them
        "parked": live.parked,
        # records that were read from retry topics and wait for their time, 2,000 of each at most; None: none has
        "later": live.later,
        # owed and not done; the time of the record that asked for the oldest one, in seconds since 1970
        "effects": live.effects.number,
        "effects_since": live.effects.oldest / 1000 or None,
        # when the next timer is due, in seconds since 1970; None: there is none
        "timer": live.next_timer,
        "mark": _mark(live.committer.mark),
    }


def _mark(mark: Mark) -> dict[str, Any]:
    return {
        "n": mark.n,
        "positions": mark.positions,
        "keys": mark.keys,
        "digest": digest.show(mark.digest),
        "time": mark.time / 1000,
        "lineage": mark.lineage,
        "outputs": mark.outputs,
        "fulls": [{"offset": ref.offset, "first": ref.first, "through": ref.through} for ref in mark.fulls],
    }
