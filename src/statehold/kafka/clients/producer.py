"""The transactional producer of one partition (rules T1-T4; pitfalls P1-P11)."""

from __future__ import annotations

import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import starmap
from operator import length_hint
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from statehold.common.names import Names
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, MessageRefused, OutcomeUnknown, TransactionAborted
from statehold.health.connectivity import NoContact
from statehold.kafka.admin.group_offsets import LINEAGE
from statehold.kafka.clients.hanging_markers import HiddenRecords
from statehold.kafka.clients.producer_handle import KNOW, ProducerHandle
from statehold.kafka.clients.unwritable_partitions import ANY, Place, unwritable_cause
from statehold.kafka.common.call_timeout import GRACE, STUCK_AFTER, bounded
from statehold.kafka.common.error_actions import Action, action, describe, kafka_error, translate
from statehold.kafka.common.producer_suspicion import DEBUG, Suspicion
from statehold.messages.sent import Sent
from statehold.ports import Cancelled, Clock
from statehold.telemetry.log_events import Log

#: seconds to wait while the client's queue is full: about the time to send one batch
_FULL_QUEUE_WAIT: Final = 0.01
#: seconds of one try to fence: `cancelled` is checked after each
_FENCE_STEP: Final = 0.05
#: longest try of any other call: its own deadline is shorter
_ONE_TRY: Final = 3600.0
#: shortest try, so that a call at its deadline still gets an answer that is on its way
_SHORTEST_TRY: Final = 0.1
#: seconds after a commit in which the brokers write its markers. If the next transaction begins earlier, they reject
#: its first partition, and librdkafka registers that again 20 ms later, whatever `retry.backoff.ms` is
_MARKERS: Final = 0.001
#: the debug line about the answer to init_transactions
_IDENTITY: Final = re.compile(r"Acquired PID\{Id:(\d+),Epoch:(\d+)\}")


