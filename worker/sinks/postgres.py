"""`statehold.bound.sink.Session` on PostgreSQL; the only importer of psycopg (extra `statehold[postgres]`).

The fence relies on row locks: an UPDATE waits for the row's lock, and under READ COMMITTED it checks its WHERE again
when it gets the lock. So a new epoch precedes or follows each commit of an older owner, and PostgreSQL rejects a commit
that follows it, however late it was sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.types.json import JsonbDumper

from statehold.bound.sink import (
    BadRow,
    DatabaseTrouble,
    Outdated,
    PartitionSink,
    Rows,
    RowsRefused,
    Session,
    SinkPosition,
)
from statehold.config.sections.effects_timers_sinks import SinkSettings
from statehold.errors import class_and_text

#: number of rows from which COPY into a temporary table is faster than an INSERT for each
_COPY_FROM: Final = 100
#: seconds between two checks whether a waiting call may continue to wait
_LOOK: Final = 0.1
#: classes of SQLSTATE that a retry may fix: connections, conflicts, resources, an operator's action, the system; also
#: a server that has become a standby, or that ended an idle transaction
_PASSING: Final = ("08", "40", "53", "55", "57", "58", "25006", "25P03")
#: classes that blame a row: its data, a constraint, a view's WITH CHECK OPTION, an error of a trigger
_OF_A_ROW: Final = ("22", "23", "44", "P0001")

CREATE: Final = """CREATE TABLE IF NOT EXISTS {table} (
    service text, input text, partition int, epoch bigint NOT NULL, position bigint NOT NULL, note bytea NOT NULL,
    owner text NOT NULL, written timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (service, input, partition))"""
_SELECT: Final = "SELECT epoch, position, note, owner FROM {table} WHERE {mine}"
_TAKE: Final = """UPDATE {table} SET epoch = epoch + 1, owner = %(owner)s
    WHERE {mine} AND (owner = %(owner)s OR NOT %(again)s) RETURNING epoch, position, note"""
#: The server waits for an owner that is suspended in the middle of a COPY, and no timeout of the server ends that. A
#: running owner has abandoned its transaction by then.
_END_FROZEN: Final = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = current_setting('application_name') AND application_name LIKE 'statehold %%'
    AND usename = current_user AND datname = current_database() AND pid <> pg_backend_pid()
    AND xact_start < clock_timestamp() - %(patience)s * interval '1 second'"""
_COMMIT: Final = """UPDATE {table} SET position = %(position)s, note = %(note)s, epoch = %(epoch)s, written = now()
    WHERE {mine} AND position = %(expected)s AND epoch <= %(epoch)s"""
_SET: Final = """INSERT INTO {table}
    VALUES (%(service)s, %(input)s, %(partition)s, 1, %(position)s, %(note)s, %(owner)s)
    ON CONFLICT (service, input, partition) DO UPDATE
    SET epoch = {table}.epoch + 1, position = excluded.position, note = excluded.note, owner = excluded.owner,
        written = now()"""
_MINE: Final = "service = %(service)s AND input = %(input)s AND partition = %(partition)s"


class Where(NamedTuple):
    """The key of a row, and its owner."""

    service: str
    input: str
    owner: str


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose calls time out, because libpq would wait permanently for a suspended server."""

    ends: Callable[[], bool] = bool

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """psycopg calls this for every wait, and resumes the generator every tenth of a second."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as done:
                return done.value
            ready = yield wanted
            if not ready and self.ends():
                raise psycopg.OperationalError("no answer in time")


