"""Makes a transactional librdkafka client and fences the former owner of its id."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from statehold.errors import OutcomeUnknown
from statehold.kafka.common.client_log import ClientLog

#: seconds for one metadata request
KNOW: Final = 0.5
#: librdkafka's log line while a broker still aborts the transaction of the former owner
_ABORTING: Final = "another concurrent operation on the same transaction"
#: clients that retry fast, ahead of librdkafka's back-off; after them the brokers are slow, and its pace is right
_CLIENTS: Final = 5


class ProducerHandle:
    """One thread uses it; the client's log arrives on the same thread."""

    def __init__(self, config: dict[str, Any], topic: str, logged: Callable[[str, str], None]) -> None:
        """`topic`: one that the producer only reads, because a client that learns of an output topic early does not see
        that it has grown. `logged`: gets level and text of each log line of the client.
        """
        self._config = {**config, "logger": ClientLog(self._heard)}
        self._topic, self._logged = topic, logged
        #: number of clients made
        self.made, self._refused = 1, False
        self._producer: Producer | None = Producer(self._config)

    def get(self) -> Producer:
        if self._producer is None:
            raise OutcomeUnknown("the producer was dropped")
        return self._producer

    def drop(self) -> None:
        # Losing the last reference does not wait; close() waits for the broker while a transaction is open (P8).
        self._producer = None

    def get_to_know(self) -> None:
        """Connect to the brokers, because librdkafka retries a coordinator lookup before that only 0.5 s later.

        The first answer names the brokers; the second needs a connection to one of them.
        """
        with suppress(KafkaException):  # because the next call reports the cause
            for _ in range(2):
                self.get().list_topics(self._topic, KNOW)

    def init(self, timeout: float) -> None:
        """Call `init_transactions`; you may repeat it. Raises what that raises.

        If the last owner died in a transaction, the first request makes the broker abort it and is rejected. librdkafka
        would ask again 0.5 s later; a new client asks at once. No request of the client before it is in flight then,
        because the broker has answered it.
        """
        try:
            self.get().init_transactions(timeout)
        except KafkaException:
            self.get().poll(0)  # delivers the log lines
            if self._refused and self.made < _CLIENTS:
                self.drop()  # before the next client asks
                self._producer, self._refused = Producer(self._config), False
                self.made += 1
                self.get_to_know()
            raise

    def _heard(self, level: str, message: str) -> None:
        self._refused = self._refused or ("GETPID" in message and _ABORTING in message)
        self._logged(level, message)
