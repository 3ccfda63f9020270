"""Windows of many keys close at one record, and the process is killed again and again meanwhile (rule E6)."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from tests.support import verify
from tests.support.apps.windowed import MINUTE
from tests.support.processes import Process, await_true
from tests.support.stage import Stage, StageFactory

from statehold.messages.command import SLICE, command_of
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord

pytestmark = pytest.mark.kafka

KEYS, KILLS = 12_000, (4_500, 9_999)  # a third death would blame the record


class WindowedProcess(Process):
    command = ("-m", "tests.support.apps.windowed")


@pytest.mark.parametrize("interval", ["commit", pytest.param("30", marks=pytest.mark.long)])
def test_killed_while_the_windows_of_many_keys_close(stages: StageFactory, interval: str) -> None:
    # Many small transactions, so that most of the rows before a kill are committed.
    settings = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": interval, "STATEHOLD_COMMIT__MAX_RECORDS": "1000"}
    stage = stages(1).create_topics(**settings)
    kills = stage.directory / "kills"
    kills.mkdir()
    environment = stage.environment(PROBE_KILLS=str(kills), **settings)
    process = WindowedProcess("windowed", stage.directory, environment).start()
    stage.processes["windowed"] = process
    begin = int(time.time() * 1000) // MINUTE * MINUTE
    names = [f"key-{number:06}" for number in range(KEYS)]
    produce(stage, [(name, begin) for name in names])
    stage.await_position(KEYS)
    for number in KILLS:
        (kills / names[number]).touch()
    produce(stage, [("last", begin + MINUTE)])
    for _ in KILLS:
        await_true(lambda: process.exit_code is not None, "the process killed itself")
        assert written(stage)[-1].position(stage.names.input) == KEYS, (
            "no record after the boundary is handled before all windows have closed"
        )
        process.start()
    stage.await_position(KEYS + 1)
    assert process.stop() == 0
    (lines,) = verify.read_all(stage.servers, stage.output).values()
    assert [row.value.decode() for row in lines] == [f"{name} {begin} 1" for name in names]
    assert len(slices(stage)) > len(KILLS)
    assert all(record.delta for record in slices(stage))


def produce(stage: Stage, values: list[tuple[str, int]]) -> None:
    producer = Producer(
        {"bootstrap.servers": stage.servers, **verify.PATIENT, "queue.buffering.max.messages": KEYS + 1}
    )
    for value, timestamp in values:
        producer.produce(stage.names.input, value.encode(), partition=0, timestamp=timestamp)
    assert producer.flush(60) == 0


def written(stage: Stage) -> list[CommitRecord]:
    found = [records.unpack(row.value) for row in verify.read_all(stage.servers, stage.names.changelog)[0]]
    return [record for record in found if isinstance(record, CommitRecord)]


def slices(stage: Stage) -> list[CommitRecord]:
    """The commit records of transactions that ended before the record that was due."""
    return [record for record in written(stage) if any(map(is_slice, record.pinned))]


def is_slice(entry: Pinned) -> bool:
    command = command_of(PinnedMessage("", 0, entry))
    return command is not None and command.name == SLICE