class PostgresSession:
    """One connection; see `statehold.bound.sink.Session`."""

    def __init__(
        self,
        settings: SinkSettings,
        where: Where,
        partition: int,
        sinks: Sequence[PartitionSink[Any]],
        ends: Callable[[], bool],
    ) -> None:
        self._settings, self._ends, self._until = settings, ends, 0.0
        self._sinks = sinks
        self._key = {**where._asdict(), "partition": partition}
        #: table -> its temporary twin, which COPY fills
        self._twins: dict[str, sql.Identifier] = {}
        self._connection = self._connected(where.service, partition)

    def _connected(self, service: str, partition: int) -> _Bounded:
        settings = self._settings
        with self._call():
            more: dict[str, Any] = {"password": settings.password.reveal()} if settings.password else {}
            connection = _Bounded.connect(
                settings.url,
                autocommit=True,
                connect_timeout=max(2, round(settings.timeout)),
                application_name=f"statehold {service}[{partition}]",
                **more,
            )
            connection.ends = lambda: monotonic() >= self._until or self._ends()
            connection.adapters.register_dumper(dict, JsonbDumper)
            # An open transaction of a suspended process must not lock the row for the next owner.
            patience = max(1, round(settings.timeout * 1000))
            try:
                connection.execute(f"SET idle_in_transaction_session_timeout = {patience}")
                connection.execute(f"SET lock_timeout = {patience}")
            except BaseException:
                connection.close()
                raise
        return connection

    def take(self, *, again: bool) -> SinkPosition | None:
        with self._call():
            for sink in self._sinks:
                self._connection.execute(self._sql("SELECT {columns} FROM {target} LIMIT 0", sink.table, sink.columns))
            self._connection.execute(_END_FROZEN, {"patience": self._settings.timeout})
            try:
                row = self._connection.execute(self._sql(_TAKE), {**self._key, "again": again}).fetchone()
            except psycopg.errors.UndefinedTable:  # without `statehold sink init` there is neither table nor position
                return None
            if row is not None:
                return SinkPosition(*row)
            self._outdated()
        return None

    def commit(self, held: SinkPosition, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        twins = dict(self._twins)
        try:
            self._commit(held, position, note, rows)
        except BadRow as error:
            self._twins = twins
            raise BadRow(str(error), self._rejected(rows)) from error

    def _commit(self, held: SinkPosition, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        values = {**self._key, "position": position, "note": note, "epoch": held.epoch, "expected": held.position}
        with self._call(), self._connection.transaction():
            try:
                updated = self._connection.execute(self._sql(_COMMIT), values).rowcount
            except psycopg.errors.UndefinedTable as error:
                raise Outdated(f"its table {self._settings.table} does not exist", fenced=False) from error
            if updated != 1:
                self._outdated(held)
                raise Outdated("its row was deleted", fenced=False)
            for each in rows:
                self._delete(each)
                self._upsert(each)

    def close(self) -> None:
        """Close the connection; the server rolls back an open transaction."""
        # Break the cycle of connection and session, because `ends` holds a state that a frozen collector never frees.
        self._ends = self._connection.ends = bool
        with suppress(psycopg.Error):
            self._connection.close()

    # For tools

    def look(self) -> tuple[SinkPosition, str] | None:
        """Return the stored position and its owner."""
        with self._call():
            row = self._connection.execute(self._sql(_SELECT), self._key).fetchone()
        return None if row is None else (SinkPosition(*row[:3]), row[3])

    def create(self) -> None:
        """Create the table of positions, if it does not exist."""
        with self._call():
            self._connection.execute(self._sql(CREATE))

    def set(self, position: int, note: bytes) -> None:
        """Store a position; this fences the running owner."""
        with self._call():
            self._connection.execute(self._sql(_SET), {**self._key, "position": position, "note": note})

    def ask(self, text: LiteralString) -> tuple[Any, ...]:
        """Run a query and return one row; `{table}` is the table of positions."""
        with self._call():
            return self._connection.execute(self._sql(text)).fetchone() or ()

    def explain(self, sink: PartitionSink[Any] | None, *, delete: bool = False) -> None:
        """Check that PostgreSQL would accept writes to a sink's table, or to the table of positions.

        Changes nothing: EXPLAIN checks table, columns, unique index and rights as an execution would.

        :raises RowsRefused: it would not accept them.
        """
        statement = self._sql("UPDATE {table} SET epoch = epoch, position = position, note = note, written = written")
        if sink is not None and delete:
            statement = self._sql("DELETE FROM {target} WHERE ({columns}) IS NULL", sink.table, sink.key)
        elif sink is not None:
            insert, conflict = self._insertion(Rows(sink.table, sink.columns, sink.key, (), ()))
            statement = insert + self._sql("SELECT {columns} FROM {target}", sink.table, sink.columns) + conflict
        with self._call():
            self._connection.execute(sql.SQL("EXPLAIN ") + statement)

    # Rows

    def _rejected(self, rows: Sequence[Rows]) -> Rows | None:
        """Return the first change that the database rejects; None: unknown. Stores nothing."""
        changes = [
            each._replace(puts=puts, deletes=deletes)
            for each in rows
            for puts, deletes in [*(([], [key]) for key in each.deletes), *(([put], []) for put in each.puts)]
        ]
        try:
            with self._call(), self._connection.transaction(force_rollback=True):
                return self._first_rejected(changes)
        except DatabaseTrouble:
            self.close()  # the next call then reports it
        except RowsRefused:
            pass
        return None

    def _first_rejected(self, changes: list[Rows]) -> Rows | None:
        """Bisect by savepoints; the accepted changes before the rejected one stay in the transaction."""
        try:
            with _translated(), self._connection.transaction():
                for _, group in groupby(changes, attrgetter("table")):
                    some = list(group)
                    self._delete(some[0]._replace(deletes=[key for each in some for key in each.deletes]))
                    self._upsert(some[0]._replace(puts=[put for each in some for put in each.puts]), copy=False)
                self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except BadRow:
            half = len(changes) // 2
            if half == 0:
                return changes[0]
            return self._first_rejected(changes[:half]) or self._first_rejected(changes[half:])
        return None

    def _insertion(self, rows: Rows) -> tuple[sql.Composed, sql.Composed]:
        """Return the statement before and after the rows."""
        others = [sql.Identifier(name) for name in rows.columns if name not in rows.key]
        change = sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(name) for name in others)
        )
        conflict = sql.SQL(" ON CONFLICT ({}) DO {}").format(_names(rows.key), change if others else sql.SQL("NOTHING"))
        return self._sql("INSERT INTO {target} ({columns}) ", rows.table, rows.columns), conflict

    def _upsert(self, rows: Rows, *, copy: bool = True) -> None:
        if not rows.puts:
            return
        insert, conflict = self._insertion(rows)
        with self._connection.cursor() as cursor:
            if len(rows.puts) < _COPY_FROM or not copy:
                values = sql.SQL("VALUES ({})").format(sql.SQL(", ").join([sql.Placeholder()] * len(rows.columns)))
                cursor.executemany(insert + values + conflict, rows.puts)
                return
            twin = self._twin(rows)
            with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(twin, _names(rows.columns))) as stream:
                for row in rows.puts:
                    stream.write_row(row)
            # In one order, because two partitions with a key in common would deadlock otherwise.
            select = sql.SQL("SELECT {} FROM {} ORDER BY {}").format(_names(rows.columns), twin, _names(rows.key))
            cursor.execute(insert + select + conflict)

    def _delete(self, rows: Rows) -> None:
        if rows.deletes:
            same = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in rows.key)
            with self._connection.cursor() as cursor:
                cursor.executemany(self._sql("DELETE FROM {target} WHERE ", rows.table) + same, rows.deletes)

    def _twin(self, rows: Rows) -> sql.Identifier:
        """Return the temporary table, empty at each commit. A rollback drops it if its transaction created it."""
        twin = self._twins.get(rows.table)
        if twin is None:
            twin = self._twins[rows.table] = sql.Identifier(f"statehold_sink_{len(self._twins)}")
            make = "CREATE TEMPORARY TABLE {twin} ON COMMIT DELETE ROWS AS SELECT {columns} FROM {target} WITH NO DATA"
            self._connection.execute(self._sql(make, rows.table, rows.columns, twin=twin))
        return twin

    # Helpers

    def _outdated(self, held: SinkPosition | None = None) -> None:
        """:raises Outdated: the row exists, and its WHERE has rejected the update."""
        row = self._connection.execute(self._sql(_SELECT), self._key).fetchone()
        if row is None:
            return
        epoch, position, _, owner = row
        mine = f"this owner has {held.epoch}" if held is not None else "this owner has an older one"
        if held is not None and epoch <= held.epoch:
            raise Outdated(f"it holds position {position}, not {held.position}", fenced=False)
        raise Outdated(f"{owner} has taken epoch {epoch} of {self._settings.table}, {mine}", fenced=True)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Bound a call in time, and translate psycopg's errors."""
        self._until = monotonic() + self._settings.timeout
        with _translated():
            yield

    def _sql(self, text: LiteralString, target: str = "", columns: Sequence[str] = (), **more: Any) -> sql.Composed:
        parts: dict[str, Any] = {"table": _identifier(self._settings.table), "mine": sql.SQL(_MINE), **more}
        if target:
            parts |= {"target": _identifier(target), "columns": _names(columns)}
        return sql.SQL(text).format(**parts)


