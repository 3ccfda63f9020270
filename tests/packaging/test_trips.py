"""How far a record travels through the code: the files, functions and calls between files of five trips.

A trip is short if a reader can follow it. Everything of the product counts, as a `Driver` runs it: with the checks of
development mode, and a comprehension as a function (until Python 3.11 it is one). So does generated code, as one file.
The driver itself does not count, because it stands in for Kafka and the manager.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest

import statehold
from statehold import Handler, Output, Record, Sink, Table, dead_letter
from statehold.testing import Driver

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(statehold.__file__).resolve().parent


class Order(msgspec.Struct, frozen=True):
    id: str
    qty: int


class Plain(Handler[Order]):
    positions = Table(key=str, value=int)
    fills = Output("fills", value=Order)

    def on_record(self, record: Record[Order]) -> None:
        self.positions[record.value.id] = record.value.qty
        self.fills.send(record.value, key=record.value.id)


class Failing(Handler[Order]):
    positions = Table(key=str, value=int)
    on_failure: ClassVar = {ValueError: dead_letter()}

    def on_record(self, record: Record[Order]) -> None:
        if record.value.qty < 0:
            raise ValueError("no")
        self.positions[record.value.id] = record.value.qty


class Rows(Handler[Order]):
    positions = Table(key=str, value=int)
    rows = Sink("rows", value=Order, key="id")

    def on_record(self, record: Record[Order]) -> None:
        self.positions[record.value.id] = record.value.qty
        self.rows.put(record.value)


def commit_a_record(driver: Driver, quantity: int = 2, key: str = "new") -> None:
    driver.feed(Order(key, quantity), key=key)
    driver.commit()


def warm(kind: type[Handler[Order]], **options: Any) -> Driver:
    """Return a driver that has committed a record, so that what happens once is done."""
    driver = Driver(kind, **options)
    commit_a_record(driver, key="warm")
    return driver


def record_to_commit() -> Callable[[], object]:
    driver = warm(Plain)
    return lambda: commit_a_record(driver)


def restore_to_live() -> Callable[[], object]:
    driver = warm(Plain)
    commit_a_record(driver)
    driver.crash()
    return driver.restore


def dead_letter_to_commit() -> Callable[[], object]:
    driver = warm(Failing)
    return lambda: commit_a_record(driver, -1)


def sink_row() -> Callable[[], object]:
    driver = warm(Rows)
    return lambda: commit_a_record(driver)


def drain_and_stop() -> Callable[[], object]:
    driver = warm(Plain, autocommit=False)
    driver.feed(Order("z", 3), key="z")
    return driver.stop


class Limits(NamedTuple):
    """The most functions and calls between files, and every file that the trip may enter."""

    functions: int
    calls: int
    files: str


LIMITS: dict[Callable[[], Callable[[], object]], Limits] = {
    record_to_commit: Limits(
        functions=84,
        calls=56,
        files="""
            api/record.py bound/output.py snapshot/format/frame.py snapshot/format/records.py state/digest.py
            state/partition_table.py state/state.py telemetry/registry.py worker/common/mailbox.py
            worker/full_snapshots/deltas.py worker/handler/engine.py worker/loop.py worker/participants/commands.py
            worker/partition.py worker/transaction/kafka_transaction.py worker/transaction/pipeline.py
            worker/transaction/plan.py worker/transaction/record_buffer.py
        """,
    ),
    restore_to_live: Limits(
        functions=140,
        calls=182,
        files="""
            bound/handler.py bound/output.py common/names.py config/sections/connection.py generated ports.py
            snapshot/format/chain_check.py snapshot/format/frame.py snapshot/format/partition_identity.py
            snapshot/format/recorded_types.py snapshot/format/records.py snapshot/gc_control.py
            snapshot/restore/delta_apply.py snapshot/restore/discovery.py snapshot/restore/estimate.py
            snapshot/restore/progress.py snapshot/restore/restore.py state/digest.py state/partition_table.py
            state/state.py state/types/description.py telemetry/log_events.py telemetry/registry.py
            worker/common/lifecycle.py worker/common/mailbox.py worker/common/memory_guard.py worker/common/ownership.py
            worker/common/signals.py worker/full_snapshots/deltas.py worker/full_snapshots/scheduler.py
            worker/handler/engine.py worker/loop.py worker/participants/commands.py worker/partition.py
            worker/recovery/checks.py worker/recovery/recovery.py worker/takeover.py
            worker/transaction/kafka_transaction.py worker/transaction/participants.py worker/transaction/pipeline.py
            worker/transaction/record_buffer.py worker/watchdog.py
        """,
    ),
    dead_letter_to_commit: Limits(
        functions=140,
        calls=122,
        files="""
            api/record.py bound/output.py bound/policies.py errors.py generated messages/dead_letter.py
            snapshot/format/frame.py snapshot/format/records.py state/digest.py state/partition_table.py state/state.py
            telemetry/log_events.py telemetry/registry.py worker/common/mailbox.py worker/failures/decisions.py
            worker/full_snapshots/deltas.py worker/handler/dead_letters.py worker/handler/engine.py
            worker/handler/record_failure.py worker/loop.py worker/participants/commands.py
            worker/participants/dead_letters.py worker/partition.py worker/transaction/kafka_transaction.py
            worker/transaction/pipeline.py worker/transaction/plan.py worker/transaction/record_buffer.py
            worker/transaction/rollback.py
        """,
    ),
    sink_row: Limits(
        functions=103,
        calls=72,
        files="""
            api/record.py bound/sink.py generated snapshot/format/frame.py snapshot/format/records.py state/digest.py
            state/partition_table.py state/state.py telemetry/registry.py worker/common/mailbox.py
            worker/full_snapshots/deltas.py worker/handler/engine.py worker/loop.py worker/participants/commands.py
            worker/partition.py worker/sinks/coordinator.py worker/sinks/row_bisection.py worker/sinks/stages.py
            worker/transaction/kafka_transaction.py worker/transaction/pipeline.py worker/transaction/plan.py
            worker/transaction/record_buffer.py
        """,
    ),
    drain_and_stop: Limits(
        functions=131,
        calls=165,
        files="""
            generated ports.py snapshot/format/frame.py snapshot/format/partition_identity.py
            snapshot/format/recorded_types.py snapshot/format/records.py snapshot/full.py state/digest.py
            state/partition_table.py state/state.py state/types/description.py telemetry/log_events.py
            telemetry/registry.py worker/common/context.py worker/common/lifecycle.py worker/common/mailbox.py
            worker/common/signals.py worker/drain.py worker/full_snapshots/deltas.py worker/full_snapshots/scheduler.py
            worker/full_snapshots/stages.py worker/handler/engine.py worker/loop.py worker/participants/commands.py
            worker/partition.py worker/transaction/kafka_transaction.py worker/transaction/participants.py
            worker/transaction/pipeline.py worker/transaction/record_buffer.py
        """,
    ),
}


class Trip:
    """A profiler: notes each call of the product's own functions on this thread."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.calls = 0
        #: file -> the first call that entered it
        self.files: dict[str, str] = {}
        self._stack: list[tuple[str, str] | None] = []
        self._known = {"<string>": "generated"}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            file = self._file(code.co_filename)
            called = (file, code.co_qualname) if file else None
            if called is not None:
                self._note(called)
            self._stack.append(called)
        elif event == "return" and self._stack:
            self._stack.pop()

    def _note(self, called: tuple[str, str]) -> None:
        caller = next((each for each in reversed(self._stack) if each is not None), ("the driver", ""))
        self.functions.add(called)
        self.calls += caller[0] not in ("the driver", called[0])
        self.files.setdefault(called[0], f"{' '.join(filter(None, caller))} calls {called[1]}")

    def _file(self, path: str) -> str:
        """Return the path in the package, or `generated`; '' for code of others and of the driver."""
        if path not in self._known:
            resolved = Path(path).resolve()
            # An installed package has the folders that a checkout links to.
            home = next((home for home in (INSTALLED, ROOT) if resolved.is_relative_to(home)), None)
            inside = "" if home is None else str(resolved.relative_to(home))
            self._known[path] = "" if inside.startswith(("testing/", "tests/", ".venv/")) else inside
        return self._known[path]


def travelled(action: Callable[[], object]) -> Trip:
    trip = Trip()
    sys.setprofile(trip)
    try:
        action()
    finally:
        sys.setprofile(None)
    return trip


@pytest.mark.parametrize("prepare", LIMITS, ids=lambda prepare: prepare.__name__)
def test_a_trip_stays_short(prepare: Callable[[], Callable[[], object]]) -> None:
    limits, trip = LIMITS[prepare], travelled(prepare())
    recorded = set(limits.files.split())
    entered = {file: call for file, call in sorted(trip.files.items()) if file not in recorded}
    assert not entered, "the trip enters further files:\n" + "\n".join(f"  {f}: {call}" for f, call in entered.items())
    left = sorted(recorded - set(trip.files))
    assert not left, f"remove from the list, because the trip no longer enters: {', '.join(left)}"
    assert len(trip.functions) <= limits.functions
    assert trip.calls <= limits.calls


def test_the_profiler_sees_a_file_that_came_in() -> None:
    trip = travelled(dead_letter_to_commit())
    assert trip.files["worker/failures/decisions.py"].startswith("worker/transaction/pipeline.py ")
    assert not [file for file in trip.files if file.startswith(("testing", "tests", "<"))]
