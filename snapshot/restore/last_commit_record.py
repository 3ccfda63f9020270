"""Finds the last mark of a partition from the end of the changelog (requirement B6)."""

from __future__ import annotations

from typing import Final

from statehold.common.version import __version__
from statehold.errors import NewerFormat, TornTransaction
from statehold.ports import Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Mark

_FIRST_STEP: Final = 64


def last_mark(reader: Reader, topic: str, partition: int) -> Mark | None:
    """Search back from the end for the newest mark; return None if the partition holds none.

    Fence first, or read only up to the last stable offset: otherwise the log may end within its owner's transaction.

    :raises frame.BadFrame: a record is foreign or damaged. :raises TornTransaction: a header follows the mark.
    :raises NewerFormat: a newer statehold has written here.
    """
    start, end = reader.bounds(topic, partition)
    step, upper, followed_by = _FIRST_STEP, end, -1
    while upper > start:
        lower = max(start, upper - step)
        found, follower = None, -1
        for batch in reader.read(topic, partition, lower, upper):
            for message in batch:
                try:
                    kind = frame.kind_of(message.value())
                except frame.UnknownFormat as error:
                    raise newer_format(reader, topic, partition, message.offset() or 0, error) from error
                if kind not in records.INCREMENT_KINDS:
                    raise frame.BadFrame(f"kind {kind!r} at offset {message.offset()} does not belong on {topic}")
                if kind == b"M":
                    found, follower = message.value(), -1
                elif follower < 0:
                    follower = message.offset() or 0
        followed_by = follower if follower >= 0 else followed_by
        if found is not None:
            mark = records.unpack(found)
            assert isinstance(mark, Mark)
            if followed_by >= 0:
                raise TornTransaction(
                    f"records of transaction {mark.n + 1} are committed without its mark: a torn commit. Nothing was "
                    f"changed. See docs/runbook/errors.md#torntransaction, and `statehold repair rebase --help`",
                    topic=topic,
                    partition=partition,
                    position=followed_by,
                )
            return mark
        upper, step = lower, step * 8
    return None


def newer_format(reader: Reader, topic: str, partition: int, offset: int, error: frame.UnknownFormat) -> NewerFormat:
    """Return the error for a record of an unknown format at `offset`; it names the writer, if a mark shows it."""
    writer = f"a release of statehold whose format is {error.version}"
    for batch in reader.read(topic, partition, offset, reader.bounds(topic, partition)[1]):
        for message in batch:
            writer = records.foreign_writer(message.value()) or writer
    return NewerFormat(
        f"written in format {error.version} by {writer}; this is statehold {__version__}, which reads formats "
        f"{frame.OLDEST} to {frame.NEWEST}. The upgrade was finished there, so there is no way back: run that release "
        f"or a newer one. Nothing was changed; see docs/upgrades.md",
        topic=topic,
        partition=partition,
        position=offset,
    )
