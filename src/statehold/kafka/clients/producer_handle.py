"""A transactional client of librdkafka from its making until it has the id for itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from statehold.errors import OutcomeUnknown
from statehold.kafka.common.transaction_taint import client_logger

#: seconds for one question about the brokers
KNOW: Final = 0.5
#: what librdkafka logs of a broker that is still aborting the transaction of whoever had the id before
_ABORTING: Final = "another concurrent operation on the same transaction"
#: so many clients ask in a hurry; after them librdkafka's own pace is right: the brokers are slow
_CLIENTS: Final = 5


class ProducerHandle:
    """Used by one thread, on which its log arrives, too."""

    def __init__(self, config: dict[str, Any], topic: str, logged: Callable[[str, str], None]) -> None:
        """`topic`: one that is only read. Of those that it writes to a client that knows them early would not see that
        they have grown. `logged`: takes level and text of each line of the client's log.
        """
        self._config = {**config, "logger": client_logger("statehold.producer", self._heard)}
        self._topic, self._logged = topic, logged
        #: clients so far
        self.made, self._refused = 1, False
        self._producer: Producer | None = Producer(self._config)

    def get(self) -> Producer:
        if self._producer is None:
            raise OutcomeUnknown("the producer was dropped")
        return self._producer

    def drop(self) -> None:
        # close() would wait for the broker while a transaction is open (P8); losing the last reference does not.
        self._producer = None

    def get_to_know(self) -> None:
        """The first answer names the brokers, the second needs one of them to be connected; asked for the coordinator
        before that, librdkafka asks again only 0.5 s later.
        """
        with suppress(KafkaException):  # who goes on hears why
            for _ in range(2):
                self.get().list_topics(self._topic, KNOW)

    def init(self, timeout: float) -> None:
        """`init_transactions`, which may be called again; raises as that does.

        Where the last owner has died in a transaction, the first request makes the broker abort it, and is refused;
        librdkafka asks again 0.5 s later. A new client asks at once. Nothing of the one before it is under way then:
        its request was answered.
        """
        try:
            self.get().init_transactions(timeout)
        except KafkaException:
            self.get().poll(0)  # brings the log
            if self._refused and self.made < _CLIENTS:
                self.drop()  # it is gone before the next one asks
                self._producer, self._refused = Producer(self._config), False
                self.made += 1
                self.get_to_know()
            raise

    def _heard(self, level: str, message: str) -> None:
        self._refused = self._refused or ("GETPID" in message and _ABORTING in message)
        self._logged(level, message)
