"""How long a restore would take, before it is needed: pure arithmetic over what it would have to do.

The default speeds were measured (docs/restore.md); a process corrects them by its own last restore. Fencing and the
group's session timeout come on top and do not depend on the state.
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

#: what should take less than so many seconds says nothing about speed: most of it are answers waited for
_TELLING: Final = 0.05
_LONGEST_FIXED: Final = 2.0
_SLOWEST: Final = 20.0
_FASTEST: Final = 0.05
#: the share of the budget at which something is done, so that it is not exceeded while that takes its time
_HEADROOM: Final = 0.8
#: the share of the budget that a full must save, or it would be taken again and again for nothing
_WORTH: Final = 0.1


class Workload(msgspec.Struct, frozen=True):
    """What a restore would have to do: load the full, apply the increments after it, hash all keys, replay the gap."""

    full_keys: int = 0
    #: before compression
    full_bytes: int = 0
    transactions: int = 0
    #: keys in deltas
    entries: int = 0
    increment_bytes: int = 0
    #: of the state
    keys: int = 0
    #: input records between the last delta and the last mark
    gap: int = 0


class Spent(msgspec.Struct, frozen=True):
    """Seconds of one restore by what they were spent on; 0.0 where nothing was done or measured."""

    fixed: float = 0.0
    full: float = 0.0
    increments: float = 0.0
    digest: float = 0.0
    replay: float = 0.0

    @property
    def total(self) -> float:
        return self.fixed + self.full + self.increments + self.digest + self.replay


def by_default(work: Workload) -> Spent:
    """What a workload takes at the default speeds."""
    return Spent(
        _FIXED,
        work.full_keys * _FULL_KEY + work.full_bytes * _FULL_BYTE,
        work.transactions * _TRANSACTION + work.entries * _ENTRY + work.increment_bytes * _INCREMENT_BYTE,
        work.keys * _DIGEST_KEY,
        work.gap * _RECORD,
    )


class Speed(msgspec.Struct, frozen=True):
    """How many times the default each part takes here; None where nothing was measured: then as the others do.

    `fixed` is in seconds: what every restore takes, however small.
    """

    fixed: float = _FIXED
    full: float | None = None
    increments: float | None = None
    digest: float | None = None
    replay: float | None = None
    #: of the replay, by what handling records has taken; counts until one was measured
    expected: float | None = None

    def predict(self, work: Workload) -> Spent:
        """Seconds of a restore that has to do `work`."""
        usual, default = self._usual(), by_default(work)
        return Spent(
            self.fixed,
            default.full * _or(self.full, usual),
            default.increments * _or(self.increments, usual),
            default.digest * _or(self.digest, usual),
            default.replay * _or(self.replay, _or(self.expected, 1.0)),
        )

    def learned(self, work: Workload, spent: Spent) -> Speed:
        """Corrected by a restore that did `work` and took `spent`; the newest measurement counts."""
        default = by_default(work)
        small = (_waited(getattr(spent, name), getattr(default, name)) for name in ("full", "increments", "digest"))
        return Speed(
            min(_LONGEST_FIXED, spent.fixed + sum(small)),
            _times(spent.full, default.full, self.full),
            _times(spent.increments, default.increments, self.increments),
            _times(spent.digest, default.digest, self.digest),
            spent.replay / default.replay if spent.replay >= _TELLING and default.replay > 0 else self.replay,
            self.expected,
        )

    def _usual(self) -> float:
        """This machine against the one that the defaults are from."""
        known = [each for each in (self.full, self.increments, self.digest) if each is not None]
        return sum(known) / len(known) if known else 1.0


class Speeds:
    """What a process has learned so far; shared by its partitions, each of which replaces the value as a whole."""

    def __init__(self) -> None:
        self.now = Speed()

    def expect(self, pace: int) -> None:
        """Handling a record takes so many nanoseconds, here or for an earlier owner; 0 says nothing."""
        if pace > 0:
            self.now = msgspec.structs.replace(self.now, expected=pace * 1e-9 / _RECORD)

    def learn(self, work: Workload, spent: Spent) -> None:
        self.now = self.now.learned(work, spent)


def full_wanted(budget: float, with_it: float, without: float) -> bool:
    """Whether a full is due for the budget's sake: `with_it` and `without` are the seconds of a restore then and now.

    Where the full alone takes about as long as the budget, only one that halves the time is worth it.
    """
    if without < _HEADROOM * budget:
        return False
    worth = _WORTH * budget if with_it < _HEADROOM * budget else with_it
    return without - with_it >= worth


def _or(measured: float | None, usual: float) -> float:
    return usual if measured is None else measured


def _times(spent: float, default: float, before: float | None) -> float | None:
    if default < _TELLING or spent == 0.0:
        return before
    return min(_SLOWEST, max(_FASTEST, spent / default))


def _waited(spent: float, default: float) -> float:
    """What a part took that has too little to do for its length to be work."""
    return max(0.0, spent - default) if default < _TELLING else 0.0
