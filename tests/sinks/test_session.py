"""What a session promises, of PostgreSQL as of the driver's: rows and position together, one owner, nothing late."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, LiteralString, Protocol

import msgspec
import psycopg
import pytest
from examples.sinks.server import Postgres
from psycopg import sql
from tests.support.wire import How, Wire

from statehold import Sink
from statehold.bound.sink import (
    BadRow,
    Connect,
    DatabaseTrouble,
    Outdated,
    PartitionSink,
    Rows,
    RowsRefused,
    Session,
    SinkPosition,
)
from statehold.config.sections.effects_timers_sinks import SinkSettings
from statehold.testing.memory.database import MemoryDatabase
from statehold.worker.sinks.postgres import PostgresSession, Where, connect

pytestmark = pytest.mark.slow


class Row(msgspec.Struct, frozen=True):
    id: int
    part: str
    amount: int | None
    note: str = ""


SINK = PartitionSink(Sink("rows", value=Row, key=("id", "part")))
_numbers = itertools.count()


def rows(*puts: Row, deletes: tuple[tuple[int, str], ...] = ()) -> list[Rows]:
    bound = SINK.bind()
    for row in puts:
        bound.put(row)
    for key in deletes:
        bound.delete(*key)
    return [bound.rows(bound.take())]


def never() -> bool:
    return False


class Lab(Protocol):
    """A database with partition 0 at position 0."""

    def owner(self) -> Connect:
        """For one assignment."""
        ...

    def table(self) -> list[tuple[Any, ...]]: ...


class MemoryLab:
    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.database.held[0] = SinkPosition(0, 0)

    def owner(self) -> Connect:
        return self.database.connector()

    def table(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.database.tables.get("rows", {}).values())


class PostgresLab:
    """A schema of its own."""

    def __init__(self, server: Postgres, timeout: float = 20.0, port: int | None = None) -> None:
        schema = f"lab{next(_numbers)}"
        self.url = f"{server.url}?options=-csearch_path%3D{schema}"
        through = f"{server.url_at(port or server.port)}?options=-csearch_path%3D{schema}"
        self.settings = SinkSettings(url=through, timeout=timeout)
        self.sessions: list[PostgresSession] = []
        with psycopg.connect(server.url) as database:
            database.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        self.run(
            "CREATE TABLE rows (id bigint, part text, amount bigint CHECK (amount <> -13), note text NOT NULL, "
            "PRIMARY KEY (id, part))"
        )
        tool = PostgresSession(self.settings, Where("bank", "payments", "tool"), 0, [SINK], never)
        tool.create()
        tool.set(0, b"")
        tool.close()

    def owner(self) -> Connect:
        made = connect(self.settings, "bank", "payments", "test", [SINK])

        def noted(partition: int, ends: Callable[[], bool]) -> Session:
            session = made(partition, ends)
            assert isinstance(session, PostgresSession)
            self.sessions.append(session)
            return session

        return noted

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    def table(self) -> list[tuple[Any, ...]]:
        return sorted(self.run("SELECT id, part, amount, note FROM rows"))

    def run(self, text: LiteralString) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as database:
            cursor = database.execute(text)
            return cursor.fetchall() if cursor.description else []


class Labs(Protocol):
    def __call__(self, *, timeout: float = 20.0, port: int | None = None) -> PostgresLab: ...


@pytest.fixture
def labs(postgres: Postgres) -> Iterator[Labs]:
    """Makes schemas; what is connected there ends with the test."""
    made: list[PostgresLab] = []

    def lab(*, timeout: float = 20.0, port: int | None = None) -> PostgresLab:
        made.append(PostgresLab(postgres, timeout, port))
        return made[-1]

    yield lab
    for each in made:
        each.close()


@pytest.fixture(params=["memory", "postgres"])
def lab(request: pytest.FixtureRequest) -> Lab:
    if request.param == "memory":
        return MemoryLab()
    made: Lab = request.getfixturevalue("labs")()
    return made


def test_rows_and_position_are_one(lab: Lab) -> None:
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    assert held == SinkPosition(held.epoch, 0, b"")
    session.commit(held, 5, b"note", rows(Row(1, "a", 1), Row(2, "a", None), Row(3, "b", 3)))
    held = SinkPosition(held.epoch, 5, b"note")
    session.commit(held, 9, b"more", rows(Row(1, "a", 10, "again"), deletes=((2, "a"), (7, "x"))))
    assert lab.table() == [(1, "a", 10, "again"), (3, "b", 3, "")]
    taken = lab.owner()(0, never).take(again=False)
    assert taken == SinkPosition(held.epoch + 1, 9, b"more")


def test_an_older_owner_commits_nothing(lab: Lab) -> None:
    old, new = lab.owner()(0, never), lab.owner()(0, never)
    first = old.take(again=False)
    second = new.take(again=False)
    assert first is not None
    assert second is not None
    assert second.epoch > first.epoch
    with pytest.raises(Outdated, match="epoch") as rejected:
        old.commit(first, 5, b"", rows(Row(1, "a", 1)))
    assert rejected.value.fenced
    assert lab.table() == []
    new.commit(second, 3, b"", rows(Row(2, "a", 2)))
    assert lab.table() == [(2, "a", 2, "")]


def test_another_position_is_rejected(lab: Lab) -> None:
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    session.commit(held, 5, b"", [])
    with pytest.raises(Outdated, match="position 5, not 0") as rejected:
        session.commit(held, 9, b"", rows(Row(1, "a", 1)))
    assert not rejected.value.fenced
    assert lab.table() == []


def test_an_owner_comes_back_unless_another_came_first(lab: Lab) -> None:
    mine, theirs = lab.owner(), lab.owner()
    first = mine(0, never).take(again=False)
    second = mine(0, never).take(again=True)
    assert first is not None
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert theirs(0, never).take(again=False) is not None
    with pytest.raises(Outdated) as rejected:
        mine(0, never).take(again=True)
    assert rejected.value.fenced


def test_a_partition_without_a_row_is_absent(lab: Lab) -> None:
    assert lab.owner()(1, never).take(again=False) is None


# PostgreSQL alone


@pytest.mark.parametrize("count", [1, 99, 100, 2500], ids=str)
def test_few_rows_and_many_go_the_same_way(labs: Labs, count: int) -> None:
    lab = labs()
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    for step in range(1, 4):  # each replaces most of the rows before
        put = [Row(number, "é\t\\N", number * step or None, f"n{step}\n") for number in range(0, count * step, step)]
        session.commit(held, step, b"", rows(*put))
        held = held._replace(position=step)
    expected: dict[int, tuple[Any, ...]] = {}
    for step in range(1, 4):
        for number in range(0, count * step, step):
            expected[number] = (number, "é\t\\N", number * step or None, f"n{step}\n")
    assert lab.table() == sorted(expected.values(), key=lambda row: row[0])


@pytest.mark.parametrize("count", [1, 30, 500], ids=str)
@pytest.mark.parametrize("lab", ["memory", "postgres"], indirect=True)
def test_a_rejected_row_is_found_on_the_same_connection(lab: Lab, count: int) -> None:
    if isinstance(lab, MemoryLab):
        lab.database.refuses = lambda table, row: "check" if row["amount"] == -13 else ""
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    good = [Row(number, "a", number) for number in range(count)]
    for bad in {0, count // 2, count - 1}:
        given = [*good[:bad], Row(bad, "a", -13), *good[bad + 1 :]]
        with pytest.raises(BadRow, match="check") as rejected:
            session.commit(held, 1, b"", rows(*given, deletes=((-1, "a"),)))
        (wanted,) = rows(given[bad])
        assert rejected.value.row == wanted
    assert lab.table() == []
    session.commit(held, 1, b"", rows(*good))
    assert len(lab.table()) == count


def test_a_deletion_that_the_database_rejects_is_found(labs: Labs) -> None:
    lab = labs()
    lab.run(
        "CREATE TABLE children (id bigint, part text, FOREIGN KEY (id, part) REFERENCES rows); "
        "INSERT INTO rows VALUES (1, 'a', 1, ''), (2, 'a', 1, ''); INSERT INTO children VALUES (2, 'a')"
    )
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    with pytest.raises(BadRow, match="foreign key") as rejected:
        session.commit(held, 1, b"", rows(Row(3, "a", 1), deletes=((1, "a"), (2, "a"))))
    assert rejected.value.row == rows(deletes=((2, "a"),))[0]
    session.commit(held, 1, b"", rows(Row(3, "a", 1), deletes=((1, "a"),)))
    assert [row[0] for row in lab.table()] == [2, 3]


def test_a_search_without_an_answer_names_no_row(wired: tuple[PostgresLab, Wire]) -> None:
    lab, wire = wired
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    wire.strike(b"SAVEPOINT", "before")
    with pytest.raises(BadRow, match="check constraint") as rejected:
        session.commit(held, 1, b"", rows(Row(1, "a", -13), Row(2, "a", 1)))
    assert rejected.value.row is None
    with pytest.raises(DatabaseTrouble):
        session.commit(held, 1, b"", rows(Row(2, "a", 1)))


@pytest.mark.parametrize("count", [1, 500], ids=["insert", "copy"])
def test_an_error_of_the_database_names_the_row(labs: Labs, count: int) -> None:
    lab = labs()
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    with pytest.raises(BadRow, match=r"check constraint.*Failing row contains \(0, a, -13"):
        session.commit(held, 1, b"", rows(*(Row(number, "a", -13 if number == 0 else 1) for number in range(count))))
    assert lab.table() == []
    assert lab.run("SELECT position FROM statehold_sink") == [(0,)]


@pytest.mark.parametrize(
    ("prepare", "bad", "said"),
    [
        ("SELECT 1", Row(1, "a", 10**30), "out of range"),
        ("SELECT 1", Row(1, "a", 1, "\x00"), "NUL"),
        ("SELECT 1", Row(1, "a", 1, "\ud800"), "surrogates"),
        ("SELECT 1", Row(1, "a", 1, {"a": {1}}), "not JSON serializable"),  # type: ignore[arg-type]
        (
            (
                "ALTER TABLE rows ADD UNIQUE (note); ALTER TABLE rows ADD parent text REFERENCES rows (note) "
                "DEFERRABLE INITIALLY DEFERRED; ALTER TABLE rows ALTER parent SET DEFAULT 'absent'"
            ),
            Row(1, "a", 1),
            "foreign key",
        ),
        (
            (
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$; "
                "CREATE TRIGGER no BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION no()"
            ),
            Row(1, "a", 1),
            "not today",
        ),
    ],
    ids=["too large", "no text", "no unicode", "no json", "at the commit", "by a trigger"],
)
@pytest.mark.parametrize("count", [1, 200], ids=["insert", "copy"])
def test_a_rejected_row_and_a_rejected_table_raise_different_errors(
    labs: Labs, prepare: LiteralString, bad: Row, said: str, count: int
) -> None:
    lab = labs()
    lab.run(prepare)
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    others = [Row(number, "b", 1, str(number)) for number in range(count - 1)]
    with pytest.raises(BadRow, match=said):
        session.commit(held, 1, b"", rows(*others, bad))
    lab.run("DROP TABLE rows CASCADE")
    fresh = lab.owner()(0, never)
    with pytest.raises(RowsRefused, match="does not exist") as rejected:
        fresh.take(again=False)
    assert not isinstance(rejected.value, BadRow)


def test_a_table_that_is_not_there_is_rejected_when_the_epoch_is_taken(labs: Labs) -> None:
    lab = labs()
    lab.run("ALTER TABLE rows RENAME note TO remark")
    with pytest.raises(RowsRefused, match=r'column "note" does not exist'):
        lab.owner()(0, never).take(again=False)


def test_a_database_that_was_not_prepared_holds_no_position(labs: Labs) -> None:
    """Before `statehold sink init`; and when the table of positions is gone from below a running owner."""
    lab = labs()
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    lab.run("DROP TABLE statehold_sink")
    with pytest.raises(Outdated, match="its table statehold_sink does not exist") as rejected:
        session.commit(held, 1, b"", [])
    assert not rejected.value.fenced
    assert lab.owner()(0, never).take(again=False) is None


@pytest.fixture
def wired(postgres: Postgres, labs: Labs) -> Iterator[tuple[PostgresLab, Wire]]:
    with Wire(postgres.port) as wire:
        yield labs(port=wire.port), wire


@pytest.mark.parametrize(("how", "counts"), [("before", False), ("after", True)])
def test_a_connection_that_is_reset_at_the_commit_is_resolved_by_the_position(
    wired: tuple[PostgresLab, Wire], how: How, counts: bool
) -> None:
    lab, wire = wired
    owner = lab.owner()
    session = owner(0, never)
    held = session.take(again=False)
    assert held is not None
    wire.strike(b"COMMIT", how)
    with pytest.raises(DatabaseTrouble):
        session.commit(held, 5, b"", rows(Row(1, "a", 1)))
    assert wire.struck.wait(60)
    taken = owner(0, never).take(again=True)
    assert taken is not None
    assert taken.position == (5 if counts else 0)
    assert lab.table() == ([(1, "a", 1, "")] if counts else [])


def test_a_commit_that_arrives_late_comes_before_the_next_epoch_or_not_at_all(
    wired: tuple[PostgresLab, Wire],
) -> None:
    """The row's lock: taking the epoch waits for a commit that has begun, however long that takes."""
    lab, wire = wired
    session = lab.owner()(0, never)
    held = session.take(again=False)
    assert held is not None
    wire.strike(b"COMMIT", "held")
    with pytest.raises(DatabaseTrouble):
        session.commit(held, 5, b"", rows(Row(1, "a", 1)))
    taken: list[SinkPosition | None] = []
    successor = lab.owner()(0, never)
    thread = threading.Thread(target=lambda: taken.append(successor.take(again=False)), daemon=True)
    thread.start()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%statehold_sink%'"
    await_true(lambda: lab.run(waits) == [(1,)])
    wire.release()
    thread.join(60)
    assert taken
    assert taken[0] is not None
    assert taken[0].position == 5
    assert lab.table() == [(1, "a", 1, "")]


