"""Queries of committed state: by key, by several keys, by a prefix or a range of keys.

It searches the partitions of this instance. For any other key it computes the partition as Kafka's producers do,
and finds its owner in the group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlencode

from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.client.rows import MOST_ROWS, first_rows
from statehold.disk.port import StoreClosed
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, as_json
from statehold.ops.http.key_lookup import BEHIND, Elsewhere, Finder, NotFound, NotLive
from statehold.ops.http.query_fields import after_of, bounds_of, key_of, keys_of, limit_of, name_of, named_table
from statehold.service import Service
from statehold.snapshot.format.records import CommitRecord
from statehold.state.partition_table import PartitionTable
from statehold.watch.position import WatchedTo
from statehold.worker.replicas.listing import KeyBounds, Listing, rows_of, rows_within
from statehold.worker.replicas.queries import Busy, Committed

T = TypeVar("T")

_SOON: Final = {"Retry-After": "1"}
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
            table = named_table(unquote(parts[0]), self._declared())
            if len(parts) == 1:
                return self._many(table, request)
            return self._by_key(table, parts[1], request)
        except (Busy, StoreClosed):
            raise Rejected(503, "commits come too fast to read between them; ask again", _SOON) from None

    def _tables(self, states: States) -> HttpAnswer:
        tables = {
            name: {"key": name_of(t.key_type), "value": name_of(t.value_type)} for name, t in self._declared().items()
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
        key = key_of(table, text)
        partition, after = after_of(request)
        find = partial(self._finder.find, table.name, key, partition, self._oldest(request), after)
        with _errors_of_partitions():
            try:
                found = self._once_committed(find)
            except NotFound as error:
                raise Rejected(404, str(error), partition=error.partition, **_aged(error.age)) from error
            except Elsewhere as error:
                return _sent_on(error, request)
        shown = found._asdict()
        age = shown.pop("age")
        return as_json({"key": key, **shown, **_aged(age)})

    def _once_committed(self, find: Callable[[], T]) -> T:
        """Read, once the record in `after` is committed. Wait for that for a second at most, if there is room.

        :raises LookupError: as `find`; NotLive also if the record is not committed within a second.
        """
        try:
            return find()
        except NotLive as error:
            if error.phase != BEHIND or not self._room.acquire(blocking=False):
                raise
        try:
            return _awaited(find)
        finally:
            self._room.release()

    # Many keys

    def _many(self, table: PartitionTable[Any, Any], request: HttpRequest) -> HttpAnswer:
        """Answer with the rows of keys, of a prefix or of a range; those of a partition are of one commit."""
        partition, after = after_of(request)
        wanted = keys_of(table, request)
        read = partial(self._listed, table, wanted, bounds_of(table, request), request)
        with _errors_of_partitions():
            try:
                found = self._once_committed(partial(read, partition, after))
            except Elsewhere as error:
                return _sent_on(error, request)
        limit = limit_of(request) if wanted is None else MOST_ROWS
        parts = [
            ([(key, data, number) for key, data in listing.rows], listing.truncated)
            for number, (listing, _) in found.items()
        ]
        rows, truncated = first_rows(parts, itemgetter(0), limit)
        return as_json(
            {
                "rows": [
                    {"key": key, "value": table.decoded(key, data), "partition": number, **place}
                    for key, data, number in rows
                    for place in _places(key, wanted)
                ],
                "truncated": truncated,
                "partitions": {
                    number: {
                        **self._at(listing.commit_record, age),
                        "watch": WatchedTo.of(listing.since).text(number),
                    }
                    for number, (listing, age) in found.items()
                },
                "elsewhere": self._elsewhere(found),
            }
        )

    def _listed(
        self,
        table: PartitionTable[Any, Any],
        keys: list[Any] | None,
        bounds: KeyBounds,
        request: HttpRequest,
        partition: int | None,
        after: int,
    ) -> dict[int, tuple[Listing, float | None]]:
        """Return the rows of each partition here, or of the chosen one, and the age of a standby replica.

        :raises LookupError: NotLive or Elsewhere, if the partition of the record `after` is not here, or is behind it;
            NotLive, if the chosen partition has failed here.
        """
        overview, limit, found = self._service.overview, limit_of(request), {}
        states = overview.committed(self._oldest(request)) if overview is not None else {}
        if after >= 0 and partition is not None:
            self._finder.require(partition, after, states.get(partition))
        elif partition is not None and partition not in states:
            self._finder.require_running(partition)
        for number, committed in states.items():
            if partition in (None, number):
                age = committed.age
                if keys is None:
                    found[number] = rows_within(committed, table.name, bounds, limit), age
                else:
                    found[number] = rows_of(committed, table.name, list(dict.fromkeys(keys))), age
        return found

    # Where

    def _declared(self) -> dict[str, PartitionTable[Any, Any]]:
        return tables_and_outputs(class_of(self._service.handler))[0]

    def _elsewhere(self, states: Mapping[int, Any]) -> list[int]:
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


@contextmanager
def _errors_of_partitions() -> Iterator[None]:
    """:raises Rejected: the partition is here and cannot answer now."""
    try:
        yield
    except NotLive as error:
        stopped = {"stopped": True} if error.stopped else {}
        raise Rejected(503, str(error), _SOON, partition=error.partition, phase=error.phase, **stopped) from error


def _places(key: Any, wanted: list[Any] | None) -> list[dict[str, int]]:
    """Return what the rows of a key say about its places among the keys that were asked for."""
    return [{}] if wanted is None else [{"index": i} for i, each in enumerate(wanted) if each == key]


def _aged(age: float | None) -> dict[str, Any]:
    return {} if age is None else {"age": round(age, 3)}


def _awaited(find: Callable[[], T]) -> T:
    """:raises LookupError: as `find`; NotLive also if the record is not committed within a second."""
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
        fields = {"partition": where.partition} | {k: v for k, v in request.query.items() if k != "redirect"}
        place = f"{where.url}{request.path}?{urlencode(fields, safe=':')}"
        return HttpAnswer(307, b"", headers={"Location": place})
    raise Rejected(421, str(where), partition=where.partition, held_by=where.holder, instances=where.others) from where
