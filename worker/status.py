"""Describes a live partition for `status`; any thread may ask."""

from __future__ import annotations

from typing import Any

from statehold.snapshot.format import digest
from statehold.snapshot.format.records import Mark
from statehold.worker.loop import Live


def shown(live: Live) -> dict[str, Any]:
    """Return what `status` shows of a live partition, besides its phase and position."""
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