def test_the_server_ends_a_session_frozen_in_a_transaction(labs: Labs) -> None:
    lab = labs(timeout=1.0)
    zombie = lab.owner()(0, never)
    held = zombie.take(again=False)
    assert held is not None
    frozen = threading.Event()
    thawed = threading.Event()

    class Frozen(list[Rows]):
        def __iter__(self) -> Iterator[Rows]:
            frozen.set()
            thawed.wait(60)
            return iter(())

    ended: list[BaseException] = []

    def commit() -> None:
        try:
            zombie.commit(held, 5, b"", Frozen())
        except DatabaseTrouble as error:
            ended.append(error)

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    assert frozen.wait(60)
    new = lab.owner()

    def take() -> SinkPosition | None:
        try:
            return new(0, never).take(again=False)
        except DatabaseTrouble:
            return None

    taken = await_some(take)
    assert taken.position == 0
    thawed.set()
    thread.join(60)
    assert ended


@pytest.mark.parametrize("count", [5, 500], ids=["insert", "copy"])
def test_the_next_owner_ends_a_session_frozen_between_two_rows(labs: Labs, count: int) -> None:
    """In the middle of a COPY the server waits for rows, and calls that neither idle nor a statement's time."""
    lab = labs(timeout=1.0)
    zombie = lab.owner()(0, never)
    held = zombie.take(again=False)
    assert held is not None
    frozen, thawed, ended = threading.Event(), threading.Event(), list[BaseException]()

    class Frozen(list[tuple[Any, ...]]):
        def __iter__(self) -> Iterator[tuple[Any, ...]]:
            for number, row in enumerate(list.__iter__(self)):
                if number == count // 2:
                    frozen.set()
                    thawed.wait(60)
                yield row

    (plain,) = rows(*(Row(number, "a", 1) for number in range(count)))

    def commit() -> None:
        try:
            zombie.commit(held, 5, b"", [plain._replace(puts=Frozen(plain.puts))])
        except DatabaseTrouble as error:
            ended.append(error)

    thread = threading.Thread(target=commit, daemon=True)
    thread.start()
    assert frozen.wait(60)
    new = lab.owner()
    taken = await_some(lambda: new(0, never).take(again=False))
    assert taken.position == 0
    thawed.set()
    thread.join(60)
    assert ended
    assert lab.table() == []


