"""Waits for the futures of an AdminClient, and checks their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from statehold.errors import KafkaTrouble
from statehold.kafka.common.error_actions import translate
from statehold.ports import Cancelled

#: seconds that a single request may take
ATTEMPT: Final = 10.0
#: a wait is cut into steps of this, so that a stop ends it
_STEP: Final = 0.1
#: seconds to wait for an answer: a single request and a margin, because the client bounds the request itself
RESULT_WAIT: Final = ATTEMPT + 5.0
#: Callers bound the wait, not librdkafka 2.16. A request that times out inside it while it waits for a broker can end
#: the process: if the broker answers after all (issue 4605), or if there is no controller (an assertion in
#: rd_kafka_enq_once_del_source_return). One hour is the longest timeout that librdkafka allows.
NO_TIMEOUT: Final = 3600.0
EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
NEWEST: Any = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def require_offset(offset: int) -> int:
    """Return the offset of a ListOffsets answer.

    If the leader does not answer, librdkafka 2.16 gives -1001 and no error.

    :raises KafkaTrouble: it is not an offset. Read as an end of 0 it would mean that the topic is empty.
    """
    if offset < 0:
        raise KafkaTrouble(f"the leader did not return the offset (ListOffsets gave {offset})")
    return offset


def ask_offsets(
    client: AdminClient, places: Iterable[tuple[str, int]], spec: Any, isolation: IsolationLevel, seconds: float
) -> dict[tuple[str, int], Future[Any]]:
    """Ask for an offset of each partition without waiting, with a timeout inside the client."""
    wanted = {TopicPartition(*place): spec for place in places}
    futures = client.list_offsets(wanted, isolation_level=isolation, request_timeout=seconds)
    return {(place.topic, place.partition): future for place, future in futures.items()}


def result(future: Future[Any], cancelled: Callable[[], bool] = lambda: False, seconds: float = RESULT_WAIT) -> Any:
    """Wait for an answer in short steps, so that a stop ends the wait.

    :raises KafkaTrouble: the request failed, or no answer came within `seconds`. :raises Cancelled: by `cancelled`.
    """
    for _ in range(round(seconds / _STEP)):
        if cancelled():
            raise Cancelled
        try:
            return future.result(_STEP)
        except FutureTimeout:
            continue
        except Exception as error:
            raise translate(error) from error
    raise KafkaTrouble(f"no answer within {seconds:.0f} s")
