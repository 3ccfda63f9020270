"""Record effects that the handler requests in the open transaction, until its commit record takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from statehold.api.handler import Handler
from statehold.api.record import Numbering
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.snapshot.format.records import Effect
from statehold.worker.common.activity import Handling
from statehold.worker.handler.effect_calls import note, positional, weight


class EffectRecorder:
    """The effects of one handler; used by the partition's thread."""

    def __init__(self, handler: Handler[Any], handling: Handling, settings: Settings) -> None:
        self._handler, self._handling = handler, handling
        self.noted: list[Effect] = []
        #: limits of one transaction: effects, and their bytes in its commit record
        self._most, self._room = settings.effects.pending, effect_room(settings)
        self._weight = 0
        self.numbering = Numbering()

    def takes(self) -> bool:
        """Return whether an effect is to be noted; in a replay none is. :raises UsageError: it belongs to no record."""
        if self._handling.record is None:
            raise UsageError("effect() belongs to a record. Next: call it from on_record, on_batch or on_command")
        return not self._handler.replaying

    def note(self, function: Callable[..., object], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        record = self._handling.record
        assert record is not None
        key = (record.topic, record.partition, record.offset, self.numbering.next(record))
        effect = note(
            self._handler, function, key, positional(function, args, keywords), record.raw_key, record.timestamp
        )
        self.noted.append(effect)
        self._weight += weight((effect,))
        if self.crowded:
            self._handling.cut()  # because the commit record must fit a message; the rest waits for the next one

    @property
    def crowded(self) -> bool:
        """The open transaction has requested as many side effects as a commit record should name."""
        return self._weight >= self._room or len(self.noted) >= self._most

    def take(self) -> list[Effect]:
        taken, self.noted, self._weight = self.noted, [], 0
        return taken

    def forget(self) -> None:
        """Roll back the open transaction: its records request the effects again, with the same keys."""
        if self.noted:
            self.take()
        self.numbering.forget()


def effect_room(settings: Settings) -> int:
    """Return the bytes that pending effects may use in a commit record before records wait."""
    return settings.kafka.message_max_bytes // 8
