"""`statehold rebuild` on a real broker: next to the service, killed half way, again, and without a second output."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from tests.support.apps.rebuilt import counting
from tests.support.apps.tally import HOLD, Event, Total
from tests.support.local_service import Local
from tests.support.processes import ROOT, await_true
from tests.support.stage import Stage
from tests.support.verify import read_all
from tests.system.test_dead_letter_requests import statehold
from tests.system.test_migrate import replacements, states

from statehold import Service
from statehold.admin.inspection.topic_view import topic_view

pytestmark = pytest.mark.kafka

WORDS = ("rebuild", "tests.support.apps.rebuilt:service", "--from", "beginning", "--why", "ticket 9")


class NewRelease:
    """A stage whose service counts each amount twice."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def service(self, **more: str) -> Service:
        names, settings = self._stage.names, self._stage.settings(**more)
        return Service(names.service, input=names.input, handler=counting(2, self._stage.output), settings=settings)


class Running:
    """The command in a process of its own."""

    def __init__(self, stage: Stage, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "statehold.ops.cli.entry", *WORDS, *words],
            cwd=ROOT,
            env={
                **os.environ,
                **stage.environment(PROBE_COMMAND="1", PROBE_FACTOR="2"),
                "PYTHONPATH": str(ROOT),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def await_line(self, text: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None or any(text in line for line in self.lines), self.lines
            return any(text in line for line in self.lines)

        await_true(said, text)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(stage: Stage, *words: str) -> Iterator[Running]:
    made = Running(stage, *words)
    try:
        yield made
    finally:
        made.close()


def snapshot_ends(stage: Stage) -> list[int]:
    """Return the ends of the snapshot topic."""
    with topic_view(stage.settings(), stage.names) as view:
        return [view.reader.end(stage.names.snapshot, partition) for partition in range(stage.partitions)]


def sent(stage: Stage) -> int:
    return sum(map(len, read_all(stage.servers, stage.output).values()))


def expected(stage: Stage, factor: int) -> dict[int, dict[str, Total]]:
    found: dict[int, dict[str, Total]] = {}
    for partition, rows in read_all(stage.servers, stage.names.input).items():
        totals = found.setdefault(partition, {})
        for row in rows:
            before, amount = totals.get(row.key, Total()), msgspec.json.decode(row.value, type=Event).amount
            totals[row.key] = Total(before.count + 1, before.sum + factor * amount)
    return found


@pytest.mark.long
def test_a_rebuild_next_to_the_service_and_after_a_kill(two_partitions: Stage) -> None:
    """The command is killed when the full snapshot of partition 0 is written, and partition 1 is in the handler."""
    stage = two_partitions
    stage.feed(3000, keys=200)
    with Local(stage) as local:
        stage.await_all()
        same = statehold(stage, *WORDS, PROBE_FACTOR="1")
        assert "nothing was changed; --yes does it" in same
        assert "changed:" not in same
        shown = statehold(stage, *WORDS, PROBE_FACTOR="2")
        assert "table totals: 1" in shown
        assert "nothing was changed; --yes does it" in shown

        with running(stage, "--yes") as killed:
            killed.await_line("Stop the service now, all of its 1 process(es)")
            stage.feed(200, keys=200)
            stage.send(msgspec.json.encode(Event(1_000_000, HOLD)), 1)
            stage.count(1).await_all()
            stage.hold.touch()
            local.service.stop()
            before, count = snapshot_ends(stage)[0], sent(stage)
            await_true(lambda: snapshot_ends(stage)[0] > before, "the full snapshot of partition 0 is written")
    stage.hold.unlink()
    assert states(stage) == expected(stage, 1)
    assert [replacements(stage, partition) for partition in (0, 1)] == [[], []]

    with Local(stage):  # nothing has changed: the former code continues
        stage.feed(100, keys=200)
        stage.await_all()
    assert states(stage) == expected(stage, 1)
    said = statehold(stage, *WORDS, "--yes", PROBE_FACTOR="2")
    assert "changed, state generation" in said
    assert sent(stage) == count + 100
    assert states(stage) == expected(stage, 2)
    for partition in (0, 1):
        (replacement,) = replacements(stage, partition)
        assert replacement.why == "ticket 9"
        assert replacement.tool.startswith("rebuild ")
    with Local(NewRelease(stage)):
        stage.feed(100, keys=200)
        stage.await_all()
    assert states(stage) == expected(stage, 2)
    assert sent(stage) == count + 200

    again = statehold(stage, *WORDS, "--yes", PROBE_FACTOR="2")
    assert "replaced the state already; it is rebuilt again" in again
    assert states(stage) == expected(stage, 2)


def test_retention_and_other_members_are_rejected(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(600, keys=50)
    with Local(stage):
        stage.await_all()
    ends = stage.ends()
    stage.delete_records(stage.names.input, 1, 7)
    said = statehold(stage, *WORDS, "--yes", code=1, PROBE_FACTOR="2")
    assert f"{stage.names.input}[1]: needed from offset 0 on, the oldest kept one is 7" in said
    assert "Nothing was changed" in said
    assert stage.ends() == ends
    assert replacements(stage, 0) == []
