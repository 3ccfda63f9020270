"""Read several inputs again in the order in which their records were handled, as the commit records keep it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from statehold.api.record import MergedMessage, Message
from statehold.errors import RetentionGap
from statehold.ports import Reader
from statehold.snapshot.format import runs
from statehold.snapshot.format.frame import BadFrame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore.delta_apply import damaged

#: most records of a batch
_BATCH = 500


class RecordedOrder:
    """The records of all inputs of one partition, from the positions of one commit record to those of a later one.

    Each input has a reader of its own, because the readers are used in turns.
    """

    def __init__(
        self, readers: Sequence[Reader], place: Place, begin: Mapping[str, int], end: Mapping[str, int]
    ) -> None:
        self._place, self._inputs = place, place.names.inputs
        self._positions = [begin[topic] for topic in self._inputs]
        self._ends = [end[topic] for topic in self._inputs]
        self._position = sum(self._positions)
        self._records: list[Iterator[Message]] = [
            chain.from_iterable(reader.read(topic, place.partition, begin[topic], end[topic]))
            for reader, topic in zip(readers, self._inputs, strict=True)
        ]

    def batches(self, recorded: Iterable[bytes]) -> Iterator[list[MergedMessage]]:
        """Yield the records in their order; `recorded`: `CommitRecord.runs` of the transactions between.

        :raises RetentionGap: an input lacks a record. :raises DamagedIncrement: these are no runs. Otherwise as
            `Reader.read`.
        """
        batch: list[MergedMessage] = []
        for packed in recorded:
            for message in self.transaction(packed):
                batch.append(message)
                if len(batch) >= _BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch
        self.finish()

    def transaction(self, packed: bytes) -> Iterator[MergedMessage]:
        """Yield the records of the next transaction; `packed` is its `CommitRecord.runs`. Raises as `batches`."""
        for index, count in self._runs(packed):
            for _ in range(count):
                yield self._next(index)

    def finish(self) -> None:
        """Require that no record is left. :raises RetentionGap: an input has more records than were handled."""
        for index, left in enumerate(self._records):
            if (more := next(left, None)) is not None:
                raise self._differs(index, more.offset() or 0, "more records than were handled")

    def _runs(self, packed: bytes) -> Iterator[runs.Run]:
        try:
            yield from runs.unpack(packed, len(self._inputs))
        except BadFrame as error:
            raise damaged(self._place, f"a commit record cannot be read: {error}") from error

    def _next(self, index: int) -> MergedMessage:
        message = next(self._records[index], None)
        if message is None:
            raise self._differs(index, self._positions[index], "fewer records than were handled")
        offset = message.offset() or 0
        merged = MergedMessage(message, index, self._position - self._positions[index] + offset)
        self._positions[index], self._position = offset + 1, merged.at + 1
        return merged

    def _differs(self, index: int, offset: int, what: str) -> RetentionGap:
        return RetentionGap(
            f"handle the gap again: up to offset {self._ends[index]} the input has {what}, so records were added or "
            f"deleted since, for example by compaction. Nothing was skipped. Next: `statehold snapshot verify` checks "
            f"the snapshots, and `statehold repair rebase MODULE:SERVICE --why TEXT --dry-run` shows how to continue "
            f"from one",
            topic=self._inputs[index],
            partition=self._place.partition,
            position=offset,
        )
