"""Compares the database of a service's sinks with its commit records, and repairs its positions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from statehold.admin.topics import reaching, require
from statehold.bound.attributes import sinks_of
from statehold.bound.sink import DatabaseTrouble, RowsRefused
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import SinkRefused, SinkUnreachable, StartError, ToolRefused, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.service import Service
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.discovery import require_commit_record
from statehold.worker.sinks.position import Disagreement, ahead_of, note_of

if TYPE_CHECKING:
    from statehold.worker.sinks.postgres import PostgresSession


#: SQLSTATE of a table that does not exist
_NO_TABLE: Final = "42P01"


class Standing(msgspec.Struct, frozen=True):
    """One partition. Positions are the next input offset; None if the database has no position."""

    partition: int
    #: position of the last commit record
    commit_record: int
    #: position of the database
    position: int | None
    epoch: int | None
    owner: str
    #: the obstacle to going live; "" if there is no obstacle
    trouble: str
    #: its position was replaced just now
    made: bool = False


def standings(service: Service, settings: Settings, *, make: bool = False, adopt: bool = False) -> list[Standing]:
    """Compare each partition's commit record with the database. Blocks.

    `make`: create a missing table of positions and missing positions; with `adopt` also replace positions
    that disagree or are ahead. A worker of such a partition is fenced.

    :raises UsageError: the service has no sinks. :raises StartError: no url, driver or broker, or a missing topic.
    :raises SinkUnreachable: :raises SinkRefused: :raises NoCommitRecord: a partition was never started.
    """
    if not sinks_of(class_of(service.handler)):
        raise UsageError(f"{class_of(service.handler).__name__} declares no Sink")
    try:
        _require(settings)
        return _look(settings, service.names, _commit_records(settings, service.names), make=make or adopt, adopt=adopt)
    except DatabaseTrouble as error:
        raise SinkUnreachable(f"the database of the sinks: {error}; is sink.url right?") from error
    except RowsRefused as error:
        absent = not (make or adopt) and getattr(error.__cause__, "sqlstate", "") == _NO_TABLE
        advice = (
            ". Next: run `statehold sink init MODULE:SERVICE`, which creates the table of positions" if absent else ""
        )
        raise SinkRefused(f"the database of the sinks: {error}{advice}") from error


def compared(settings: Settings, names: Names, commit_records: Sequence[CommitRecord]) -> list[Standing]:
    """Compare commit records that were read before.

    :raises DatabaseTrouble: :raises RowsRefused:
    """
    return _look(settings, names, commit_records, make=False, adopt=False)


def require_level(
    settings: Settings, doing: str, service: str, names: Names, commit_records: Sequence[CommitRecord]
) -> None:
    """Require that the database is at these commit records, which were read before.

    `doing`: the work of the tool. `service`: what repeats a transaction that only the database has.

    :raises ToolRefused: it is not. Also as `compared`.
    """
    for each in compared(settings, names, commit_records):
        if each.trouble or each.position != each.commit_record:
            raise ToolRefused(
                f"{names.input}[{each.partition}]@{each.commit_record}: {doing}: the database of the sinks is at "
                f"{each.position}: {each.trouble or 'ahead, by one transaction'}. Nothing was changed. Next: start "
                f"{service}, which repeats that transaction, and stop it"
            )


def open_session(settings: Settings, names: Names, who: str, partition: int = 0) -> PostgresSession:
    """Open a session for a tool. :raises StartError: no driver. :raises DatabaseTrouble: no database."""
    try:
        from statehold.worker.sinks.postgres import PostgresSession, Where
    except ImportError as error:
        raise StartError(f"a Sink needs an extra: pip install 'statehold[postgres]' ({error})") from error
    return PostgresSession(settings.sink, Where(names.group, names.input, who), partition, (), lambda: False)


def _require(settings: Settings) -> None:
    if not settings.sink.url:
        raise StartError("say where the database of the sinks is: sink.url")


def _look(
    settings: Settings, names: Names, commit_records: Sequence[CommitRecord], *, make: bool, adopt: bool
) -> list[Standing]:
    found = []
    for partition, commit_record in enumerate(commit_records):
        with closing(
            open_session(settings, names, f"statehold sink {'init' if make else 'show'}", partition)
        ) as session:
            if make and partition == 0:
                session.create()
            found.append(_one(session, partition, commit_record, names, make=make, adopt=adopt))
    return found


def _commit_records(settings: Settings, names: Names) -> list[CommitRecord]:
    admin = Admin(settings, names.group)
    with reaching(settings):
        partitions = require(admin, names, ())[names.input].partitions
    with closing(CommittedReader(settings, names.group, admin)) as reader:
        return [require_commit_record(reader, names.changelog, each, "look at the sinks") for each in range(partitions)]


def _one(
    session: PostgresSession, partition: int, commit_record: CommitRecord, names: Names, *, make: bool, adopt: bool
) -> Standing:
    looked, trouble, ahead = session.look(), "", None
    try:
        ahead = ahead_of(looked[0] if looked else None, commit_record, names)
    except Disagreement as error:
        trouble = str(error)
    made = (adopt and (trouble != "" or ahead is not None)) or (make and looked is None)
    if made:
        session.set(commit_record.position(names.input), note_of(commit_record))
        looked, trouble = session.look(), ""
    position = commit_record.position(names.input)
    if looked is None:
        return Standing(partition, position, None, None, "", trouble)
    held, owner = looked
    return Standing(partition, position, held.position, held.epoch, owner, trouble, made)
