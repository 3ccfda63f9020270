"""Follows the id of the topic that a consumer reads from, by a debug line of librdkafka.

A fetch names the topic by its id (Kafka 3.1), so a client delivers no record of a topic that was created again before
its metadata has the new id. It logs that change first, and a poll returns the line before any record of the new topic
(docs/explanation/assumptions.md).
"""

from __future__ import annotations

import re

from statehold.ports import InputTopic

#: the debug context of the line; a consumer that reads writes no other line in it
DEBUG = "topic"
_CHANGED = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)")


class TopicIdentity:
    """One topic in one client's metadata. A new client needs a new one."""

    def __init__(self, topic: str) -> None:
        #: without an id before the first metadata, or if librdkafka no longer logs the line
        self.topic = InputTopic(topic)

    def logged(self, message: str) -> None:
        """Take a line of the client's log, on the thread that polls it."""
        changed = _CHANGED.search(message)
        if changed is not None and changed[1] == self.topic.name:
            self.topic = InputTopic(changed[1], changed[2])
