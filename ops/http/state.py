"""Queries of committed state, by key or by prefix.

It searches the partitions of this instance. For any other key it computes the partition as Kafka's producers do,
and finds its owner in the group.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec

from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.client.receipt import Receipt
from statehold.disk.port import StoreClosed
from statehold.errors import UsageError
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, as_json
from statehold.ops.http.key_lookup import BEHIND, Elsewhere, Finder, Found, NotFound, NotLive
from statehold.service import Service
from statehold.snapshot.format.records import CommitRecord
from statehold.state.partition_table import PartitionTable
from statehold.worker.replicas.queries import Busy, Committed, Tables

MOST: Final = 1000
_SOON: Final = {"Retry-After": "1"}
_USUAL: Final = 100
#: number of keys read before the workers get a turn
_SLICE: Final = 10_000
_BREATH: Final = 0.001
#: seconds for which an answer waits until the partition has committed the record in `after`, and between two looks
_LONGEST: Final = 1.0
_STEP: Final = 0.005
#: most answers that wait at a time: fewer than the server's connections, so that probes pass
_WAITING: Final = 8

States = dict[int, Committed]


class Queries:
    """Any thread may use it. A lookup elsewhere waits up to 3 s for the group's answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._finder = Finder(service)
        self._room = threading.BoundedSemaphore(_WAITING)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """:raises Rejected: its status names the reason."""
        parts = request.path.split("/")[2:]
        if len(parts) > 2:
            raise Rejected(400, "a key's '/' is written %2F: /state/<table>/<key>")
        overview = self._service.overview
        states = overview.committed(self._oldest(request)) if overview is not None else {}
        try:
            if not parts or not parts[0]:
                return self._tables(states)
            table = self._declaration(unquote(parts[0]))
            if len(parts) == 1:
                return self._by_prefix(table, states, request)
            return self._by_key(table, parts[1], request)
        except (Busy, StoreClosed):
            raise Rejected(503, "commits come too fast to read between them; ask again", _SOON) from None

    def _tables(self, states: States) -> HttpAnswer:
        tables = {
            name: {"key": _name(t.key_type), "value": _name(t.value_type)} for name, t in self._declared().items()
        }
        here = {}
        for number, committed in states.items():
            age = committed.age
            keys, commit_record = committed.read(
                lambda found: {name: len(table.stored) for name, table in found.items()}
            )
            here[number] = {"keys": keys, **self._at(commit_record, age)}
        return as_json({"tables": tables, "partitions": here, "elsewhere": self._elsewhere(states)})

    # One key

    def _by_key(self, table: PartitionTable[Any, Any], text: str, request: HttpRequest) -> HttpAnswer:
        key = _key(table, text)
        try:
            found = self._found(table, key, request)
        except NotFound as error:
            raise Rejected(404, str(error), partition=error.partition, **_aged(error.age)) from error
        except NotLive as error:
            raise Rejected(503, str(error), _SOON, partition=error.partition, phase=error.phase) from error
        except Elsewhere as error:
            return _sent_on(error, request)
        shown = found._asdict()
        age = shown.pop("age")
        return as_json({"key": key, **shown, **_aged(age)})

    def _found(self, table: PartitionTable[Any, Any], key: Any, request: HttpRequest) -> Found:
        """Find a key, once the record in `after` is committed. Wait for that for a second at most, if there is room.

        :raises LookupError: as `Finder.find`.
        """
        partition, after = _after(request)
        find = partial(self._finder.find, table.name, key, partition, self._oldest(request), after)
        try:
            return find()
        except NotLive as error:
            if error.phase != BEHIND or not self._room.acquire(blocking=False):
                raise
        try:
            return _awaited(find)
        finally:
            self._room.release()

    # Keys by prefix

    def _by_prefix(self, table: PartitionTable[Any, Any], states: States, request: HttpRequest) -> HttpAnswer:
        limit = _limit(request)
        prefix = _prefix(table, request.query.get("prefix", ""))
        chosen = _chosen(request)
        found: list[tuple[Any, int]] = []
        here = {number: each for number, each in states.items() if chosen in (None, number)}
        for number, committed in here.items():
            keys = heapq.nsmallest(limit + 1, _matching(committed.tables[table.name], prefix))
            found += [(key, number) for key in keys]
        chosen_keys = heapq.nsmallest(limit, found)
        rows, commit_records = [], {}
        for number, committed in here.items():
            wanted = [key for key, of in chosen_keys if of == number]
            age = committed.age
            values, commit_record = committed.read(partial(_several, table.name, wanted))
            decoded, commit_records[number] = committed.tables[table.name].decoded, self._at(commit_record, age)
            pairs = [(key, data) for key, data in zip(wanted, values, strict=True) if data is not None]
            rows += [{"key": key, "value": decoded(key, data), "partition": number} for key, data in pairs]
        rows.sort(key=lambda row: row["key"])
        return as_json(
            {
                "rows": rows,
                "truncated": len(found) > limit,
                "partitions": commit_records,
                "elsewhere": self._elsewhere(here),
            }
        )

    # Where

    def _declared(self) -> dict[str, PartitionTable[Any, Any]]:
        return tables_and_outputs(class_of(self._service.handler))[0]

    def _declaration(self, name: str) -> PartitionTable[Any, Any]:
        declared = self._declared()
        if name not in declared:
            raise Rejected(404, f"there is no table {name!r}; there are {', '.join(declared) or 'none'}")
        return declared[name]

    def _elsewhere(self, states: States) -> list[int]:
        overview = self._service.overview
        return [p for p in range(overview.partitions if overview is not None else 0) if p not in states]

    def _at(self, commit_record: CommitRecord, age: float | None) -> dict[str, Any]:
        """Return the transaction, the next input offset, and the age of a standby replica."""
        return {
            "transaction": commit_record.n,
            "position": commit_record.position(self._service.names.input),
            **_aged(age),
        }

    def _oldest(self, request: HttpRequest) -> float | None:
        """Return the highest allowed age of a standby replica, by settings and request; None: no replica may answer."""
        allowed, text = self._service.settings.ops.replica, request.query.get("max_age", "")
        if text and (not text.replace(".", "", 1).isdecimal() or len(text) > 9):
            raise Rejected(400, f"max_age={text}: write seconds, 0 for the owner only")
        if allowed == "off":
            return None
        return min(allowed, float(text)) if text else allowed


