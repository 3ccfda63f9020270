"""What the handler has sent, on its way into a transaction: at once, or held back until the commit."""

from __future__ import annotations

from collections.abc import Sequence

from statehold.output import Sent
from statehold.worker.common.context import Tools
from statehold.worker.transaction.transaction import Committer

#: the part of commit.transaction_timeout that a batch may take before outputs wait for the commit
_SLOW = 0.1


class Outgoing:
    """Used by the partition's thread.

    Outputs wait here while an older transaction commits, and while the handler is so slow that a transaction that is
    open meanwhile might be ended by the broker.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._limit = tools.settings.commit.transaction_timeout
        self.waiting: list[Sent] = []
        #: outputs of the transaction that is being filled
        self.count = 0
        #: no transaction is to be open while the handler runs
        self.holding = False
        #: when the transaction that Kafka knows of was begun
        self.begun = 0.0

    def ran(self, seconds: float) -> None:
        """The handler took so long for a batch."""
        if seconds > _SLOW * self._limit:
            self.holding = True

    def take(self, outputs: Sequence[Sent], committer: Committer, *, wait: bool) -> None:
        """Send them, or keep them behind those that `wait`. Raises as `Committer.send`."""
        self.count += len(outputs)
        if wait or self.waiting:
            self.waiting += outputs
        else:
            self._send(outputs, committer)

    def send(self, committer: Committer) -> None:
        """Tell Kafka of what waits. Raises as `Committer.send`."""
        waiting, self.waiting = self.waiting, []
        self._send(waiting, committer)

    def _send(self, outputs: Sequence[Sent], committer: Committer) -> None:
        self.opens(committer)
        committer.send(outputs)

    def opens(self, committer: Committer) -> None:
        """A transaction begins now, if none is open."""
        if not committer.is_open:
            self.begun = self._tools.clock()

    def closed(self) -> int:
        """The transaction takes no more; how many outputs it has."""
        count, self.count = self.count, 0
        return count

    def forget(self) -> None:
        self.waiting, self.count = [], 0

    def outlived(self, committer: Committer) -> str:
        """Why the broker has ended the transaction by itself, or ''. From now on outputs wait."""
        seconds = self._tools.clock() - self.begun
        if not committer.is_open or seconds < self._limit:
            return ""
        self.holding = True
        return (
            f"open for {seconds:.1f} s, longer than commit.transaction_timeout ({self._limit:g} s), "
            f"so the broker has ended it; its records are handled again, with no transaction open meanwhile"
        )
