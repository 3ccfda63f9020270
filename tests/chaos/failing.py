"""Trades that fail by design: what the service does with each, in a few words, and what must come of it.

A trade's `symbol` says how it fails. The judge takes from that which trades become dead letters, which are handled late
and which only follow, and never asks the service.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.chaos.rows import Row
from tests.support import frames

PLAIN: Final = "X"
#: raises once in each process; tried again in place
FLAKY: Final = "flaky"
#: raises until it is a few seconds old; tried again by way of retry topics
LATE: Final = "late"
#: raises always: a dead letter, and the account's later trades follow it
REFUSED: Final = "refused"
#: raises always: a dead letter that no later record follows
LOOSE: Final = "loose"
#: a dead letter after all delays
NEVER: Final = "never"
#: its bytes are no trade
GARBAGE: Final = "garbage"
#: its answer is larger than the brokers take
LARGE: Final = "large"
#: raise until the operator has fixed the cause: the partition waits for a retry, or the service has stopped
PARKS: Final = "parks"
STOPS: Final = "stops"

_OFTEN: Final = {FLAKY: 6, LATE: 5, LOOSE: 4, GARBAGE: 4, LARGE: 2, NEVER: 2, REFUSED: 1, PARKS: 1, STOPS: 0.3}
#: seconds, of the two retry topics; and the age at which a late trade works
DELAYS: Final = (1, 4)
AGE: Final = 2.5
_BEFORE_GARBAGE: Final = b"no trade: "
#: of the dead letters that follow no other: exception, and the least number of attempts
_DEAD_LETTERS: Final = {
    REFUSED: ("Refused", 1),
    LOOSE: ("Loose", 1),
    NEVER: ("TooEarly", 3),
    GARBAGE: ("UndecodableRecord", 1),
    LARGE: ("OutputRefused", 0),
}


class Kinds:
    """Which trades fail, and how: drawn apart from everything else, so that a schedule stays the same."""

    def __init__(self, seed: int, one_in: int) -> None:
        self._draw, self._one_in = random.Random(f"failing {seed}"), one_in

    def next(self) -> str:
        if not self._one_in or self._draw.randrange(self._one_in):
            return PLAIN
        return self._draw.choices([*_OFTEN], [*_OFTEN.values()])[0]


def written(kind: str, value: bytes) -> bytes:
    """As it stands on the input."""
    return _BEFORE_GARBAGE + value if kind == GARBAGE else value


def trade_of(value: bytes) -> bytes:
    """What `written` was given."""
    return value.removeprefix(_BEFORE_GARBAGE)


class Fate(NamedTuple):
    """What becomes of one trade of an account that may wait."""

    #: of an answer
    handled: bool = False
    #: the answer comes in no order
    late: bool = False
    #: of a dead letter: raised or followed
    why: str = ""


class Accounts:
    """Goes along one partition's input, and knows which accounts wait."""

    def __init__(self) -> None:
        #: account -> first and last offset, number of letters
        self.waiting: dict[str, tuple[int, int, int]] = {}

    def fate(self, account: str, kind: str, offset: int) -> Fate:
        row = self.waiting.get(account)
        if row is not None:
            self.waiting[account] = row[0], offset, row[2] + 1
            return Fate(why="followed")
        if kind == REFUSED:
            self.waiting[account] = offset, offset, 1
        if kind in _DEAD_LETTERS:
            return Fate(why="raised")
        return Fate(handled=True, late=kind == LATE)


def stored(row: tuple[int, int, int]) -> bytes:
    """An account that waits, as its table stores it (docs/reference/format.md)."""
    first, last, dead_letters = row
    return frames.packed([first, last, -1, dead_letters, _DEAD_LETTERS[REFUSED][0]])


@dataclass
class DeadLetters:
    """Dead letters that there must be."""

    #: input partition and offset -> trade's id, kind, why
    due: dict[tuple[int, int], tuple[str, str, str]] = field(default_factory=dict)


