"""`Client`: ask a service and wait for its answer, from a coroutine or from a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

import msgspec

from statehold.api.record import key_bytes
from statehold.api.values import serde
from statehold.api.values.keys import key_serde
from statehold.api.values.message_types import checked_types, require_type
from statehold.client.arguments import checked_age, checked_id, checked_in_flight, ends_at, no_receipt
from statehold.client.arrivals import within
from statehold.client.asking import OpenRequests, RequestInProgress
from statehold.client.owner_reads import OwnerReads
from statehold.client.receipt import Receipt
from statehold.client.rows import LocalState, ManyReads, RowBounds, RowPage, page_of, receipts, unless_stopped
from statehold.client.stopped_partitions import StoppedPartitions
from statehold.client.watching import BlockingTableWatch, Look, TableWatch, Watches, WatchOrder
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, UsageError
from statehold.messages.request import Reply, answer_in, no_answer
from statehold.watch.changes import WatchedTable

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_TIMEOUT: Final = 10.0
#: most requests of a client without an answer, unless it is given another number
IN_FLIGHT: Final = 10_000
#: seconds for which a read that has used up its time may still be in the standard library
_LATE: Final = 5.0
#: most serdes that are kept
_MOST_SERDES: Final = 256
#: threads on which coroutines wait for owners, and for the brokers before a first request
_READERS: Final = 32
_PREPARERS: Final = 8


class Answered(msgspec.Struct, Generic[V_co], frozen=True):
    """An answer, and the record that took effect: of an id that was asked before, its first request."""

    value: V_co
    receipt: Receipt


class Client:
    """Asks a service, which has declared `Replies`, and waits for its answers.

        client = Client("payments", load())
        booked = await client.ask(Payment("ann", 5), key="ann", reply=Booked, timeout=5, id="order-17")

    `service` and `input` are the names that the service has; `input` is by default the same name. `value` is the type
    of the input's values, or a serde; by default a value is written by its own class, in JSON or as it is. `key` is
    that of its keys, as for `on`; by default a key is text or bytes. The client joins no group. Its three threads and
    Kafka clients start with the first request. Any thread and event loop may use it; close it at the end, or use it as
    a context manager. `settings` defaults to `statehold.config.Settings()`. `in_flight`, at least 1, is the highest
    number of requests without an answer; one more raises `TooManyRequests`.

    `here` reads partitions that this process owns (`Service.client` sets it); their values are the table's own objects.

    The methods with `_blocking` do the same on the thread that calls. `timeout` is in seconds, up to a week.
    """

    def __init__(
        self,
        service: str,
        settings: Settings | None = None,
        *,
        input: str = "",
        value: Any = None,
        key: Any = None,
        in_flight: int = IN_FLIGHT,
        here: LocalState | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.names = Names(service, input or service, self.settings.service.namespace)
        self._serde = None if value is None else serde.for_messages(value, self.names.input)
        self._types = None if value is None else checked_types(value)
        self._key: Callable[[Any], Any] = (
            key_bytes if key is None else key_serde("Client(key=...)", key, self.names.input).encode
        )
        #: by type and topic
        self._serdes: dict[tuple[Any, str], serde.Serde[Any]] = {}
        self._asking = OpenRequests(self.settings, self.names, checked_in_flight(in_flight))
        self._reads = OwnerReads(self.settings, self.names, self._asking.admin, self._asking)
        self._stopped = StoppedPartitions(self.names, self._asking.waiting, self._reads.state_of)
        self._here, self._many = here, ManyReads(self._reads, self.names.input, self._key, here)
        self._watches = Watches(self.settings, self.names, self._asking.admin)
        # Its own threads, because an owner in this process may answer on those of the event loop.
        self._readers, self._preparers = _pools()

    # Ask

    @overload
    async def ask(
        self,
        value: Any,
        *,
        key: Any,
        reply: type[V] | serde.Serde[V],
        timeout: float = _TIMEOUT,
        id: str = "",
    ) -> V: ...

    @overload
    async def ask(self, value: Any, *, key: Any, reply: TypeForm[V], timeout: float = _TIMEOUT, id: str = "") -> V: ...

    async def ask(self, value: Any, *, key: Any, reply: Any, timeout: float = _TIMEOUT, id: str = "") -> Any:
        """Write a request and return the answer that its handler gives in the same transaction.

        `reply` is the type of the answer, or its serde. The same `id` with the same key and value takes effect once,
        however often it is asked, from any process; by default it is a new one. So after `NoAnswerInTime` ask again
        with the id of the error. An ask that waits looks at the status of the partition's owner, if its ops server can
        be reached, and ends with `PartitionStopped` if the partition has failed or is paused.

        :raises NotAnswered: RequestFailed, RequestConflict, PartitionStopped or NoAnswerInTime; the text names what
            became of it.
        :raises TopicMissing: the input or the topic of replies does not exist. :raises KafkaTrouble: nothing was sent.
        :raises TooManyRequests: nothing was sent, because `in_flight` requests wait.
        """
        return (await self.ask_with_receipt(value, key=key, reply=reply, timeout=timeout, id=id)).value

    async def ask_with_receipt(
        self, value: Any, *, key: Any, reply: Any, timeout: float = _TIMEOUT, id: str = ""
    ) -> Answered[Any]:
        """Do the same as `ask`, and return also where the record is that took effect, for `after` of a read."""
        until = ends_at(timeout)
        data, blob, name, serde_of_reply = self._request(value, key, reply, id)
        partition = await self._prepared(blob, until)
        address, request = await self._handed_over(
            self._asking.ask, (data, blob, partition, name), until, lambda asked: self._asking.forget(asked[0])
        )
        self._stopped.begin()
        try:
            found = await within(request.reply, max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise no_answer(timeout, request.where) from None
        finally:
            self._asking.forget(address)
        return self._answer(found, serde_of_reply, request)

    @overload
    def ask_blocking(
        self,
        value: Any,
        *,
        key: Any,
        reply: type[V] | serde.Serde[V],
        timeout: float = _TIMEOUT,
        id: str = "",
    ) -> V: ...

    @overload
    def ask_blocking(
        self, value: Any, *, key: Any, reply: TypeForm[V], timeout: float = _TIMEOUT, id: str = ""
    ) -> V: ...

    def ask_blocking(self, value: Any, *, key: Any, reply: Any, timeout: float = _TIMEOUT, id: str = "") -> Any:
        """Do the same as `ask`, on this thread."""
        return self.ask_with_receipt_blocking(value, key=key, reply=reply, timeout=timeout, id=id).value

    def ask_with_receipt_blocking(
        self, value: Any, *, key: Any, reply: Any, timeout: float = _TIMEOUT, id: str = ""
    ) -> Answered[Any]:
        """Do the same as `ask_with_receipt`, on this thread."""
        until = ends_at(timeout)
        data, blob, name, serde_of_reply = self._request(value, key, reply, id)
        partition = murmur2(blob, self._asking.partitions_now(until))
        self._asking.read(partition, until)
        address, request = self._asking.ask(data, blob, partition, name, until)
        self._stopped.begin()
        try:
            found = request.reply.result(max(0.0, until - time.monotonic()))
        except FutureTimeout:
            raise no_answer(timeout, request.where) from None
        finally:
            self._asking.forget(address)
        return self._answer(found, serde_of_reply, request)

    # Write

    async def send(self, value: Any, *, key: Any, timeout: float = _TIMEOUT) -> Receipt:
        """Write an ordinary record to the input, and return where it is once Kafka has it.

        :raises KafkaTrouble: Kafka has not acknowledged it; it may be written.
        """
        until, data, blob = ends_at(timeout), self._encoded(value), self._key(key)
        partition = await self._chosen(blob, until)
        receipt = await self._handed_over(self._asking.send, (data, blob, partition), until, lambda _: None)
        try:
            return await within(receipt, max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise self._unacknowledged(partition, timeout) from None

    def send_blocking(self, value: Any, *, key: Any, timeout: float = _TIMEOUT) -> Receipt:
        """Do the same as `send`, on this thread."""
        until, data, blob = ends_at(timeout), self._encoded(value), self._key(key)
        partition = murmur2(blob, self._asking.partitions_now(until))
        try:
            return self._asking.send(data, blob, partition, until).result(max(0.0, until - time.monotonic()))
        except FutureTimeout:
            raise self._unacknowledged(partition, timeout) from None

    # Read

    @overload
    async def get(
        self,
        table: str,
        key: Any,
        *,
        value: type[V],
        after: Receipt | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> V | None: ...

    @overload
    async def get(
        self,
        table: str,
        key: Any,
        *,
        value: TypeForm[V],
        after: Receipt | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> V | None: ...

    async def get(
        self,
        table: str,
        key: Any,
        *,
        value: Any,
        after: Receipt | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> Any:
        """Return the committed value of a key of a table; None if the table does not have it.

        `table` is its stored name, `value` the type of its values; its keys are the keys of the records. The owner of
        the key's partition answers, over its ops server (`ops.state`, `ops.token`, `ops.advertised`). With `after` the
        value includes the effects of that record, and of all before it in this partition. A takeover or a restore is
        waited out; with `max_age` a standby replica may answer meanwhile, which is at most this many seconds old, and
        not older than `ops.replica` there.

        :raises StateUnavailable: no answer within `timeout`; at once if the partition has failed, or is paused before
            the record in `after`. :raises UsageError: `after` is a record of another partition or input.
        """
        until, max_age = ends_at(timeout), checked_age(max_age)
        partition = self._home(table, key, after, await self._count(until))
        here = partial(self._read_here, table, key, partition, after, max_age)
        if (found := here()) is not None:
            return found[0]
        return await _on(self._readers, self._reads.get, table, key, value, partition, after, max_age, until, here)

    def get_blocking(
        self,
        table: str,
        key: Any,
        *,
        value: Any,
        after: Receipt | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> Any:
        """Do the same as `get`, on this thread."""
        until, max_age = ends_at(timeout), checked_age(max_age)
        partition = self._home(table, key, after, self._asking.partitions(until))
        here = partial(self._read_here, table, key, partition, after, max_age)
        if (found := here()) is not None:
            return found[0]
        return self._reads.get(table, key, value, partition, after, max_age, until, here)

    @overload
    async def get_many(
        self,
        table: str,
        keys: Iterable[K],
        *,
        value: type[V],
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> dict[K, V]: ...

    @overload
    async def get_many(
        self,
        table: str,
        keys: Iterable[K],
        *,
        value: TypeForm[V],
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> dict[K, V]: ...

    async def get_many(
        self,
        table: str,
        keys: Iterable[K],
        *,
        value: Any,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> dict[K, Any]:
        """Return the committed values of those of these keys that the table has.

        As `get`, for many keys at once. A receipt in `after` counts for the keys of its partition, `max_age` for all.
        Up to 100 keys of a partition are read from one commit; those of several partitions are not of the same time.

        :raises StateUnavailable: as `get`, of any of the partitions.
        """
        until = ends_at(timeout)
        count = await self._count(until)
        parts = await self._all(self._many.of_keys(table, keys, value, receipts(after), max_age, count, until))
        return {key: found for part in parts for key, found in part.items()}

    @overload
    def get_many_blocking(
        self,
        table: str,
        keys: Iterable[K],
        *,
        value: type[V],
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> dict[K, V]: ...

    @overload
    def get_many_blocking(
        self,
        table: str,
        keys: Iterable[K],
        *,
        value: TypeForm[V],
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> dict[K, V]: ...

    def get_many_blocking(
        self,
        table: str,
        keys: Iterable[K],
        *,
        value: Any,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> dict[K, Any]:
        """Do the same as `get_many`, on threads that this one waits for."""
        until = ends_at(timeout)
        jobs = self._many.of_keys(table, keys, value, receipts(after), max_age, self._asking.partitions(until), until)
        return {key: found for part in self._all_blocking(jobs, until) for key, found in part.items()}

    @overload
    async def get_range(
        self,
        table: str,
        *,
        value: type[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        limit: int = 100,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> RowPage[V]: ...

    @overload
    async def get_range(
        self,
        table: str,
        *,
        value: TypeForm[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        limit: int = 100,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> RowPage[V]: ...

    async def get_range(
        self,
        table: str,
        *,
        value: Any,
        key: Any = str,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        limit: int = 100,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> RowPage[Any]:
        """Return the first committed rows, of all partitions in the order of their keys.

        Their keys begin with `prefix`, are not below `start`, and are below `end`. `key` is the type of the keys.
        `limit` is at most 1,000; of a partition a page has up to 8 MB of stored values. Each owner reads all keys of
        its partitions to find them. `after` and `max_age` as in `get_many`.

        :raises StateUnavailable: as `get`, of any of the partitions. :raises UsageError: keys of this type
            have no such prefix, or no key is below `end`.
        """
        until, bounds = ends_at(timeout), RowBounds(prefix, start, end)
        count = await self._count(until)
        jobs = self._many.of_range(table, bounds, (key, value), limit, receipts(after), max_age, count, until)
        return page_of(await self._all(jobs), limit)

    @overload
    def get_range_blocking(
        self,
        table: str,
        *,
        value: type[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        limit: int = 100,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> RowPage[V]: ...

    @overload
    def get_range_blocking(
        self,
        table: str,
        *,
        value: TypeForm[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        limit: int = 100,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> RowPage[V]: ...

    def get_range_blocking(
        self,
        table: str,
        *,
        value: Any,
        key: Any = str,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        limit: int = 100,
        after: Receipt | Iterable[Receipt] | None = None,
        max_age: float = 0,
        timeout: float = _TIMEOUT,
    ) -> RowPage[Any]:
        """Do the same as `get_range`, on threads that this one waits for."""
        until, bounds = ends_at(timeout), RowBounds(prefix, start, end)
        count = self._asking.partitions(until)
        jobs = self._many.of_range(table, bounds, (key, value), limit, receipts(after), max_age, count, until)
        return page_of(self._all_blocking(jobs, until), limit)

    @overload
    def watch(
        self,
        table: str,
        *,
        value: type[V] | serde.Serde[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        after: str = "",
        partitions: Iterable[int] = (),
    ) -> TableWatch[V]: ...

    @overload
    def watch(
        self,
        table: str,
        *,
        value: TypeForm[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        after: str = "",
        partitions: Iterable[int] = (),
    ) -> TableWatch[V]: ...

    def watch(
        self,
        table: str,
        *,
        value: Any,
        key: Any = str,
        prefix: str | bytes | None = None,
        after: str = "",
        partitions: Iterable[int] = (),
    ) -> TableWatch[Any]:
        """Yield the committed changes of a table, in order within each partition, from now on.

            async for change in client.watch("balances", value=int, prefix="DE-", after=page.position):
                ...

        `after` continues behind the `position` of a change, of a `RowPage` or of the watch itself, without a gap or a
        repetition, in any process. The client reads the changelog, so a takeover does not matter, and an outage of
        Kafka is waited out.
        It needs the right to read that topic. `key` and `value` are the types of the table; no partitions: all.

        :raises ChangesLost: changes after the position are not kept any more, or a tool replaced the state.
        :raises KafkaTrouble: the brokers do not answer at the beginning. :raises UsageError: keys of this type have no
            such prefix. :raises UnreadableValue: `key` or `value` is wrong; the text has the place.
        """
        order = WatchOrder(WatchedTable.typed(table, key, value, prefix), after, tuple(partitions))
        return TableWatch(self._watched(order), order.after)

    async def _watched(self, order: WatchOrder) -> AsyncGenerator[Look, None]:
        existing = await self._count(time.monotonic() + _TIMEOUT)
        async with aclosing(self._watches.on_a_thread(order, existing)) as looks:
            async for look in looks:
                yield look

    @overload
    def watch_blocking(
        self,
        table: str,
        *,
        value: type[V] | serde.Serde[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        after: str = "",
        partitions: Iterable[int] = (),
    ) -> BlockingTableWatch[V]: ...

    @overload
    def watch_blocking(
        self,
        table: str,
        *,
        value: TypeForm[V],
        key: Any = str,
        prefix: str | bytes | None = None,
        after: str = "",
        partitions: Iterable[int] = (),
    ) -> BlockingTableWatch[V]: ...

    def watch_blocking(
        self,
        table: str,
        *,
        value: Any,
        key: Any = str,
        prefix: str | bytes | None = None,
        after: str = "",
        partitions: Iterable[int] = (),
    ) -> BlockingTableWatch[Any]:
        """Do the same as `watch`, on this thread; `close` of the client ends it."""
        order = WatchOrder(WatchedTable.typed(table, key, value, prefix), after, tuple(partitions))
        return BlockingTableWatch(self._watched_blocking(order), order.after)

    def _watched_blocking(self, order: WatchOrder) -> Generator[Look, None, None]:
        yield from self._watches.looks(order, self._asking.partitions(time.monotonic() + _TIMEOUT))

    async def _all(self, jobs: Sequence[Callable[[], V]]) -> list[V]:
        return await asyncio.gather(*(_on(self._readers, job) for job in jobs))

    def _all_blocking(self, jobs: Sequence[Callable[[], V]], until: float) -> list[V]:
        """Run jobs that end at this monotonic time."""
        running = [self._readers.submit(job) for job in jobs]
        return [each.result(max(0.0, until - time.monotonic()) + _LATE) for each in running]

    # End

    def close(self) -> None:
        """Wait a few seconds for acknowledgements and end the clients. Requests in progress get no answer any more."""
        self._watches.close()
        self._stopped.close()
        self._asking.close()
        self._reads.close()
        readers, preparers = self._readers, self._preparers
        self._readers, self._preparers = _pools()
        for threads in (readers, preparers):
            threads.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _read_here(
        self, table: str, key: Any, partition: int, after: Receipt | None, max_age: float
    ) -> tuple[Any] | None:
        """Look once, without a wait: an event loop may call it."""
        if self._here is None:
            return None
        found = unless_stopped(
            partial(self._here.values, table, (key,), partition, -1 if after is None else after.offset), max_age
        )
        return None if found is None else (found[0],)

    def _home(self, table: str, key: Any, after: Receipt | None, count: int) -> int:
        """Return the partition of a key.

        :raises UsageError: the receipt is of another one, so a read could not include its record.
        """
        partition = murmur2(self._key(key), count)
        if after is not None and not isinstance(after, Receipt):
            raise no_receipt(after)
        if after is not None and (after.partition != partition or after.topic not in ("", self.names.input)):
            raise UsageError(
                f"{table}[{key!r}]: the receipt {after} is of {after.topic or self.names.input}[{after.partition}], "
                f"and the key is in {self.names.input}[{partition}]. Nothing was read. Next: give the receipt of a "
                f"record with this key"
            )
        return partition

    async def _chosen(self, key: bytes, until: float) -> int:
        """Return the partition of a record that is about to be written."""
        count = self._asking.partitions_now
        return murmur2(key, count(until) if self._asking.fresh else await _on(self._preparers, count, until))

    async def _count(self, until: float) -> int:
        """Return the number of partitions of the input."""
        count = self._asking.partitions
        return count(until) if self._asking.ready else await _on(self._preparers, count, until)

    async def _prepared(self, key: bytes, until: float) -> int:
        """Return the partition of a key, whose replies are read."""
        partition = await self._chosen(key, until)
        if not self._asking.reads(partition):
            await _on(self._preparers, self._asking.read, partition, until)
        return partition

    async def _handed_over(
        self, hand_over: Callable[..., V], record: tuple[Any, ...], until: float, forget: Callable[[V], None]
    ) -> V:
        """Hand a record to the Kafka client: at once, or on a thread, which waits while the client's queue is full.

        `forget` gets what the thread returns to a caller that was cancelled meanwhile.
        """
        try:
            return hand_over(*record, 0.0)
        except KafkaTrouble:
            waiting = self._preparers.submit(hand_over, *record, until)
        try:
            return await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(partial(_forgotten, forget))
            raise

    def _encoded(self, value: Any) -> bytes | None:
        if self._types is not None and type(value) not in self._types:
            require_type(self._types, value, "Nothing was sent", "the client is declared with value=")
        if self._serde is not None:
            return self._serde.encode(value)
        if value is None or isinstance(value, bytes):
            return value
        return self._serde_of(type(value), self.names.input).encode(value)

    def _serde_of(self, kind: Any, topic: str) -> serde.Serde[Any]:
        """Return the serde of a type, or a serde itself; it is made once, because that takes longer than a request."""
        found = self._serdes.get((kind, topic))
        if found is None:
            if len(self._serdes) >= _MOST_SERDES:  # each call may give a new instance
                self._serdes.clear()
            found = self._serdes[kind, topic] = serde.for_messages(kind, topic)
        return found

    def _request(self, value: Any, key: Any, reply: Any, id: str) -> tuple[bytes | None, bytes, str, serde.Serde[Any]]:
        """Return value, key and id of a request, and the serde of its answer; check all before anything is sent.

        :raises UsageError:
        """
        blob = self._key(key)
        if blob is None:
            raise UsageError("key=None: a request needs a key, whose partition keeps its id. Nothing was sent")
        name = checked_id(id) or self._asking.new_id()
        return self._encoded(value), blob, name, self._serde_of(reply, self.names.replies)

    def _answer(self, found: Reply, reply: serde.Serde[Any], request: RequestInProgress) -> Answered[Any]:
        value = answer_in(found, reply, request.where)
        return Answered(value, Receipt(self.names.input, request.where["partition"], found.offset))

    def _unacknowledged(self, partition: int, seconds: float) -> KafkaTrouble:
        return KafkaTrouble(
            f"{self.names.input}[{partition}]: Kafka has not acknowledged the record within {seconds:g} s; it may be "
            f"written"
        )


def _pools() -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
    """Return the threads of reads and those of preparations; none starts before it has work."""
    return ThreadPoolExecutor(_READERS, "client-reads"), ThreadPoolExecutor(_PREPARERS, "client")


async def _on(threads: ThreadPoolExecutor, call: Callable[..., V], *arguments: Any) -> V:
    return await asyncio.get_running_loop().run_in_executor(threads, call, *arguments)


def _forgotten(forget: Callable[[V], None], done: Future[V]) -> None:
    if not done.cancelled() and done.exception(0) is None:
        forget(done.result(0))
