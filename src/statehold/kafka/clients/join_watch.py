"""Detects an outage that begins while the consumer joins its group.

A join waits for all other members, so its request may stay unanswered for group.max_poll_interval (default 5 min), on a
connection that carries nothing else. A new client therefore asks the group's coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.health.connectivity import GROUP, NoContact
from statehold.kafka.admin.groups import describe_group
from statehold.kafka.admin.tracked_client import TrackedClient
from statehold.kafka.common.client_log import quiet
from statehold.ports import Clock

#: librdkafka's states of a member whose request to the group is unanswered
JOINING: Final = ("wait-join", "wait-metadata", "wait-sync")
#: seconds of a join until the first question, because most joins are shorter; then seconds between two questions
_ASK_AFTER: Final = 2.0
_ASK_EVERY: Final = 3.0
#: seconds for the answer, the new client's connection included
_ANSWER: Final = 3.0


def ask_coordinator(settings: Settings, group: str) -> None:
    """Ask with a new client, because an old one may wait for a broker that is frozen. Blocks.

    :raises KafkaTrouble: the group's coordinator does not answer within seconds, or refuses.
    """
    describe_group(TrackedClient(quiet(client.admin(settings), "witness")), group, seconds=_ANSWER)


class JoinWatch:
    """Used by the thread that polls the consumer, once a second; the questions run on threads of their own."""

    def __init__(self, ask: Callable[[], object], contact: NoContact, clock: Clock) -> None:
        """`ask` returns if the group's coordinator answers. It raises KafkaTrouble after seconds if not."""
        self._ask, self._contact, self._clock = ask, contact, clock
        #: time of the last answer, or of the join's begin; None while the consumer does not join
        self._answered: float | None = None
        self._next = 0.0
        self._asking = False

    def saw(self, *, joining: bool) -> None:
        """Note whether the consumer joins. If it has for seconds, ask."""
        now = self._clock()
        if not joining:
            self._answered = None
        elif self._answered is None:
            self._answered, self._next = now, now + _ASK_AFTER
        elif now >= self._next and not self._asking:
            self._asking, self._next = True, now + _ASK_EVERY
            threading.Thread(target=self._question, args=(now,), name="witness", daemon=True).start()

    def _question(self, now: float) -> None:
        try:
            self._ask()
        except KafkaTrouble as error:
            since = self._answered
            if since is not None:  # otherwise the join has ended meanwhile
                self._contact.broken(GROUP, f"the group's coordinator does not answer, nor a join: {error}", since)
        else:
            if self._answered is not None:
                self._answered = now
            self._contact.works(GROUP)
        finally:
            self._asking = False