def test_a_frozen_server_is_abandoned_and_comes_back(postgres: Postgres, labs: Labs) -> None:
    lab = labs(timeout=2.0)
    owner = lab.owner()
    session = owner(0, never)
    held = session.take(again=False)
    assert held is not None
    postgres.pause()
    try:
        began = time.monotonic()
        with pytest.raises(DatabaseTrouble):
            session.commit(held, 5, b"", rows(Row(1, "a", 1)))
        with pytest.raises(DatabaseTrouble):
            owner(0, never)
        assert time.monotonic() - began < 60
    finally:
        postgres.resume()
    taken = await_some(lambda: owner(0, never).take(again=True))
    assert (taken.position, lab.table()) in [(0, []), (5, [(1, "a", 1, "")])]


def test_a_call_ends_when_the_partition_is_lost(postgres: Postgres, labs: Labs) -> None:
    lab = labs()
    lost = threading.Event()
    session = lab.owner()(0, lost.is_set)
    held = session.take(again=False)
    assert held is not None
    postgres.pause()
    try:
        threading.Timer(0.2, lost.set).start()
        with pytest.raises(DatabaseTrouble, match="no answer in time"):
            session.commit(held, 5, b"", [])
    finally:
        postgres.resume()


def test_two_deadlocked_partitions_try_again(labs: Labs) -> None:
    lab = labs()
    lab.run("INSERT INTO statehold_sink SELECT service, input, 1, 1, 0, '', '' FROM statehold_sink")
    sessions = [lab.owner()(partition, never) for partition in (0, 1)]
    held = [session.take(again=False) for session in sessions]
    barrier, troubles = threading.Barrier(2), []

    class Slow(list[Rows]):
        """Each locks its own row first, then the other one's."""

        def __iter__(self) -> Iterator[Rows]:
            first, second = list.__iter__(self)
            yield first
            barrier.wait(60)
            yield second

    def commit(number: int) -> None:
        first, second = rows(Row(number, "a", 1))[0], rows(Row(1 - number, "a", 2))[0]
        here = held[number]
        assert here is not None
        try:
            sessions[number].commit(here, 5, b"", Slow([first, second]))
        except DatabaseTrouble as error:
            troubles.append(str(error))

    threads = [threading.Thread(target=commit, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(troubles) == 1
    assert "deadlock" in troubles[0]


def await_true(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def await_some(attempt: Callable[[], SinkPosition | None], seconds: float = 60.0) -> SinkPosition:
    until = time.monotonic() + seconds
    while True:
        try:
            if (found := attempt()) is not None:
                return found
        except DatabaseTrouble:
            pass
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_session_that_is_closed_holds_nothing_of_its_partition(postgres: Postgres) -> None:
    """The collector would not find it: what a restore freezes is never looked at again."""
    lab = PostgresLab(postgres)

    class Partition:
        def ends(self) -> bool:
            return False

    gc.disable()
    try:
        partition = Partition()
        held = weakref.ref(partition)
        session = connect(lab.settings, "bank", "payments", "test", [SINK])(0, partition.ends)
        assert session.take(again=False) is not None
        session.close()
        del session, partition
        assert held() is None
    finally:
        gc.enable()
