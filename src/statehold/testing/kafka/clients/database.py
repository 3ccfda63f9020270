"""A sinks' database as one process reaches it: slow, cut off, or with a commit that arrives late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from statehold.bound.sink import Connect, DatabaseTrouble, Rows, SinkPosition
from statehold.errors import StateholdError
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.faults import CallFault
from statehold.testing.memory.database import MemoryDatabase, MemorySession

T = TypeVar("T")


class SimulatedSession:
    """`statehold.bound.sink.Session`. Its calls are points of the scheduler: connect_database, take, commit_rows."""

    def __init__(self, process: SimulatedProcess, session: MemorySession, partition: int, timeout: float) -> None:
        self._process, self._session, self._partition, self._timeout = process, session, partition, timeout

    def take(self, *, again: bool) -> SinkPosition | None:
        return self._call("take", lambda: self._session.take(again=again))

    def commit(self, held: SinkPosition, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        def commit() -> None:
            self._session.commit(held, position, note, rows)

        self._call("commit_rows", commit)

    def close(self) -> None:
        self._session.close()

    def _call(self, name: str, effect: Callable[[], T]) -> T:
        return request(self._process, name, effect, self._partition, self._timeout)


def request(process: SimulatedProcess, name: str, effect: Callable[[], T], partition: int, timeout: float) -> T:
    """Do a request of a session.

    A fault with `copy` and `never` delivers the request when the session has abandoned it: at the time-out.
    """
    late: list[CallFault] = []

    def timed_out() -> DatabaseTrouble:
        if late:
            process.kafka.timers.after(0.0, lambda: _arrive_late(effect))
        return DatabaseTrouble(f"{name}: no answer in time")

    def noted(fault: CallFault) -> None:
        if fault.copy and fault.never and not fault.after:
            late.append(fault)

    deadline = process.kafka.clock() + timeout
    return process.request(
        name, effect, deadline=deadline, timed_out=timed_out, subject="database", partition=partition, noted=noted
    )[0]


def _arrive_late(effect: Callable[[], object]) -> None:
    with suppress(StateholdError):  # because nothing waits for the answer
        effect()


def connector(process: SimulatedProcess, database: MemoryDatabase, timeout: float) -> Connect:
    """Return the connector of one assignment in this process. `timeout`: seconds of each call."""
    connect = database.connector()

    def connected(partition: int, ends: Callable[[], bool]) -> SimulatedSession:
        session = request(process, "connect_database", lambda: connect(partition, ends), partition, timeout)
        assert isinstance(session, MemorySession)
        return SimulatedSession(process, session, partition, timeout)

    return connected
