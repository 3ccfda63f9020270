"""Checks the database of a handler's sinks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

from statehold.bound.sink import DatabaseTrouble, PartitionSink, RowsRefused
from statehold.errors import StartError
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Finding, FindingsOf
from statehold.ops.reports.sinks import compared, open_session
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.discovery import require_commit_record

if TYPE_CHECKING:
    from statehold.worker.sinks.postgres import PostgresSession

_PSQL: Final = 'psql "$STATEHOLD_SINK__URL"'
_INIT: Final = "statehold sink init MODULE:SERVICE"
#: SQLSTATE
_NO_TABLE, _NO_COLUMN, _NO_INDEX, _NO_RIGHT = "42P01", "42703", "42P10", "42501"


class SinkDatabase:
    name: ClassVar = "sink-database"
    looks_at: ClassVar = (
        "the database of the sinks: does it answer, accept writes, keep commits, and accept rows for each sink (table, "
        "columns, unique index, rights); does its position of each partition follow from the last commit record"
    )
    fails: ClassVar = "one of these fails: no partition goes live, or the first commit is rejected"
    warns: ClassVar = "DELETE is not allowed on a sink's table; in development: it may lose commits"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, url = FindingsOf(self), case.settings.sink.url
        if not url:
            if case.sinks:
                fix = "export STATEHOLD_SINK__URL=postgresql://USER@HOST:5432/DATABASE, or [sink] url in the settings"
                yield seen.failed("sink.url", f"{len(case.sinks)} sinks, and no database is named", fix)
            else:
                why = "sink.url names no database" if case.sinks is None else "the service has no sinks"
                yield seen.passed("-", f"{why}, so none was asked")
            return
        try:
            session = open_session(case.settings, case.names, "statehold doctor")
        except StartError as error:
            yield seen.failed("psycopg", str(error), "pip install 'statehold[postgres]'")
            return
        except (DatabaseTrouble, RowsRefused) as error:
            yield seen.failed("sink.url", str(error), f"{_PSQL} -c 'SELECT 1', until that works with sink.password")
            return
        try:
            yield from self._server(case, seen, session)
            yield from self._tables(case, seen, session)
            yield from self._partitions(case, seen, session)
        finally:
            session.close()

    def _server(self, case: Case, seen: FindingsOf, session: PostgresSession) -> Iterator[Finding]:
        standby, synchronous, fsync = session.ask(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync')"
        )
        if standby:
            fix = "name the primary in sink.url, or all of them with ?target_session_attrs=read-write"
            yield seen.failed("sink.url", "the server is a standby, which accepts no writes", fix)
        report = seen.failed if case.strict else seen.warned
        loses = "a crash of the server loses committed rows, and the partitions then fail (SinkDisagrees)"
        if synchronous == "off":
            fix = f"{_PSQL} -c 'ALTER ROLE CURRENT_USER SET synchronous_commit = on'"
            yield report("synchronous_commit", f"it is off: {loses}", fix)
        if fsync == "off":
            fix = "as a superuser: psql -c 'ALTER SYSTEM SET fsync = on' -c 'SELECT pg_reload_conf()'"
            yield report("fsync", f"it is off: {loses}", fix)

    def _tables(self, case: Case, seen: FindingsOf, session: PostgresSession) -> Iterator[Finding]:
        if case.sinks is None:
            yield seen.unknown(
                "tables", "which sinks there are is not known by --name", "statehold doctor MODULE:SERVICE"
            )
        for sink in case.sinks or ():
            if (error := _refused(session, sink)) is not None:
                yield seen.failed(sink.table, str(error), _fix(sink, session, error))
            elif (error := _refused(session, sink, delete=True)) is not None:
                said = f"{error}: a handler that deletes is refused"
                yield seen.warned(sink.table, said, _grant(sink.table, session))
        (temporary,) = session.ask("SELECT has_database_privilege(current_database(), 'TEMPORARY')")
        if not temporary:
            user, database = session.ask("SELECT quote_ident(current_user), quote_ident(current_database())")
            fix = f"as the database's owner: psql -c 'GRANT TEMPORARY ON DATABASE {database} TO {user}'"
            yield seen.failed("TEMPORARY", "100 rows and more go by a temporary table, which is not allowed", fix)

    def _partitions(self, case: Case, seen: FindingsOf, session: PostgresSession) -> Iterator[Finding]:
        table = case.settings.sink.table
        if (error := _refused(session, None)) is not None:
            yield seen.failed(table, str(error), _INIT if _state(error) == _NO_TABLE else _grant(table, session))
            return
        for each in compared(case.settings, case.names, list(_commit_records(case))):
            if each.trouble:
                fix = _INIT if each.position is None else f"{_INIT} --adopt, once the rows are right"
                yield seen.failed(f"partition {each.partition}", each.trouble, fix)


def _commit_records(case: Case) -> Iterator[CommitRecord]:
    for place in case.places:
        yield require_commit_record(case.reader, case.names.changelog, place.partition, "look at the sinks")


def _refused(session: PostgresSession, sink: PartitionSink[Any] | None, *, delete: bool = False) -> RowsRefused | None:
    try:
        session.explain(sink, delete=delete)
    except RowsRefused as error:
        return error
    return None


def _state(error: RowsRefused) -> str:
    return str(getattr(error.__cause__, "sqlstate", None) or "")


def _grant(table: str, session: PostgresSession) -> str:
    (user,) = session.ask("SELECT quote_ident(current_user)")
    return f"as the table's owner: psql -c 'GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {user}'"


def _fix(sink: PartitionSink[Any], session: PostgresSession, error: RowsRefused) -> str:
    state, columns = _state(error), ", ".join(sink.columns)
    if state == _NO_RIGHT:
        return _grant(sink.table, session)
    if state == _NO_INDEX:
        return f"{_PSQL} -c 'CREATE UNIQUE INDEX ON {sink.table} ({', '.join(sink.key)})'"
    verb = {_NO_TABLE: "CREATE TABLE {} (...)", _NO_COLUMN: "ALTER TABLE {} ADD COLUMN ..."}.get(state, "\\d {}")
    return f"{_PSQL} -c '{verb.format(sink.table)}': the sink has {columns}"


CHECKS = (SinkDatabase,)
