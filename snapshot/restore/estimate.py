"""Predicts the duration of a restore from its work.

The default speeds were measured (docs/how-to/state/restore.md); a process corrects them by its own last restore.
Fencing and the group's session timeout add to the prediction and do not depend on the state.
"""

from __future__ import annotations

from typing import Final

import msgspec

# Seconds, on two cores of a server of 2024, with a broker on the same machine and three tables of small values.
_FIXED: Final = 0.1
_FULL_KEY: Final = 0.45e-6
_FULL_BYTE: Final = 1.0e-9
_TRANSACTION: Final = 15e-6
_ENTRY: Final = 0.9e-6
_INCREMENT_BYTE: Final = 3.0e-9
_DIGEST_KEY: Final = 0.25e-6
_RECORD: Final = 6e-6

#: parts expected to take fewer seconds say nothing about speed, because most of their time is spent on waiting
_TELLING: Final = 0.05
_LONGEST_FIXED: Final = 2.0
_SLOWEST: Final = 20.0
_FASTEST: Final = 0.05
#: the share of the budget at which a full snapshot is due, so that the budget holds until it is complete
_HEADROOM: Final = 0.8
#: the share of the budget that a full snapshot must save, so that it is not taken again and again in vain
_WORTH: Final = 0.1


class Workload(msgspec.Struct, frozen=True):
    """The work of a restore: load the full snapshot, apply the deltas after it, hash all keys, replay the gap."""

    full_keys: int = 0
    #: before compression
    full_bytes: int = 0
    transactions: int = 0
    #: keys in deltas
    entries: int = 0
    increment_bytes: int = 0
    #: of the state
    keys: int = 0
    #: input records between the last delta and the last commit record
    gap: int = 0


class Spent(msgspec.Struct, frozen=True):
    """The seconds of one restore by part; 0.0 if a part was not done or measured."""

    fixed: float = 0.0
    full: float = 0.0
    increments: float = 0.0
    digest: float = 0.0
    replay: float = 0.0

    @property
    def total(self) -> float:
        return self.fixed + self.full + self.increments + self.digest + self.replay


def by_default(work: Workload) -> Spent:
    """Return the duration of a workload at the default speeds."""
    return Spent(
        _FIXED,
        work.full_keys * _FULL_KEY + work.full_bytes * _FULL_BYTE,
        work.transactions * _TRANSACTION + work.entries * _ENTRY + work.increment_bytes * _INCREMENT_BYTE,
        work.keys * _DIGEST_KEY,
        work.gap * _RECORD,
    )


class Speed(msgspec.Struct, frozen=True):
    """The duration of each part on this machine, as a multiple of the default; None if it was not measured.

    `fixed` is in seconds: the minimum of every restore.
    """

    fixed: float = _FIXED
    full: float | None = None
    increments: float | None = None
    digest: float | None = None
    replay: float | None = None
    #: of the replay, by the time that handling records took; used until a replay was measured
    expected: float | None = None

    def predict(self, work: Workload) -> Spent:
        """Return the duration of a restore with this work. A part that was not measured is as fast as the others."""
        known, count = 0.0, 0
        for each in (self.full, self.increments, self.digest):
            if each is not None:
                known, count = known + each, count + 1
        usual = known / count if count else 1.0
        default = by_default(work)
        replay = self.replay if self.replay is not None else self.expected
        return Spent(
            self.fixed,
            default.full * (usual if self.full is None else self.full),
            default.increments * (usual if self.increments is None else self.increments),
            default.digest * (usual if self.digest is None else self.digest),
            default.replay * (1.0 if replay is None else replay),
        )

    def learned(self, work: Workload, spent: Spent) -> Speed:
        """Return the speed after a restore with this work and duration; the newest measurement of a part counts."""
        default, fixed = by_default(work), spent.fixed
        measured: dict[str, float | None] = {"replay": self.replay}
        for name in ("full", "increments", "digest"):
            took, usual = getattr(spent, name), getattr(default, name)
            measured[name] = getattr(self, name)
            if usual < _TELLING:
                fixed += max(0.0, took - usual)  # too little work: the rest of it was waiting
            elif took > 0.0:
                measured[name] = min(_SLOWEST, max(_FASTEST, took / usual))
        if spent.replay >= _TELLING and default.replay > 0:
            measured["replay"] = spent.replay / default.replay
        return Speed(min(_LONGEST_FIXED, fixed), **measured, expected=self.expected)


class Speeds:
    """The speed that a process has learned. Its partitions share it, and each replaces the value as a whole."""

    def __init__(self) -> None:
        self.now = Speed()

    def expect(self, pace: int) -> None:
        """Note that handling a record takes `pace` nanoseconds, here or for an earlier owner; 0: unknown."""
        if pace > 0:
            self.now = msgspec.structs.replace(self.now, expected=pace * 1e-9 / _RECORD)

    def learn(self, work: Workload, spent: Spent) -> None:
        self.now = self.now.learned(work, spent)


def full_wanted(budget: float, with_it: float, without: float) -> bool:
    """Return whether the budget requires a full snapshot.

    `with_it` and `without` are the seconds of a restore then and now. If the full snapshot alone takes about as long
    as the budget, it is due only if it halves the time.
    """
    if without < _HEADROOM * budget:
        return False
    worth = _WORTH * budget if with_it < _HEADROOM * budget else with_it
    return without - with_it >= worth
