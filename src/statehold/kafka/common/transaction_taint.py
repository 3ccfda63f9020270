"""Detects that a commit or abort may still be in flight, or that an abort may have left records open (rule T2).

A commit or abort that the client requested twice may still be in flight (pitfall P1). Brokers that lose a partition's
leader while a transaction is aborted may leave its records open (KAFKA-20734), and the next transaction of the same
producer then commits them. A new fence helps against both.
"""

from __future__ import annotations

import json
import re

from statehold.kafka.common.lost_brokers import known_brokers

#: a lost connection or a timed-out request. During a transaction any broker's counts, because offsets go to the
#: group's coordinator
_LOST = re.compile(r"FAIL.*in state UP|REQTMOUT", re.S)


class Taint:
    """Combines four signs: a log line about a connection, a slow call, too many EndTxn requests, no known broker.

    No single sign is enough (docs/assumptions.md). The producer's callbacks report them from its `poll`, and the same
    thread reads the result.
    """

    def __init__(self, slow: float) -> None:
        self._slow = slow
        self._calls = 0
        #: the newest connection lost since the transaction began; '' if none was
        self._lost = ""
        self._after_abort = False
        self.in_transaction = False
        self.reason = ""

    def logged(self, message: str) -> None:
        if _LOST.search(message):
            self._lost = f"a connection was lost ({message.strip()[:160]})"
            if self.in_transaction or self._after_abort or "TxnCoordinator" in message:
                self._set(self._lost)

    def begun(self) -> None:
        """Forget the connections that were lost between transactions, unless the last one was aborted."""
        if not self._after_abort:
            self._lost = ""

    def commit_ended(self) -> None:
        """Forget the last abort: a commit ends the transaction in all partitions that it reaches."""
        self._lost, self._after_abort = "", False

    def abort_ended(self) -> None:
        """Count every lost connection of the aborted transaction, and each one until the next commit."""
        self._after_abort = True
        if self._lost:
            self._set(self._lost)

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
