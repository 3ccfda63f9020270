"""Compares what a handler makes of the same input in other batches, and with another hash seed (rule M4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from statehold.bound.output import origin_of
from statehold.errors import UsageError
from statehold.state.partition_table import PartitionTable
from statehold.testing.hash_seed import run_elsewhere
from statehold.testing.memory.database import Tables
from statehold.testing.memory.log import LogMessage, MemoryLog
from statehold.testing.rerun import Past, Results, Sent
from statehold.testing.stepped import EffectCall

#: hash seeds of other processes: the first one is tried, the others confirm a difference
_SEEDS: Final = (1, 2, 3, 4, 5)


class BatchesMatter(UsageError):
    """Handling the same input in other batches, or with another hash seed, gave another result."""


class Replay:
    """Handles one partition's past again and compares the result with the recorded one."""

    def __init__(
        self, past: Past, expected: bytes, tables: Mapping[str, PartitionTable[Any, Any]], *, origin: bool
    ) -> None:
        """`expected`: the digest of the state that `tables` hold. `origin`: the outputs have one (`output.origin`)."""
        self._past, self._digest, self._tables, self._origin = past, expected, tables, origin
        self._outputs: dict[str, list[Sent]] = {}
        self._effects: list[object] = []
        self._rows: Tables | None = None

    def expect(self, logs: Mapping[str, Sequence[MemoryLog]], effects: Sequence[EffectCall]) -> None:
        """Set what the comparison expects: the outputs of this partition by topic, and its effects."""
        self._outputs = {
            topic: [*filter(None, (self._own(each) for log in found for each in log.past()))]
            for topic, found in logs.items()
        }
        self._effects = list(dict.fromkeys(call.key for call in effects if call.key[1] == self._past.partition))

    def expect_rows(self, tables: Tables) -> None:
        """Set the expected rows of the sinks. Only for a driver with one partition: all write to the same tables."""
        self._rows = tables

    def run(self, sizes: Sequence[int]) -> None:
        """:raises BatchesMatter: something differs. :raises RecordError: the handler fails on a record."""
        if finding := self._difference(self._past.run(sizes)):
            raise BatchesMatter(
                f"with batches of {list(sizes)} records: {finding}. How records are cut into batches must not matter, "
                f"nor anything but the records and the tables: a replay would give another state"
            )

    def run_with_another_hash_seed(self) -> None:
        """Do the same in a process with another hash seed, if it can import the handler.

        A result that all other processes share, and this one does not, depends on this process, such as a handler that
        a test has patched. It is not reported.

        :raises BatchesMatter: results differ from hash seed to hash seed.
        """
        first = run_elsewhere(self._past, _SEEDS[0])
        finding = self._difference(first) if first is not None else ""
        if not finding:
            return
        for seed in _SEEDS[1:]:
            other = run_elsewhere(self._past, seed)
            if other is None:
                return
            if other != first:
                raise BatchesMatter(
                    f"with another hash seed (PYTHONHASHSEED={_SEEDS[0]}): {finding}. The order of a set, and what "
                    f"hash() returns for text and bytes, differ from process to process, so a replay would give "
                    f"another result. Next: use sorted(...), a dict or a tuple"
                )

    def _difference(self, now: Results) -> str:
        """Return the first difference to what was recorded; empty if all is equal."""
        for topic, sent in now.outputs.items():
            for i, (is_now, was) in enumerate(zip_longest(sent, self._outputs[topic])):
                if is_now != was:
                    return f"output {i} of {topic!r} is {is_now}, it was {was}"
        if now.effects != self._effects:
            return f"the effects are {now.effects}, they were {self._effects}"
        if now.digest != self._digest:
            return f"the tables differ: {self._key_that_differs(now)}"
        if self._rows is not None and now.rows != self._rows:
            return f"the sinks hold {now.rows}, they held {self._rows}"
        return ""

    def _key_that_differs(self, now: Results) -> str:
        """Return the first key whose value differs, with both values."""
        for name, stored in now.stored.items():
            table = self._tables[name]
            for key in dict.fromkeys((*table.stored, *stored)):
                if stored.get(key) != table.stored.get(key):
                    is_now, was = (_shown(table, each.get(key)) for each in (stored, table.stored))
                    return f"table {name!r}, key {key!r}: the value is {is_now}, it was {was}"
        return "no key does, so the digests were computed differently"

    def _own(self, message: LogMessage) -> Sent | None:
        """Return the record as this partition has sent it; None: another partition has sent it."""
        headers = tuple(message.headers() or ())
        # Without `output.origin` an origin is a header that the handler has sent on.
        origin = origin_of(headers) if self._origin else None
        if origin is not None:
            if origin.partition != self._past.partition:
                return None
            headers = origin.headers
        return message.value(), message.key(), headers, message.partition()


def _shown(table: PartitionTable[Any, Any], data: bytes | None) -> str:
    return "absent" if data is None else f"{table.decode(data)!r:.200}"
