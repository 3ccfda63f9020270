"""A client that has forgotten the brokers, and would never find back by itself.

librdkafka drops each broker that an answer to its metadata request does not name. Brokers that were frozen or cut off
for longer than their own session are left out for a moment when they wake up: an answer then names none of them, or
only one that dies later, and the client has nobody left to ask (librdkafka issue 5301, open; no value of
metadata.recovery.strategy helps). Only a new client, which begins with kafka.bootstrap_servers, is told of them again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException

#: librdkafka's own stand-ins for a coordinator: they know an address only through the others
_STAND_INS: Final = ("logical", "internal")
#: seconds without contact before another client is asked: it knows nobody; it knows some, which do not answer
_ALONE, _SILENT = 3.0, 30.0
#: seconds between two of those
_AGAIN = 10.0

Brokers = frozenset[int]


def known(statistics: Mapping[str, Any]) -> Brokers | None:
    """The brokers that a client knows, from its statistics; None while it still knows a bootstrap address."""
    brokers = [each for each in statistics.get("brokers", {}).values() if each.get("source") not in _STAND_INS]
    if any(each["nodeid"] < 0 for each in brokers):
        return None
    return frozenset(each["nodeid"] for each in brokers)


class BrokerMemory:
    """Whether one client has forgotten brokers that there are. Used by the thread that polls it."""

    def __init__(self, ask: Callable[[], Brokers], clock: Callable[[], float] = time.monotonic) -> None:
        """`ask` is called on a thread of its own."""
        self._ask, self._clock = ask, clock
        self._since: float | None = None
        self._next = 0.0
        #: brokers that there are and the client does not know of; until a new one takes its place
        self.lost: Brokers = frozenset()

    def saw(self, brokers: Brokers | None, *, works: bool) -> None:
        """`brokers`: see `known`; `works`: it has the contact that it needs."""
        now = self._clock()
        if works or brokers is None:
            self._since, self.lost = None, frozenset()
            return
        self._since = now if self._since is None else self._since
        if now >= self._next and now - self._since >= (_SILENT if brokers else _ALONE):
            self._next = now + _AGAIN
            threading.Thread(target=self._compare, args=(brokers,), name="witness", daemon=True).start()

    def anew(self) -> None:
        """A new client has taken its place."""
        self._since, self.lost = None, frozenset()

    def _compare(self, brokers: Brokers) -> None:
        with suppress(KafkaException):
            found = self._ask() - brokers
            if self._since is not None:
                self.lost = found
