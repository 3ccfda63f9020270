"""Detects a client that has forgotten the brokers and cannot find them again.

librdkafka drops each broker that a metadata response does not name. Brokers that were frozen or cut off for longer than
their own session are missing from responses for a moment when they wake up. A response then names none of them, or only
one that dies later, and the client has no broker left to ask (librdkafka issue 5301, open). No value of
metadata.recovery.strategy helps. Only a new client, which begins with kafka.bootstrap_servers, learns of them again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException

#: librdkafka's placeholders for coordinators, which get their addresses from the other brokers
_STAND_INS: Final = ("logical", "internal")
#: seconds without contact before a new client probes: the client knows no broker; it knows some, which do not answer
_ALONE: Final = 3.0
_SILENT: Final = 30.0
#: seconds between two probes
_PROBE_EVERY: Final = 10.0

_DECODER: Final = json.JSONDecoder()

Brokers = frozenset[int]


def section(statistics: str, name: str) -> dict[str, Any]:
    """Return one object of a client's statistics; skip the rest, which grows with the number of partitions.

    `name` is the last one before the partitions or the first one after them: a topic may have the same name.
    """
    key = f'"{name}":'
    at = statistics.find(key) if name == "brokers" else statistics.rfind(key)
    return dict(_DECODER.raw_decode(statistics, statistics.index("{", at))[0]) if at >= 0 else {}


def known_brokers(brokers_by_name: Mapping[str, Any]) -> Brokers | None:
    """Return the brokers that a client knows, from its statistics; None while it still knows a bootstrap address."""
    brokers = [each for each in brokers_by_name.values() if each.get("source") not in _STAND_INS]
    if any(each["nodeid"] < 0 for each in brokers):
        return None
    return frozenset(each["nodeid"] for each in brokers)


class BrokerMemory:
    """Compares what one client knows with the live brokers. The thread that polls the client uses it."""

    def __init__(self, ask: Callable[[], Brokers], clock: Callable[[], float] = time.monotonic) -> None:
        """`ask` returns the live brokers; it runs on a thread of its own."""
        self._ask, self._clock = ask, clock
        self._since: float | None = None
        self._next = 0.0
        #: live brokers that the client does not know
        self.lost: Brokers = frozenset()

    def saw(self, brokers: Brokers | None, *, works: bool) -> None:
        """Note what the client knows (see `known_brokers`), and whether it has the contact that it needs."""
        now = self._clock()
        if works or brokers is None:
            self._since, self.lost = None, frozenset()
            return
        self._since = now if self._since is None else self._since
        if now >= self._next and now - self._since >= (_SILENT if brokers else _ALONE):
            self._next = now + _PROBE_EVERY
            threading.Thread(target=self._compare, args=(brokers,), name="witness", daemon=True).start()

    def forget(self) -> None:
        """Forget the findings, because a new client has replaced the old one."""
        self._since, self.lost = None, frozenset()

    def _compare(self, brokers: Brokers) -> None:
        with suppress(KafkaException):
            found = self._ask() - brokers
            if self._since is not None:
                self.lost = found
