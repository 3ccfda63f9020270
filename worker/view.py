"""What others may see of a partition: its last mark for people, its committed state for queries. Any thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from holdfast.snapshot import digest
from holdfast.snapshot.records import Mark
from holdfast.table import Table
from holdfast.worker.live import Live

T = TypeVar("T")
Tables = Mapping[str, Table[Any, Any]]

_TRIES: Final = 500
_PAUSE: Final = 0.001


class Busy(Exception):
    """Commits changed the state during every try to read it."""


class Committed:
    """A live partition's tables as commits leave them. Holds the state: let go of it after the request."""

    def __init__(self, live: Live) -> None:
        self._live, self._state = live, live.state

    @property
    def tables(self) -> Tables:
        """For their declarations; values are read inside `read`."""
        return self._state.tables

    def read(self, look: Callable[[Tables], T]) -> tuple[T, Mark]:
        """What `look` finds in `Table.stored`, all of one commit, and the mark of that commit.

        `look` is called again when a commit came between, so it should be short.

        :raises Busy: one came between every time.
        """
        state, committer = self._state, self._live.committer
        for _ in range(_TRIES):
            version, mark = state.version, committer.mark
            if version % 2 == 0:
                found = look(state.tables)
                if state.version == version:
                    return found, mark
            time.sleep(_PAUSE)
        raise Busy


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
