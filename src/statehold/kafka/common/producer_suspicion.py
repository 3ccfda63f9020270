"""Detects that a commit or abort may still be in flight, or that an abort may have left records open (rule T2).

A commit or abort that the client requested twice may still be in flight (pitfall P1). Brokers that lose a partition's
leader while a transaction is aborted may leave its records open (KAFKA-20734), and the next transaction of the same
producer then commits them. A new fence helps against both.
"""

from __future__ import annotations

import re

#: librdkafka's debug contexts that log each lost connection, and each response to a commit or abort request
DEBUG = "broker,eos"
#: a lost connection or a timed-out request. During a transaction any broker's counts, because offsets go to the
#: group's coordinator
_LOST = re.compile(r"FAIL.*in state UP|REQTMOUT", re.S)
#: the client closes its bootstrap connection itself once it knows the brokers, and sends nothing of a transaction on it
_BOOTSTRAP = re.compile(r"/bootstrap\].*_DESTROY_BROKER", re.S)


class Suspicion:
    """Combines three signs: a log line about a connection, a slow call, and a call that took more than one request.

    No single sign is enough (docs/explanation/assumptions.md). The producer's log arrives in its `poll`, and the
    same thread reads the result. Statistics count the requests, too, but too late, and they grow
    with the number of partitions.
    """

    def __init__(self, slow: float) -> None:
        self._slow = slow
        #: responses to the requests of the current commit or abort call, and requests that failed
        self._responses = 0
        #: the newest connection lost since the transaction began; '' if none was
        self._lost = ""
        self._after_abort = False
        self.in_transaction = False
        self.reason = ""

    def logged(self, message: str) -> None:
        if message.startswith("ENDTXN"):
            self._responses += 1
            if self._responses > 1:
                self.suspect(f"one commit or abort call sent {self._responses} requests ({message[:160]})")
        elif message.startswith(("FAIL", "REQTMOUT")) and _LOST.search(message) and not _BOOTSTRAP.search(message):
            self._lost = f"a connection was lost ({message.strip()[:160]})"
            if self.in_transaction or self._after_abort or "TxnCoordinator" in message:
                self.suspect(self._lost)

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
            self.suspect(self._lost)

    def calling(self) -> None:
        """A commit or abort call begins."""
        self._responses = 0

    def ended(self, seconds: float) -> None:
        """Note how long the call took."""
        if seconds > self._slow:
            self.suspect(f"a commit or abort took {seconds:.2f} s")

    def suspect(self, reason: str) -> None:
        """Keep the first reason."""
        self.reason = self.reason or reason
