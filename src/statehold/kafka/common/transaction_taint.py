"""Detects that a commit or abort may have been requested twice, so one may still be in flight (pitfall P1, rule T2)."""

from __future__ import annotations

import json
import re

from statehold.kafka.common.lost_brokers import known_brokers

#: a lost connection or a timed-out request. During a transaction any broker's counts, because offsets go to the
#: group's coordinator
_LOST = re.compile(r"FAIL.*in state UP|REQTMOUT", re.S)


class Taint:
    """Combines three signals: a log line about a connection, a slow call, more EndTxn requests than calls.

    No single signal is enough (docs/assumptions.md). The producer's callbacks report them from its `poll`, and the same
    thread reads the result.
    """

    def __init__(self, slow: float) -> None:
        self._slow = slow
        self._calls = 0
        self.in_transaction = False
        self.reason = ""

    def logged(self, message: str) -> None:
        if _LOST.search(message) and (self.in_transaction or "TxnCoordinator" in message):
            self._set(f"a connection was lost ({message.strip()[:160]})")

    def calling(self) -> None:
        """Count a commit or abort call, before it begins."""
        self._calls += 1

    def ended(self, seconds: float) -> None:
        """Note how long the call took."""
        if seconds > self._slow:
            self._set(f"a commit or abort took {seconds:.2f} s")

    def statistics(self, text: str) -> None:
        statistics = json.loads(text)
        if known_brokers(statistics) == frozenset():
            self._set("the client has forgotten every broker (librdkafka issue 5301)")
        requests = sum(broker.get("req", {}).get("EndTxn", 0) for broker in statistics["brokers"].values())
        if requests > self._calls:
            self._set(f"{requests} commit and abort requests were sent for {self._calls} calls")

    def _set(self, reason: str) -> None:
        self.reason = self.reason or reason
