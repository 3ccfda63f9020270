"""Futures of an AdminClient: how they are waited for, and what their answers are worth."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from confluent_kafka.admin import OffsetSpec

from statehold.errors import KafkaTrouble
from statehold.kafka.common.error_actions import translate
from statehold.ports import Cancelled

#: seconds that a single question may take
ATTEMPT = 10.0
#: seconds to wait for an answer: a single question and a margin, because the client bounds the question itself
RESULT_WAIT = ATTEMPT + 5.0
#: The wait for an answer is ours. A request that runs out of time inside librdkafka 2.16 while it waits for a broker
#: can end the whole process: when the broker answers after all (issue 4605), or when there is no controller (an
#: assertion in rd_kafka_enq_once_del_source_return). An hour is the longest that librdkafka allows.
NO_TIMEOUT = 3600.0
EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def told(offset: int) -> int:
    """An offset as ListOffsets gave it. When the leader does not answer librdkafka 2.16 gives -1001 and no error.

    :raises KafkaTrouble: it is none. Taken for an end of 0 it would mean that a topic is empty.
    """
    if offset < 0:
        raise KafkaTrouble(f"the leader did not tell the offset (ListOffsets gave {offset})")
    return offset


def result(future: Future[Any], cancelled: Callable[[], bool] = lambda: False, seconds: float = RESULT_WAIT) -> Any:
    """Wait in short steps, so that a stop ends it; the client's own request timeout bounds it, or `seconds`."""
    for _ in range(round(seconds / 0.1)):
        if cancelled():
            raise Cancelled
        try:
            return future.result(0.1)
        except FutureTimeout:
            continue
        except Exception as error:
            raise translate(error) from error
    raise KafkaTrouble(f"no answer within {seconds:.0f} s")