def _aged(age: float | None) -> dict[str, Any]:
    return {} if age is None else {"age": round(age, 3)}


def _awaited(find: Callable[[], Found]) -> Found:
    """:raises LookupError: as `Finder.find`; NotLive also if the record is not committed within a second."""
    until = time.monotonic() + _LONGEST
    while True:
        time.sleep(_STEP)
        try:
            return find()
        except NotLive as error:
            if error.phase != BEHIND or time.monotonic() >= until:
                raise


def _sent_on(where: Elsewhere, request: HttpRequest) -> HttpAnswer:
    if request.query.get("redirect") in ("1", "true") and where.url:
        after = f"&after={request.query['after']}" if request.query.get("after") else ""
        place = f"{where.url}{request.path}?partition={where.partition}{after}"
        return HttpAnswer(307, b"", headers={"Location": place})
    raise Rejected(421, str(where), partition=where.partition, held_by=where.holder, instances=where.others) from where


def _several(table: str, keys: list[Any], tables: Tables) -> list[bytes | None]:
    return [tables[table].stored.get(key) for key in keys]


def _matching(table: PartitionTable[Any, Any], prefix: Any) -> Iterator[Any]:
    """Yield the keys as of the start."""
    for some in table.listed(_SLICE):
        yield from (key for key in some if (prefix is None or key.startswith(prefix)) and key in table.stored)
        time.sleep(_BREATH)


def _key(table: PartitionTable[Any, Any], text: str) -> Any:
    """Parse a key in a path: text, a number, percent-encoded bytes, or a JSON array for a tuple."""
    kind = table.key_type
    try:
        if kind is str:
            return unquote(text, errors="strict")
        if kind is bytes:
            return unquote_to_bytes(text)
        return msgspec.json.decode(unquote(text), type=kind)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Rejected(400, f"{unquote(text)!r} is no key of table {table.name!r}, {_name(kind)}: {error}") from error


def _prefix(table: PartitionTable[Any, Any], text: str) -> Any:
    if not text:
        return None
    if table.key_type is str:
        return text
    if table.key_type is bytes:
        return unquote_to_bytes(quote(text))
    raise Rejected(
        400, f"prefix= is for keys of str and bytes; those of table {table.name!r} are {_name(table.key_type)}"
    )


def _limit(request: HttpRequest) -> int:
    text = request.query.get("limit", str(_USUAL))
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= MOST:
        raise Rejected(400, f"limit={text}: write a number from 1 to {MOST}")
    return int(text)


def _after(request: HttpRequest) -> tuple[int | None, int]:
    """Return the chosen partition, and the offset of the record there that the answer has to include; -1: none."""
    chosen, text = _chosen(request), request.query.get("after", "")
    if not text:
        return chosen, -1
    try:
        after = Receipt.of(text)
    except UsageError as error:
        raise Rejected(400, f"after={error}") from error
    if chosen not in (None, after.partition):
        raise Rejected(400, f"after={text} names another partition than partition={chosen}")
    return after.partition, after.offset


def _chosen(request: HttpRequest) -> int | None:
    text = request.query.get("partition", "")
    if text and (not text.isdecimal() or len(text) > 9):
        raise Rejected(400, f"partition={text}: write a number")
    return int(text) if text else None


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
