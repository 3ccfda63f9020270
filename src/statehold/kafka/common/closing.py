"""Closes a client that is a member of a group, when no rebalance waits in its queue.

librdkafka's close serves a queued rebalance, and its callback asks the client's main thread to assign. That thread may
not answer any more (librdkafka#4884, open), and the binding waits with the interpreter's lock: no Python thread runs
then, whatever deadline it has. Under the protocol `consumer` two of three bare closes right after a growth of the
topic hang: the close itself begins the revocation and never serves it. A member that has left the group and polled
since has an empty queue.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from statehold.common.deadline import Deadline

#: the binding raises a KafkaError itself where its own answer to a rebalance fails
_REJECTED: Final[tuple[Any, ...]] = (KafkaException, KafkaError, RuntimeError)
#: seconds of polling before a close goes ahead, and of one poll
_WITHIN: Final = 5.0
_STEP: Final = 0.1
#: empty polls in a row: one may have run a callback, whose answer comes with the next
_EMPTY: Final = 2
#: records that one poll takes away
_BATCH: Final = 1000


def close_member(consumer: Consumer, *, stays: bool = False) -> None:
    """Leave the group, serve what is queued, then close.

    `stays`: a static member of a classic group keeps its place. One of the protocol `consumer` leaves and keeps it.
    """
    # A client with a fatal error, a closed one, and one whose assignment is gone already reject these calls.
    with suppress(*_REJECTED):
        if stays:
            _serve(consumer)
        else:
            leave_group(consumer)
    with suppress(*_REJECTED):
        consumer.close()


def leave_group(consumer: Consumer) -> None:
    """Unsubscribe, and poll until the queue is empty. A static member of a classic group loses its place.

    Rebalance callbacks run on this thread.
    """
    consumer.unsubscribe()
    _serve(consumer)


def _serve(consumer: Consumer) -> None:
    deadline, empty = Deadline(_WITHIN), 0
    while empty < _EMPTY and not deadline.passed:
        empty = 0 if consumer.consume(_BATCH, _STEP) else empty + 1
