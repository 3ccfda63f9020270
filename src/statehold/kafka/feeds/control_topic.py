"""Reads the control topic of a service, for inputs whose other readers do not tolerate commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from confluent_kafka import Message

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.feeds.topic_feed import Feed, FeedLane
from statehold.messages.command import BadCommand
from statehold.ports import Asked
from statehold.telemetry.log_events import Log

#: seconds between two looks for a topic that does not exist or is not readable
_LOOK: Final = 10.0


class ControlFeed(Feed):
    """Its thread waits for the topic, because a service runs without it, and it may be created later."""

    def __init__(self, settings: Settings, names: Names, admin: Admin, log: Log) -> None:
        super().__init__(settings, names.group, names.control, log)
        self._largest, self._admin = largest_command(settings), admin
        self._exists, self._reported = False, ""

    def exists(self) -> bool:
        """Return whether the topic exists and is readable. Blocks for seconds until it does."""
        if not self._exists:
            try:
                self._exists = self._admin.describe([self.topic])[self.topic] is not None
            except KafkaTrouble as error:
                if str(error) != self._reported:
                    self._reported = str(error)
                    self.log.warning("kafka_retry", doing=f"describe {self.topic}", cause=self._reported)
        return self._exists

    def _run(self) -> None:
        while not self._ending.is_set():
            if self.exists():
                super()._run()
            else:
                self._ending.wait(_LOOK)

    def lane(self, partition: int, wake: Callable[[], None]) -> ControlLane:
        """`wake` ends the wait of an idle partition; the feed's thread calls it."""
        return ControlLane(self, partition, self._largest, wake)


class ControlLane(FeedLane):
    """`ports.Control` of one partition for one assignment."""

    def __init__(self, feed: Feed, partition: int, largest: int, wake: Callable[[], None]) -> None:
        super().__init__(feed, partition)
        self._wake = wake
        #: most bytes of a command, because a commit record repeats it
        self._largest = largest
        self._waiting: deque[tuple[int, Asked | None]] = deque()

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        self._follow(position)
        with self._lock:
            while self._waiting and self._waiting[0][0] < position:
                self._waiting.popleft()
            end = self._waiting[-1][0] + 1 if self._waiting else position
            return [asked for _, asked in self._waiting if asked is not None], end

    def gone(self) -> None:
        """Log that commands were deleted before they were read. They had no effect."""
        self._feed.log.warning("commands_gone", partition=self.partition, offset=self.next)

    def put(self, message: Message) -> None:
        offset = message.offset() or 0
        if 0 <= self.next > offset:
            return
        asked, refused = _asked(message, self._largest)
        if refused:
            self._feed.log.warning("command_rejected", partition=self.partition, offset=offset, cause=refused)
        with self._lock:
            self._waiting.append((offset, asked))
            self.next = offset + 1
        self._wake()


def largest_command(settings: Settings) -> int:
    """Return the most bytes of a user command of the control topic, because its commit record repeats it."""
    return settings.kafka.message_max_bytes // 4


def _asked(message: Message, largest: int) -> tuple[Asked | None, str]:
    """Return the command, or why the record is not a valid one."""
    try:
        asked = Asked.by(message)
    except BadCommand as error:
        return None, str(error)
    if asked is None:
        return None, "the header statehold-command is missing"
    if asked.pinned is not None and asked.pinned.size > largest:
        return None, f"{asked.command.name!r} takes {asked.pinned.size} bytes, more than {largest}"
    return asked, ""
