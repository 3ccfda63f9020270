"""Records between two partitions when the state of a service is restored: its own sends by another key (rule H4).

A partition restored at transaction n sends again what came after n. So a record of a later transaction of its sender is
not written again; and if its receiver has handled it, the two states do not fit together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from statehold.api.output import Headers
from statehold.api.record import Message
from statehold.bound.output import ORIGIN, ORIGIN_HEADER, origin_of
from statehold.common.names import Names
from statehold.errors import ToolRefused
from statehold.ports import Reader
from statehold.snapshot.backup.archive import BackupManifest
from statehold.snapshot.backup.reading import file_of


class InFlight:
    """The records of each `Rekey` in a backup. `states`: the transaction at which each partition is restored."""

    def __init__(self, names: Names, states: Mapping[int, int]) -> None:
        self._names, self._states = names, states

    def is_sent_again(self, topic: str, message: Message) -> bool:
        """Return whether the sender of a record will send it again. Without a sender it was not sent by the service."""
        if topic not in self._names.rekeys:
            return False
        sender = _sender(message)
        return sender is not None and sender[1] > self._states.get(sender[0], -1)

    def headers(self, topic: str, message: Message) -> Headers | None:
        """Return the headers with which a record is written: its sender sent it in transaction 0.

        The restored partitions count their transactions from 0 again. A number of the former service would be that of
        another transaction at the next restore.
        """
        headers: Headers | None = message.headers()
        sender = _sender(message) if topic in self._names.rekeys else None
        if headers is None or sender is None:
            return headers
        rest = [header for header in headers if header[0] != ORIGIN_HEADER]
        return [*rest, (ORIGIN_HEADER, ORIGIN.pack(sender[0], 0, 0))]

    def require_causes(
        self,
        reader: Reader,
        source: Path,
        manifest: BackupManifest,
        positions: Mapping[int, Mapping[str, int]],
        *,
        accept_duplicates: bool,
    ) -> None:
        """Check that no partition has handled what its sender will send again. `positions`: of the restored states.

        :raises ToolRefused: one has; or a record has no sender, and `accept_duplicates` is false.
        """
        for topic in self._names.rekeys:
            for partition, at in positions.items():
                file = file_of(source, manifest, "input", topic, partition)
                for batch in reader.read(topic, partition, file.start, file.end):
                    for message in batch:
                        if _sender(message) is None:
                            if not accept_duplicates:
                                raise self._unknown(topic, partition, message)
                        elif (message.offset() or 0) < at[topic] and self.is_sent_again(topic, message):
                            raise self._too_early(topic, partition, message)

    def _too_early(self, topic: str, partition: int, message: Message) -> ToolRefused:
        sender, n = _sender(message) or (-1, -1)
        return ToolRefused(
            f"{topic}[{partition}]@{message.offset()}: restore the state: partition {partition} has handled this "
            f"record, which partition {sender} sent in transaction {n} and would send again, because its state is that "
            f"of transaction {self._states.get(sender, -1)}. Nothing was written. Next: restore the newest state "
            f"(without --to-offset and --at-time) of a backup that was made while the service was stopped"
        )

    def _unknown(self, topic: str, partition: int, message: Message) -> ToolRefused:
        return ToolRefused(
            f"{topic}[{partition}]@{message.offset()}: restore the state: the record does not name its sender, because "
            f"output.origin is off or another program wrote it, so its sender might send it again. Nothing was "
            f"written. Next: add --accept-duplicates if the service was stopped when the backup was made"
        )


def _sender(message: Message) -> tuple[int, int] | None:
    """Return partition and transaction of the sender; None if the record names none."""
    origin = origin_of(message.headers())
    return (origin.partition, origin.n) if origin is not None else None
