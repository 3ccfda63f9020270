"""Requests in progress of one process: each waits for the reply with its return address."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Final

from statehold.client.receipt import Receipt
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, NotAnswered, RestoreTimeout, TooManyRequests, TopicMissing
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.common.error_advice import advice_to_connect
from statehold.kafka.feeds.reply_feed import ReplyFeed, ReplyLane
from statehold.kafka.tools.request_producer import RequestProducer
from statehold.messages.request import Reply, headers_of, no_answer
from statehold.ports import Cancelled
from statehold.telemetry.log_events import Log

#: seconds without a request after which a partition of the replies is read no more
_IDLE: Final = 60.0
#: seconds after which a write counts the partitions again, and which that may take
_COUNT_AGAIN: Final = 5.0
_COUNTING: Final = 1.0
#: seconds between two looks for such partitions
_LOOK: Final = 1.0
#: seconds for the acknowledgements at the end
_CLOSE: Final = 5.0


class RequestInProgress:
    """A request that was handed to the Kafka client."""

    def __init__(self, topic: str, partition: int, id: str) -> None:
        #: coordinates, as `NotAnswered` has them; the offset is -1 until Kafka has acknowledged the record
        self.where: dict[str, Any] = {"id": id, "topic": topic, "partition": partition, "offset": -1}
        self.reply: Future[Reply] = Future()
        self.began = time.monotonic()

    def fail(self, cause: str) -> None:
        """End the wait without a reply."""
        self.end(no_answer(time.monotonic() - self.began, self.where, cause))

    def end(self, error: NotAnswered) -> None:
        """End the wait with this error, unless there is a reply."""
        with suppress(InvalidStateError):  # its caller waits no more
            self.reply.set_exception(error)


class OpenRequests:
    """Any thread may use it. Its clients start with the first request."""

    def __init__(self, settings: Settings, names: Names, in_flight: int) -> None:
        """`in_flight`: most requests without a reply."""
        self._settings, self._names, self._most = settings, names, in_flight
        self._log = Log(service=names.group)
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._partitions = 0
        #: monotonic time from which on a write counts again
        self._stale = float("-inf")
        self._producer: RequestProducer | None = None
        self._feed: ReplyFeed | None = None
        #: partitions of the replies that are read, and when each had its last request
        self._lanes: dict[int, ReplyLane] = {}
        self._used: dict[int, float] = {}
        self._look = 0.0
        #: requests without a reply, by return address
        self._waiting: dict[bytes, RequestInProgress] = {}
        self._process, self._numbers = uuid.uuid4().hex, count()

    @property
    def ready(self) -> bool:
        """Whether `partitions` returns at once."""
        return self._partitions > 0

    def partitions(self, until: float) -> int:
        """Return the number of partitions of the input. The first call asks the brokers, until this monotonic time.

        :raises TopicMissing: the input does not exist. :raises KafkaTrouble: the brokers do not answer.
        """
        if not self._partitions:
            found = self._described(self._names.input, until)
            if found is None:
                raise TopicMissing(
                    f"{self._names.input}: the input does not exist. Next: check the names of the client's service "
                    f"and input, or run `statehold topics create {self._names.options} --start-at end --partitions N`"
                )
            self._partitions = found.partitions
        return self._partitions

    @property
    def fresh(self) -> bool:
        """Whether `partitions_now` returns at once."""
        return self._partitions > 0 and time.monotonic() < self._stale

    def partitions_now(self, until: float) -> int:
        """Return the number of partitions for a write; ask the brokers if they were counted some seconds ago.

        One caller asks at a time, and the others continue with the number that is known. It is kept if no broker
        answers, because none can add partitions then. Raises as `partitions`.
        """
        known = self.partitions(until)
        with self._lock:
            if self.fresh:
                return known
            self._stale = time.monotonic() + _COUNT_AGAIN
        seconds = min(_COUNTING, max(0.0, until - time.monotonic()))
        # By the producer's own client, which knows no partition that it has not seen itself.
        self._partitions = max(known, self.producer().partitions(seconds))
        return self._partitions

    @property
    def counted(self) -> int:
        """The number of partitions that `partitions` has found; 0 before."""
        return self._partitions

    def count_again(self) -> None:
        """Let the next call of `partitions` ask the brokers: partitions were added."""
        self._partitions = 0

    def _described(self, topic: str, until: float) -> TopicFacts | None:
        with self._reaching(topic):
            return self.admin().describe([topic], lambda: time.monotonic() >= until)[topic]

    @contextmanager
    def _reaching(self, topic: str) -> Iterator[None]:
        """Let an error of a request about a topic say what to check. :raises KafkaTrouble:"""
        try:
            yield
        except (KafkaTrouble, RestoreTimeout, Cancelled) as error:
            cause = error if isinstance(error, KafkaTrouble) else error.__cause__
            trouble = cause if isinstance(cause, KafkaTrouble) else KafkaTrouble("no answer in time")
            servers = self._settings.kafka.bootstrap_servers
            text = f"{servers}: ask for {topic}: {trouble}. No record was sent. Next: {advice_to_connect(trouble)}"
            raise type(trouble)(text) from error

    def admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(self._settings, self._names.group)
            return self._admin

    def reads(self, partition: int) -> bool:
        """Return whether the replies of this partition are read already, and keep them so for the request to come."""
        with self._lock:
            if partition not in self._lanes:
                return False
            self._used[partition] = time.monotonic()
            return True

    def read(self, partition: int, until: float) -> None:
        """Read the replies of this partition from their present end on.

        Blocks for requests to the brokers, until this monotonic time at most.

        :raises TopicMissing: the service has no topic of replies. :raises KafkaTrouble: the brokers do not answer.
        """
        if self.reads(partition):
            return
        topic = self._names.replies
        if self._described(topic, until) is None:
            raise TopicMissing(
                f"{topic}: the topic of replies does not exist, so the service answers no requests. Nothing was sent. "
                f"Next: declare replies = Replies(TYPE, keep=SECONDS) in the handler and run `statehold topics create "
                f"MODULE:SERVICE --start-at end`"
            )
        with self._reaching(topic):
            _, end = self.admin().bounds(topic, partition, max(0.0, until - time.monotonic()), lambda: False)
        with self._lock:
            if self._feed is None:
                self._feed = ReplyFeed(self._settings, self._names.group, topic, self._log, self._take)
            if partition not in self._lanes:
                self._used[partition] = time.monotonic()
                self._lanes[partition] = self._feed.lane(partition, end)

    def ask(
        self, value: bytes | None, key: bytes, partition: int, id: str, until: float
    ) -> tuple[bytes, RequestInProgress]:
        """Send a request, whose partition is read; return its return address.

        :raises KafkaTrouble: it cannot be handed to the client. :raises TooManyRequests:
        """
        address = f"{self._process}/{next(self._numbers)}".encode()
        request = RequestInProgress(self._names.input, partition, id)
        with self._lock:  # from here on the partition is busy
            if len(self._waiting) >= self._most:
                raise TooManyRequests(
                    f"{self._names.input}[{partition}]: {self._most} requests of this client wait for their answers. "
                    f"Nothing was sent. Next: ask again later with id={id!r}, or give the client a larger in_flight"
                )
            self._waiting[address] = request
            self._used[partition] = time.monotonic()

        def delivered(offset: int, cause: str) -> None:
            request.where["offset"] = offset
            if cause:
                request.fail(cause)

        try:
            self._leave_idle()
            self.producer().send(value, key, partition, headers_of(id, address), delivered, until)
        except BaseException:
            self.forget(address)
            raise
        return address, request

    def send(self, value: bytes | None, key: bytes | None, partition: int, until: float) -> Future[Receipt]:
        """Write an ordinary record. :raises KafkaTrouble: it cannot be handed to the client."""
        receipt: Future[Receipt] = Future()

        def delivered(offset: int, cause: str) -> None:
            with suppress(InvalidStateError):  # its caller waits no more
                if cause:
                    receipt.set_exception(_unacknowledged(self._names.input, partition, cause))
                else:
                    receipt.set_result(Receipt(self._names.input, partition, offset))

        self.producer().send(value, key, partition, (), delivered, until)
        return receipt

    def new_id(self) -> str:
        """Return an id that no other request has."""
        return f"{self._process}-{next(self._numbers)}"

    def waiting(self) -> list[RequestInProgress]:
        """Return the requests without a reply."""
        return list(self._waiting.values())

    def forget(self, address: bytes) -> None:
        """Wait no more for this reply."""
        self._waiting.pop(address, None)

    def producer(self) -> RequestProducer:
        with self._lock:
            if self._producer is None:
                self._producer = RequestProducer(self._settings, self._names.input)
            return self._producer

    def close(self) -> None:
        with self._lock:
            feed, producer, self._feed, self._producer = self._feed, self._producer, None, None
            self._lanes.clear()
        if producer is not None:
            producer.close(_CLOSE)
        if feed is not None:
            feed.close()
        for request in self.waiting():
            request.fail("the client was closed")

    def _take(self, reply: Reply) -> None:
        """Hand a reply to its request, on the feed's thread. Those of other processes have other addresses."""
        request = self._waiting.get(reply.address)
        if request is not None and reply.id == request.where["id"]:
            self.forget(reply.address)
            with suppress(InvalidStateError):  # its caller waits no more
                request.reply.set_result(reply)

    def _leave_idle(self) -> None:
        """Stop reading partitions without a request for some time: a reply that comes later is stored by its id."""
        now = time.monotonic()
        if now < self._look:
            return
        with self._lock:
            self._look = now + _LOOK
            busy = {request.where["partition"] for request in self.waiting()}
            for partition in [each for each, used in self._used.items() if now - used >= _IDLE and each not in busy]:
                del self._used[partition]
                if (lane := self._lanes.pop(partition, None)) is not None:
                    lane.close()


def _unacknowledged(topic: str, partition: int, cause: str) -> Exception:
    return KafkaTrouble(f"{topic}[{partition}]: the record was not acknowledged, and may be written: {cause}")
