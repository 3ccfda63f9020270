"""Closes consumers of a group that a test has made, so that no close can serve a queued rebalance and hang."""

from __future__ import annotations

from confluent_kafka import Consumer

#: polls after which a queue that is still not empty fails the test
MOST = 600


def close_members(*members: Consumer) -> None:
    """Leave the group, poll until nothing comes any more, close; one member after the other."""
    for member in members:
        member.unsubscribe()
        silent = 0
        for _ in range(MOST):
            silent = 0 if member.consume(100, 0.05) else silent + 1
            if silent == 3:
                break
        assert silent == 3, "a member that has left its group still gets records"
        member.close()
