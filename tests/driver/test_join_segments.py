"""Rows that leave by segments: outputs, states and digests are those of rows that leave one by one (rule D4)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal
from unittest.mock import patch

import msgspec
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support.handlers import commit_records
from tests.support.joins_before import JoinTableBefore

from statehold import BufferedRecord, Handler, JoinBuffer, Output, Record
from statehold.bound import table
from statehold.bound.attributes import bound_tables, tables_and_outputs
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import HandlerFailed, UsageError
from statehold.snapshot.format import records
from statehold.state.partition_table import PartitionTable
from statehold.testing import Driver

Event = Literal["commit", "crash", "rebalance", "full", "standby"]
Step = tuple[str, str, int] | Event


class Subject(Handler[str]):
    """Joins of two kinds; it also writes, deletes and reads rows itself, and fails once at `bad`."""

    inner = JoinBuffer(0.8, key=str, left=str, right=str)
    outer = JoinBuffer(0.5, key=str, left=str, right=str, join="outer", grace=0.3)
    out = Output("out", value=str)
    failed = False

    def on_record(self, record: Record[str]) -> None:
        what, key = record.value.split()
        row = key, "left", record.timestamp, 7
        for name, buffer in (("inner", self.inner), ("outer", self.outer)):
            if what == "put":
                with suppress(UsageError):  # its time is over
                    buffer.put(row, BufferedRecord(left=what))
            elif what == "delete":
                for each in [each for each in buffer if each[0] == key][::2]:
                    buffer.delete(each)
            elif what in ("left", "right"):
                found = buffer.left(record, key, what) if what == "left" else buffer.right(record, key, what)
                self.out.send(f"{name} {record.offset} {found}")
            self.out.send(f"{name} {sorted(buffer.items())}")
        if what == "bad" and not type(self).failed:
            type(self).failed = True
            raise ValueError("cannot do that")

    def on_unmatched(self, name: str, key: str, side: str, value: str, timestamp: int) -> None:
        self.out.send(f"{name} {key} {side} {value} {timestamp}")

    def on_late(self, name: str, key: str, record: Record[Any]) -> None:
        self.out.send(f"{name} late {record.offset}")


class Before(Subject):
    """The same with the reference."""


with patch.object(table, "JoinTable", JoinTableBefore):
    tables_and_outputs(Before)
    bound_tables(Before, True)

#: what to do with a key, and milliseconds since the record before
FED = st.tuples(
    st.sampled_from(["left", "left", "right", "right", "put", "delete", "bad"]),
    st.sampled_from("abc"),
    st.sampled_from([0, 0, 1, 40, 90, 250, 900, 5_000, -60, -300]),
)
STEPS = st.lists(
    st.one_of(FED, FED, FED, FED, st.sampled_from(["commit", "crash", "rebalance", "full", "standby"])), max_size=60
)


def tables(driver: Driver) -> dict[str, PartitionTable[Any, Any]]:
    return vars(driver.handler())


#: in production a table does not check what a handler does, and knows which rows are new
PRODUCTION = Settings(
    service=ServiceSettings(mode="production"),
    snapshot=SnapshotSettings(delta_interval="commit"),
    commit=CommitSettings(max_records=1_000_000, early=False),
)


def run(kind: type[Subject], steps: list[Step], batch: int, settings: Settings | None = None) -> Driver:
    kind.failed = False
    driver = Driver(kind, batch=batch, autocommit=False, input="input", settings=settings)
    now = 1_750_000_000_000
    for step in steps:
        try:
            if isinstance(step, tuple):
                now += step[2]
                driver.feed(f"{step[0]} {step[1]}", timestamp=now)
            elif step == "full":
                driver.take_full()
            elif step == "rebalance":
                driver.rebalance()
            elif step == "standby":
                driver.commit()
                driver.stand_by()
                driver.crash()
                driver.restore()
            elif step == "crash":
                driver.crash()
                driver.restore()
            else:
                driver.commit()
        except HandlerFailed:
            driver.restore()
    try:
        driver.commit()
    except HandlerFailed:
        driver.restore()
        driver.commit()
    return driver


@given(steps=STEPS, batch=st.integers(1, 4), settings=st.sampled_from([PRODUCTION, None]))
@example(
    steps=[("left", "a", 0), ("left", "a", 90), "commit", ("right", "a", 800), "commit", ("right", "a", 1)],
    batch=1,
    settings=None,
)
@example(
    steps=[
        *(("left", "a", 0), ("right", "b", 1), "commit", "crash", ("left", "a", 1), ("delete", "a", 1), "commit"),
        *(("left", "a", 1), ("bad", "a", 0), "commit", ("left", "c", 5_000), "commit"),
    ],
    batch=1,
    settings=None,
)
@example(steps=[("left", "a", 0), "commit", ("delete", "a", 0), ("left", "a", 0)], batch=1, settings=PRODUCTION)
@example(steps=[("left", "a", 0), "commit", ("right", "a", 1)], batch=1, settings=PRODUCTION)
@example(steps=[("put", "a", 0), "commit", ("put", "a", 0), "commit", "crash"], batch=1, settings=PRODUCTION)
@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_segments_give_the_states_and_outputs_of_rows_one_by_one(
    steps: list[Step], batch: int, settings: Settings | None
) -> None:
    driver, before = run(Subject, steps, batch, settings), run(Before, steps, batch)
    assert {table.plain for table in (tables(driver)["inner"], tables(driver)["outer"])} == {settings is PRODUCTION}
    assert isinstance(tables(before)["inner"], JoinTableBefore)
    assert not isinstance(tables(driver)["inner"], JoinTableBefore)
    assert driver.outputs("out") == before.outputs("out")
    found, wanted = commit_records(driver, past=True), commit_records(before, past=True)
    assert [(each.n, each.digest, each.keys) for each in found] == [(each.n, each.digest, each.keys) for each in wanted]
    driver.crash()
    driver.restore()
    for name in ("inner", "outer"):
        assert tables(driver)[name].stored == tables(before)[name].stored
    driver.replay()


def test_deletions_of_a_delta_come_by_side() -> None:
    driver = Driver(Subject, batch=1, autocommit=False, input="input")
    for count, side in enumerate(["left", "right"] * 3):
        driver.feed(f"{side} {'abc'[count // 2]}", timestamp=1_750_000_000_000 + count)
    driver.commit()
    driver.feed("left z", timestamp=1_750_000_010_000)
    driver.commit()
    decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[str, str, int, int]], list[bytes | None]]).decode
    written = [records.unpack(message.value()) for message in driver.broker.log(driver.names.changelog, 0).committed()]
    last = [part for part in written if isinstance(part, records.Part)][-1]
    entries = [decode(raw) for raw in last.entries if msgspec.msgpack.decode(raw)[0] == "inner"]
    gone = [row[1] for _, keys, values in entries for row, value in zip(keys, values, strict=True) if value is None]
    assert gone == ["left"] * 3 + ["right"] * 3
