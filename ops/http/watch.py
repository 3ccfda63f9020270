"""`/watch/<table>`: the committed changes of a table as server-sent events, each with the position behind it as its id.

An instance reads the changelog of all partitions, also of those that others own. Each stream has a thread and a Kafka
client, so their number is bounded; a reader that takes its events too slowly is cut off, and continues by its last id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from itertools import takewhile
from typing import Any, Final
from urllib.parse import unquote

from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.client.watching import Look, Watches, WatchOrder
from statehold.errors import (
    ChangesLost,
    KafkaTrouble,
    NoCommitRecord,
    RestoreTimeout,
    StateholdError,
    UsageError,
    class_and_text,
)
from statehold.kafka.admin.admin import Admin
from statehold.ops.http.answers import EventStream, HttpAnswer, HttpRequest, Rejected
from statehold.ops.http.query_fields import chosen_of, named_table, prefix_of
from statehold.service import Service
from statehold.state.partition_table import PartitionTable
from statehold.state.stored_keys import key_decoder
from statehold.telemetry import metrics
from statehold.watch.changes import WatchedTable
from statehold.watch.events import as_event, change_event

#: most streams of one server: fewer than its connections, so that probes and queries pass
MOST: Final = 8
#: bytes of events that are sent at once, and seconds that a reader may take for them
_PIECE: Final = 64_000
_SLOW: Final = 5.0
#: seconds without an event after which the position is sent, which also finds readers that are gone
_QUIET: Final = 5.0
_SOON: Final = {"Retry-After": "1"}
_STOPS: Final = "this instance stops"


class WatchRoutes:
    """Any thread may use it; the caller has checked the rights."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._room = threading.BoundedSemaphore(MOST)
        self._lock = threading.Lock()
        self._watches: Watches | None = None
        self._closed = False

    def close(self) -> None:
        """End all streams soon, and begin no other."""
        with self._lock:
            self._closed, watches = True, self._watches
        if watches is not None:
            watches.close()

    @property
    def _ending(self) -> bool:
        return self._closed or self._service.stopping

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """Begin a stream. It waits for the first look at the changelog, which finds errors of the position.

        :raises Rejected: its status names the reason.
        """
        order, partitions = self._order(request)
        if request.method == "HEAD":
            return _stream_of(EventStream(b"", _nothing(), lambda: None))
        if self._ending:
            raise Rejected(503, f"{_STOPS}; ask another instance", _SOON)
        if not self._room.acquire(blocking=False):
            raise Rejected(503, f"{MOST} watches are open here; ask again, or ask another instance", _SOON)
        try:
            pieces = self._events(self._opened().looks(order, partitions))
            first = next(pieces)
        except BaseException as error:
            self._room.release()
            raise _rejected(error) from error
        self._service.metrics.service.inc(metrics.WATCHES_OPENED)
        return _stream_of(EventStream(first, pieces, self._left))

    def _order(self, request: HttpRequest) -> tuple[WatchOrder, int]:
        overview = self._service.overview
        if overview is None:
            raise Rejected(503, "the service has not started", _SOON)
        table = named_table(unquote(request.path.split("/", 2)[2]), self._declared())
        # A browser that comes back sends its last id to the address that it began with.
        after = request.headers.get("last-event-id") or request.query.get("after", "")
        chosen = chosen_of(request)
        keys, prefix = key_decoder(table.key_type), prefix_of(table, request)
        watched = WatchedTable(table.name, keys, table.decoded, prefix, declared=True)
        order = WatchOrder(watched, after, () if chosen is None else (chosen,))
        try:
            order.choose(overview.partitions)
        except UsageError as error:
            raise Rejected(400, str(error)) from error
        return order, overview.partitions

    def _declared(self) -> dict[str, PartitionTable[Any, Any]]:
        return tables_and_outputs(class_of(self._service.handler))[0]

    def _opened(self) -> Watches:
        with self._lock:
            if self._watches is None:
                settings, names = self._service.settings, self._service.names
                admin = Admin(settings, names.group)
                self._watches = Watches(settings, names, lambda: admin)
            return self._watches

    def _left(self) -> None:
        self._service.metrics.service.inc(metrics.WATCHES_ENDED)
        self._room.release()

    def _events(self, looks: Generator[Look, None, None]) -> Generator[bytes, None, None]:
        """Yield pieces of the stream; the time until the next one is asked for is what its reader took."""
        meters, position, sent = self._service.metrics.service, "", float("-inf")
        piece: list[bytes] = []
        size = 0
        try:
            for position, change in takewhile(lambda _: not self._ending, looks):
                if change is not None:
                    piece.append(change_event(change))
                    size += len(piece[-1])
                    if size < _PIECE:
                        continue
                elif position and not piece and time.monotonic() - sent >= _QUIET:
                    piece.append(as_event("position", position, {}))
                if not piece:
                    continue
                began = time.monotonic()
                meters.inc(metrics.WATCH_EVENTS, len(piece))
                yield b"".join(piece)
                piece.clear()
                size, sent = 0, time.monotonic()
                if sent - began > _SLOW:
                    meters.inc(metrics.WATCHES_SLOW)
                    yield as_event("end", position, {"error": "the reader is too slow; continue by the last id"})
                    return
            if position:
                piece.append(as_event("end", position, {"error": f"{_STOPS}; continue by the last id elsewhere"}))
                yield b"".join(piece)
        except StateholdError as error:
            if not position:
                raise
            yield b"".join([*piece, as_event("end", position, {"error": class_and_text(error)})])
        finally:
            looks.close()


def _stream_of(stream: EventStream) -> HttpAnswer:
    return HttpAnswer(200, b"", "text/event-stream", {"Connection": "close"}, stream)


def _nothing() -> Generator[bytes, None, None]:
    yield from ()


def _rejected(error: BaseException) -> BaseException:
    """Return what a reader gets whose stream cannot begin."""
    match error:
        case StopIteration():
            return Rejected(503, f"{_STOPS}; ask another instance", _SOON)
        case ChangesLost():
            return Rejected(410, str(error))
        case UsageError():
            return Rejected(400, str(error))
        case KafkaTrouble() | RestoreTimeout() | NoCommitRecord():
            return Rejected(503, str(error), _SOON)
    return error