def check_dead_letters(due: DeadLetters, given: Sequence[Row], found: Sequence[Row]) -> dict[str, list[str]]:
    """Each once, on its partition, as it was received, an account's in order; findings by anomaly."""
    inputs = {(row.partition, row.offset): row for row in given}
    kept = _first_kept(given)
    seen: Counter[tuple[int, int]] = Counter()
    findings: dict[str, list[str]] = {}
    newest: dict[tuple[int, bytes], int] = {}

    def wrong(anomaly: str, text: str) -> None:
        findings.setdefault(anomaly, []).append(text)

    for row in found:
        place = int(row.headers["statehold-dead-partition"]), int(row.headers["statehold-dead-offset"])
        seen[place] += 1
        reported, original = due.due.get(place), inputs.get(place)
        deleted = original is None and place[1] < kept.get(place[0], 0)  # by the fault `ret`
        if reported is None or (original is None and not deleted):
            wrong("letter of a handled trade", f"{place}")
            continue
        name, kind, why = reported
        if original is not None and (row.partition, row.key, row.value) != (place[0], original.key, original.value):
            wrong("letter changed", f"{name} at {place} lies in {row.partition} as {row.value[:60]!r}")
        if (said := _said(row.headers, kind, why)) != "":
            wrong("letter wrong", f"{name} ({kind}) at {place}: {said}")
        if row.headers["statehold-dead-ordered"] == b"1":
            key = row.partition, row.key
            if place[1] < newest.get(key, -1):
                wrong("letter out of order", f"{name} at {place} behind {newest[key]}")
            newest[key] = place[1]
    for place, (name, kind, _) in due.due.items():
        if seen[place] != 1:
            wrong("letter lost" if not seen[place] else "letter duplicated", f"{name} ({kind}) at {place}")
    return findings


def _first_kept(given: Sequence[Row]) -> dict[int, int]:
    """The first offset of the input that is left, by partition."""
    first: dict[int, int] = {}
    for row in given:
        first[row.partition] = min(row.offset, first.get(row.partition, row.offset))
    return first


def _said(headers: Mapping[str, bytes], kind: str, why: str) -> str:
    """What is wrong with the headers of a letter."""
    error, attempts = _DEAD_LETTERS[kind] if why == "raised" else (_DEAD_LETTERS[REFUSED][0], 0)
    reported = headers["statehold-dead-why"].decode(), headers["statehold-dead-error"].decode()
    tried = int(headers["statehold-dead-attempts"])
    if reported != (why, error) or tried < attempts:  # more, where a kill or an abort came between
        return f"{reported} after {tried} attempts, not {(why, error)} after {attempts}"
    return ""


def check_tries(due: Mapping[tuple[int, int], str], found: Sequence[Sequence[Row]]) -> list[str]:
    """What stands on the retry topics, shortest delay first: `due` are the trades that must have been there."""
    reported: list[str] = []
    for level, rows in enumerate(found):
        seen: Counter[tuple[int, int]] = Counter()
        for row in rows:
            seen[row.partition, int(row.headers["statehold-retry-offset"])] += 1
        reported += [f"{place} is on retry topic {level} and should not" for place in seen if place not in due]
        for place, kind in due.items():
            least = 1 if kind == NEVER else 0  # a late one may be old enough when it is read
            if not least <= seen[place] <= 1:
                reported.append(f"{place} ({kind}) is {seen[place]} times on retry topic {level}")
    return reported


def policies() -> dict[type[BaseException], Any]:
    """The service's."""
    from statehold import dead_letter, park, retry, retry_later, stop
    from statehold.errors import OutputRefused, UndecodableRecord

    return {
        Refused: dead_letter(),
        Loose: dead_letter(ordered=False),
        UndecodableRecord: dead_letter(ordered=False),
        OutputRefused: dead_letter(ordered=False),
        ConnectionError: retry(3, seconds=0.01),
        TooEarly: retry_later(*DELAYS, any_order=True),
        Parks: park(),
        Stops: stop(),
    }


class Refused(ValueError):
    """Of REFUSED."""


class Loose(LookupError):
    """Of LOOSE."""


class TooEarly(TimeoutError):
    """Of LATE and NEVER."""


class Parks(RuntimeError):
    """Of PARKS."""


class Stops(RuntimeError):
    """Of STOPS."""


def fail(kind: str, age: float, met: set[str], fixed: Path, name: str) -> None:
    """Raises what the trade is there to raise.

    `met` are those that this process has met before, `fixed` has a file for each whose cause is fixed.
    """
    if kind == REFUSED:
        raise Refused(name)
    if kind == LOOSE:
        raise Loose(name)
    if kind == NEVER or (kind == LATE and age < AGE):
        raise TooEarly(f"{name} is {age:.3f} s old")
    if kind == FLAKY and name not in met:
        met.add(name)
        raise ConnectionError(name)
    if kind in (PARKS, STOPS) and not (fixed / name).exists():
        raise (Parks if kind == PARKS else Stops)(name)
