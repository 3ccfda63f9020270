"""Compares a service's outputs and state with the expected ones. Pure; imports nothing from statehold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

Event = dict[str, Any]

Events = Mapping[str, Sequence[Event]]
"""Events of an output topic by their key, each key's in order."""

Tables = Mapping[str, Mapping[Any, Any]]
"""Plain values by table and key, with a struct as a dict in the order of its fields."""

State = Mapping[str, Mapping[Any, bytes]]
"""Stored values by table and key."""


@dataclass(frozen=True)
class Held:
    """A partition's state and its recorded digest (32 hex digits)."""

    state: State
    digest: str


@dataclass(frozen=True)
class Findings:
    """Result of comparing an output topic or a table; `first` describes the first difference."""

    name: str
    expected: int
    seen: int
    lost: int = 0
    duplicated: int = 0
    foreign: int = 0
    reordered: int = 0
    different: int = 0
    first: str | None = None

    @property
    def ok(self) -> bool:
        """True if nothing differs."""
        return self.first is None

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.seen:,} of {self.expected:,}, {self.lost} lost, "
            f"{self.duplicated} duplicated, {self.foreign} foreign, "
            f"{self.reordered} keys reordered, {self.different} different"
        )


def compare_events(name: str, expected: Events, seen: Events, identity: str = "id") -> Findings:
    """Compare two streams key by key. Events are the same event when key and `identity` field are equal."""
    lost = duplicated = foreign = reordered = different = 0
    first: str | None = None
    for key in sorted(expected.keys() | seen.keys()):
        wanted, found = expected.get(key, ()), seen.get(key, ())
        if list(wanted) == list(found):
            continue
        first = first or _first_difference(name, key, wanted, found)
        order_wanted = [event[identity] for event in wanted]
        order_found = [event[identity] for event in found]
        counts, known = Counter(order_found), set(order_wanted)
        lost += len(known - counts.keys())
        foreign += sum(count for one, count in counts.items() if one not in known)
        duplicated += sum(count - 1 for one, count in counts.items() if one in known)
        once = list(dict.fromkeys(one for one in order_found if one in known))
        reordered += once != [one for one in order_wanted if one in counts]
        content = {event[identity]: event for event in wanted}
        different += sum(content.get(event[identity], event) != event for event in found)  # known ones only
    return Findings(name, _size(expected), _size(seen), lost, duplicated, foreign, reordered, different, first)


def compare_state(expected: Tables, state: State) -> list[Findings]:
    """Compare tables key by key; stored values are decoded into plain dicts and numbers first."""
    findings = []
    for table in sorted(expected.keys() | state.keys()):
        wanted = {str(key): [{"id": key, "value": value}] for key, value in expected.get(table, {}).items()}
        found = {
            str(key): [{"id": key, "value": msgspec.msgpack.decode(stored)}]
            for key, stored in state.get(table, {}).items()
        }
        findings.append(compare_events(table, wanted, found))
    return findings


def digest(tables: Tables) -> str:
    """The digest a service must have recorded for these tables, as 32 hex digits.

    From the description of the format, not from its code: the sum over all keys, modulo 2^128, of the 128-bit
    hash of the stored value, seeded with the 64-bit hash of the key, seeded with that of the table's name.
    """
    total = 0
    for table, rows in tables.items():
        table_seed = xxhash.xxh3_64_intdigest(table.encode())
        for key, value in rows.items():
            name = key.encode() if isinstance(key, str) else msgspec.msgpack.encode(key)
            seed = xxhash.xxh3_64_intdigest(name, table_seed)
            total += xxhash.xxh3_128_intdigest(msgspec.msgpack.encode(value), seed)
    return f"{total % 2**128:032x}"


def _size(events: Events) -> int:
    return sum(map(len, events.values()))


def _first_difference(name: str, key: str, wanted: Sequence[Event], found: Sequence[Event]) -> str:
    for index, (want, have) in enumerate(zip(wanted, found, strict=False)):
        if want != have:
            return f"{name}, key {key}, event {index}: expected {want}, found {have}"
    if len(wanted) > len(found):
        return f"{name}, key {key}: event {len(found)} is missing: {wanted[len(found)]}"
    return f"{name}, key {key}: one event too many: {found[len(wanted)]}"
