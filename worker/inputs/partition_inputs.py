"""Reads the inputs of one live partition into its mailbox, for a service with several."""

from __future__ import annotations

from collections.abc import Sequence

from statehold.api.record import Message
from statehold.ports import InputReading
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.inputs.merging_mailbox import MergingMailbox
from statehold.worker.inputs.turns import Turn


class PartitionInputs:
    """`ports.InputReceiver` of one live phase. The partition's thread opens and closes it, readers call the rest."""

    def __init__(self, tools: Tools, signals: Signals, mailbox: MergingMailbox) -> None:
        self._tools, self._signals, self._mailbox = tools, signals, mailbox
        self._stream = -1
        self._reading: InputReading | None = None

    def open(self, record: CommitRecord, first: Sequence[Turn] = ()) -> int:
        """Read all inputs from the positions of the last commit record. Return the mailbox's stream.

        `first`: the order of the first records.
        """
        assert self._tools.inputs is not None
        positions = {topic: record.positions[topic] for topic in self._tools.place.names.inputs}
        self._stream = self._mailbox.begin(list(positions.values()), first)
        self._reading = self._tools.inputs(positions, self._tools.place.topic_ids, self)
        return self._stream

    def close(self) -> None:
        """Read no more."""
        self._stream = -1
        if self._reading is not None:
            self._reading.close()

    def add(self, input: int, messages: Sequence[Message]) -> int:
        return self._mailbox.add(self._stream, input, messages)

    def end(self, input: int) -> None:
        self._mailbox.end(self._stream, input)

    def held(self, input: int) -> int:
        return self._mailbox.held(self._stream, input)

    def fail(self, cause: BaseException) -> None:
        if self._stream >= 0:
            self._signals.fail(cause)
