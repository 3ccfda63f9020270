"""Detects that the group's coordinator does not answer: a member's heartbeat, or during a join another client.

librdkafka gives a silent coordinator up only at the end of the session. A join waits for all other members, so its
request may stay unanswered for group.max_poll_interval (default 5 min), on a connection that carries nothing else. A
new client therefore asks the group's coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

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
#: seconds without an answer after which a request is unanswered; a heartbeat's takes milliseconds
_UNANSWERED: Final = 3.0


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


class HeartbeatWatch:
    """Used by the thread that polls the consumer, with the coordinator's statistics of each second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: number of answers so far, time of the last one, and since when a request waits for the next one
        self._answers = -1
        self._answered: float | None = None
        self._waits: float | None = None

    def silent_since(self, coordinator: Mapping[str, Any]) -> float | None:
        """Return the monotonic time of the last answer if a request has waited for seconds, otherwise None.

        `coordinator`: librdkafka's numbers of this connection; {} before there is one. A join's request may wait.
        """
        now, answers, waiting = self._clock(), coordinator.get("rx", -1), bool(coordinator.get("waitresp_cnt"))
        idle = coordinator.get("rxidle", -1)
        if idle >= 0:  # a new connection has heard nothing
            self._answered = now - idle / 1e6
        if not waiting or answers != self._answers:
            self._answers, self._waits = answers, None
        if waiting and self._waits is None:
            self._waits = now
        return self._answered if self._waits is not None and now - self._waits >= _UNANSWERED else None