def connect(
    settings: SinkSettings, service: str, input: str, owner: str, sinks: Sequence[PartitionSink[Any]]
) -> Callable[[int, Callable[[], bool]], Session]:
    """Return the function with which a partition connects; each assignment is a separate owner."""

    def session(partition: int, ends: Callable[[], bool]) -> PostgresSession:
        return PostgresSession(settings, Where(service, input, owner), partition, sinks, ends)

    owner = f"{owner}/{uuid.uuid4().hex[:8]}"
    return session


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if isinstance(error, psycopg.OperationalError) or state.startswith(_PASSING):
            raise DatabaseTrouble(_said(error)) from error
        # Without a state psycopg itself cannot write a value.
        unwritable = not state and isinstance(error, (psycopg.DataError, psycopg.ProgrammingError))
        kind = BadRow if unwritable or state.startswith(_OF_A_ROW) else RowsRefused
        raise kind(_said(error)) from error
    except (TypeError, ValueError, OverflowError) as error:  # psycopg cannot write the value: a set in a dict, ...
        raise BadRow(class_and_text(error)) from error


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _said(error: psycopg.Error) -> str:
    """Return PostgreSQL's message and detail in one line."""
    detail = error.diag.message_detail
    text = str(error.diag.message_primary or error).strip().replace("\n", "; ")
    return f"{text}; {detail}" if detail else text