class KafkaTransactions:
    """`ports.Transactions` on librdkafka, without delivery callbacks: the commit reports lost records (P7)."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        partition: int,
        log: Log,
        clock: Clock,
        contact: NoContact | None = None,
        outputs: Sequence[str] = (),
        hidden: HiddenRecords | None = None,
    ) -> None:
        """`outputs`: topics that transactions reach in addition to the changelog, checked when one cannot end.
        `hidden`: finds records of ended transactions that the brokers have left open, after a fence.
        """
        self._hidden = hidden
        self._reached: list[Place] = [(names.changelog, partition), *((topic, ANY) for topic in outputs)]
        self._contact = contact or NoContact()
        self.attempt = uuid.uuid4().hex[:16]
        self.lineage = ""
        self._clock, self._log, self._settings = clock, log, settings
        self._partition = partition
        self._timeout = settings.commit.timeout
        # A request is repeated after the socket's timeout at the earliest, but for reasons that the log shows.
        self._suspicion = Suspicion(min(settings.commit.slow, settings.kafka.socket_timeout))
        config: dict[str, Any] = dict(client.producer(settings, names.transactional_id(partition)))
        # Without debug lines librdkafka suppresses some lost connections (docs/explanation/assumptions.md).
        config |= {"debug": DEBUG, "log_level": 7}
        self._handle = ProducerHandle(config, names.input, self._logged)

    @property
    def suspicion(self) -> str:
        self._try(lambda: self._alive().poll(0), "poll")  # because a fatal error shows there first (P7)
        return self._suspicion.reason

    def deliver_log(self) -> None:
        with suppress(KafkaException, KafkaTrouble, SystemError):  # because the next call reports it
            self._alive().poll(0)

    def fence(self, cancelled: Callable[[], bool]) -> None:
        with self._watched("list_topics", 2 * KNOW + GRACE):
            self._handle.get_to_know()
        try:
            self._resume(self._handle.init, "init_transactions", step=_FENCE_STEP, cancelled=cancelled)
        except OutcomeUnknown as error:
            # The last transaction must end first in all of its partitions (CONCURRENT_TRANSACTIONS).
            self._contact.broken(self._partition, str(error))
            raise
        self._suspicion.reason = ""
        if self._hidden is not None and (hidden := self._hidden.aborted(cancelled)):
            self._log.warning("hidden_records", partitions=[f"{topic}[{p}]" for topic, p in hidden], doing="abort them")
            self._reach_and_abort(hidden)
            if left := self._hidden.aborted(cancelled):
                places = ", ".join(f"{topic}[{p}]" for topic, p in left)
                raise OutcomeUnknown(f"aborted records of this producer are still open in {places}")

    def _reach_and_abort(self, places: Sequence[Place]) -> None:
        """End hidden transactions of this id, by an aborted transaction that reaches the same partitions.

        The brokers write the missing marker with its end, and discard what it sends.
        """
        self.begin()
        for topic, partition in places:
            self.send_increment(topic, partition, b"")
        self._flush_all(self._clock() + self._timeout)
        self.abort()

    def begin(self) -> None:
        self._suspicion.begun()
        self._try(self._alive().begin_transaction, "begin_transaction")

    def send(self, messages: Sequence[Sent]) -> None:
        produce, rest = self._alive().produce, iter(messages)
        while True:
            try:
                deque(starmap(produce, rest), maxlen=0)
                return
            except BufferError:
                # The iterator has already passed the message that found no room.
                messages = messages[len(messages) - length_hint(rest) - 1 :]
                rest = iter(messages)
                self._wait_for_room()
            except Exception as error:
                raise self._translate(error) from error

    def send_increment(self, topic: str, partition: int, payload: bytes) -> None:
        while True:
            try:
                self._alive().produce(topic, payload, None, partition)
                return
            except BufferError:
                self._wait_for_room()
            except Exception as error:
                raise self._translate(error) from error

    def send_offsets(self, positions: Mapping[str, int], membership: Any) -> None:
        noted = LINEAGE + self.lineage
        offsets = [TopicPartition(topic, self._partition, offset, noted) for topic, offset in positions.items()]
        self._send_offsets(offsets, membership)

    def send_all_offsets(self, offsets: Mapping[tuple[str, int], int], membership: Any, lineage: str) -> None:
        # Flush first, so that every partition has a record of this transaction before the group gets its offsets. A
        # worker that gets one of these partitions then finds an open transaction and waits for its end.
        self._flush_all(self._clock() + self._timeout)
        noted = LINEAGE + lineage
        places = [TopicPartition(topic, partition, at, noted) for (topic, partition), at in offsets.items()]
        self._send_offsets(places, membership)

    def _send_offsets(self, offsets: list[TopicPartition], membership: Any) -> None:
        # Let OutcomeUnknown pass, because a call that timed out can only be resumed, never aborted (P5).
        # From here on any lost connection counts, because the offsets go to the group's coordinator.
        self._suspicion.in_transaction = True
        producer = self._alive()
        # Bound the call, because it ignores its timeout when the group's coordinator has died (librdkafka issue 5511).
        call = partial(bounded, lambda left: producer.send_offsets_to_transaction(offsets, membership, left))
        self._resume(call, "send_offsets_to_transaction")
        self._flush_all(self._clock() + self._timeout)

    def _flush_all(self, deadline: float) -> None:
        while self._flush(deadline) > 0:
            if self._clock() >= deadline:
                unknown = self._unknown(f"outputs were not acknowledged within {self._timeout:.0f} s")
                self._contact.broken(self._partition, str(unknown))
                raise unknown

    def _flush(self, deadline: float) -> int:
        left = max(0.0, deadline - self._clock())
        try:
            with self._watched("flush", left):
                return self._alive().flush(left)
        except Exception as error:
            raise self._translate(error) from error

    def commit(self) -> None:
        producer = self._alive()
        began = self._clock()
        self._suspicion.calling()
        try:
            self._resume(producer.commit_transaction, "commit_transaction")
            self._suspicion.commit_ended()
        except TransactionAborted as error:
            # Rule T4: any error of the commit call itself leaves the outcome open.
            raise self._unknown(str(error)) from error
        finally:
            self._suspicion.ended(self._clock() - began)
            self._drain_log()
        time.sleep(_MARKERS)

    def abort(self) -> None:
        began = self._clock()
        self._suspicion.calling()
        try:
            self._resume(self._alive().abort_transaction, "abort_transaction")
            self._suspicion.abort_ended()
        except TransactionAborted as error:
            raise self._unknown(str(error)) from error
        finally:
            self._suspicion.ended(self._clock() - began)
            self._drain_log()

    def drop(self) -> None:
        self._handle.drop()

    def _alive(self) -> Producer:
        return self._handle.get()

    def _drain_log(self) -> None:
        """Poll for log lines, which still belong to the transaction that has just ended."""
        self._suspicion.in_transaction = True
        try:
            self._alive().poll(0)
        except KafkaException as error:
            self._suspicion.suspect(f"the client has failed ({error})")
        finally:
            self._suspicion.in_transaction = False

    def _translate(self, error: Exception) -> KafkaTrouble:
        """Return the exception for a client error; a begin, which cannot succeed any more, names the first cause.

        After a fatal error every call returns _FATAL. The cause decides what follows: a fenced producer must ask the
        group before it comes back, one with a torn transaction must not (rule T8). A produce returns _STATE after the
        brokers have rejected a part of its transaction. The rejected message is unknown then, so the transaction is
        aborted.
        """
        inner = kafka_error(error)
        if inner is not None and inner.code() in (KafkaError._FATAL, KafkaError._STATE):
            try:
                self._alive().begin_transaction()
            except OutcomeUnknown:
                pass
            except KafkaException as reported:
                why = translate(reported)
                return TransactionAborted(str(why)) if isinstance(why, MessageRefused) else why
        why = translate(error)
        # The handle's own error, that the producer was dropped, has its cause already.
        unknown = isinstance(why, OutcomeUnknown) and not isinstance(error, OutcomeUnknown)
        return self._unknown(str(why)) if unknown else why

    def _unknown(self, reason: str) -> OutcomeUnknown:
        """Add what keeps records from being written."""
        return OutcomeUnknown(f"{reason}{unwritable_cause(self._settings, self._reached)}")

    def _watched(self, what: str, timeout: float = 0.0) -> AbstractContextManager[object]:
        return self._contact.call(what, timeout + STUCK_AFTER, partition=self._partition)

    def _try(self, call: Callable[[], object], what: str) -> None:
        try:
            with self._watched(what):
                call()
        except Exception as error:
            raise self._translate(error) from error

    def _resume(
        self,
        call: Callable[[float], object],
        what: str,
        *,
        step: float = _ONE_TRY,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Repeat the same call up to the deadline if its errors allow it; check `cancelled` every `step` seconds."""
        deadline = self._clock() + self._timeout
        while not cancelled():
            left = min(step, max(_SHORTEST_TRY, deadline - self._clock()))
            try:
                with self._watched(what, left + GRACE):
                    call(left)
                self._contact.works(self._partition)
                return
            except KafkaException as error:
                inner = kafka_error(error)
                if inner is not None and action(inner) is Action.RESUME:
                    self._contact.broken(self._partition, f"{what}: {describe(inner)}")
                if inner is None or action(inner) is not Action.RESUME or self._clock() >= deadline:
                    raise self._translate(error) from error
            except TimeoutError as error:
                self._contact.broken(self._partition, f"{what}: {error}")
                raise self._translate(error) from error
            except Exception as error:
                raise self._translate(error) from error
        raise Cancelled

    def _wait_for_room(self) -> None:
        """Wait while the client's queue is full, because the broker is slower than the handler."""
        try:
            self._alive().poll(_FULL_QUEUE_WAIT)
        except KafkaException as error:
            raise self._translate(error) from error

    def _logged(self, level: str, message: str) -> None:
        self._suspicion.logged(message)
        if level != "debug":
            self._log.debug("kafka_log", client="producer", level=level, message=message)
        elif message.startswith("GETPID") and (found := _IDENTITY.search(message)):
            self._log.info("producer_identity", producer_id=int(found[1]), producer_epoch=int(found[2]))
