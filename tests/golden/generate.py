"""Write the golden files of what this tree writes: `python -m tests.golden.generate FORMAT`, once for each format.

A file of the folder `format-<n>` holds what a service left on its topics: one JSON line for each record, with its
topic, its offset and its bytes in base64. A written file is kept permanently: files are added, never changed.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from tests.golden import bank_v1, bank_v2, bank_v3
from tests.golden.around import Around
from tests.golden.bank_v1 import Move
from tests.golden.joined import Joined
from tests.golden.several import Several
from tests.support import inside

from statehold.admin.state.stopped_service import inputs_at
from statehold.common.version import __version__
from statehold.config.sections.effects_timers_sinks import TimeSettings
from statehold.config.sections.processing import SnapshotSettings
from statehold.config.settings import Settings
from statehold.snapshot import state_replacement as adopting
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.snapshot.restore.restore import restore
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink, MemoryReader, MemoryTransactions
from statehold.worker.handler.engine import Engine

HERE = Path(__file__).resolve().parent
MODES: dict[str, float | Literal["commit", "off"]] = {"commit": "commit", "interval": 2.0, "off": "off"}

#: those of `around`
AROUND: dict[str, float | Literal["commit", "off"]] = {"around": "commit", "around-interval": 2.0}
#: those of `ahead`
AHEAD: dict[str, float | Literal["commit", "off"]] = {"ahead": "commit", "ahead-interval": 2.0}
#: those of `joined`; in format 5, `joined-in-turn` was continued by a release of format 6, then by that of format 5
JOINED: dict[str, float | Literal["commit", "off"]] = {"joined": "commit", "joined-interval": 2.0}
#: those of `several`
SEVERAL: dict[str, float | Literal["commit", "off"]] = {"several": "commit", "several-interval": 2.0}
#: those of `shared`
SHARED: dict[str, float | Literal["commit", "off"]] = {"shared": "commit", "shared-interval": 2.0}


def moves(count: int, seed: int) -> Iterator[Move]:
    """The same moves for the same seed."""
    source = random.Random(seed)
    for number in range(count):
        account = f"account-{source.randrange(12):02}"
        yield Move(account, source.randrange(-5000, 10_000), 20_261_100 + number // 10, source.random() < 0.08)


def run(driver: Driver, rounds: int, seed: int) -> None:
    """Moves, full snapshots between them, and at the end moves that no full snapshot holds."""
    for number in range(rounds):
        for move in moves(15, seed + number):
            driver.feed(move, key=move.account)
            driver.advance(0.3)
        if number < rounds - 1:
            assert driver.take_full() is not None
    driver.commit()


def replace_state(driver: Driver) -> None:
    """A tool adopts the state as it is, in a new generation, and a new owner continues."""
    driver.commit()
    kind = type(driver.handler())
    driver.crash()
    place = inside.place(driver)
    producer = MemoryTransactions(driver.broker, driver.names, 0)
    producer.fence(lambda: False)
    reader = MemoryReader(driver.broker, lambda: False)
    old = last_commit_record(reader, driver.names.changelog, 0)
    assert old is not None
    new = partial(Engine, kind, 0)
    state = restore(reader, place, lambda: new().state, lambda *_: None, driver.clock).state
    inputs, end = inputs_at(old, driver.names), reader.bounds(driver.names.changelog, 0)[1]
    boundary = adopting.boundary(place, "second", old.n + 1, inputs, state, old, 0.0)
    sink = MemoryFullSink(driver.broker, driver.names.snapshot, 0)
    base = FullWriter(place, state, boundary, end, -1, sink, 4096).advance(boundary.n, -1, driver.clock)
    adoption = adopting.Adoption(
        place=place, old=old, lineage="second", base=base, digest=state.digest, keys=state.keys, inputs=inputs
    )
    reason = adopting.ReplacementReason(tool="golden", who="nobody", why="to have one", notes={"count": "1"})
    adopting.commit(producer, driver.broker.generation, [adoption], reason, 1_750_000_000.0)
    driver.restore()


def dump(driver: Driver, path: Path, written_by: str) -> None:
    """All three topics of partition 0, and with them what must come out of them."""
    if path.with_suffix(".jsonl").exists():
        print(f"{path} is kept as it is")
        return
    lines = []
    for topic in (*driver.names.inputs, driver.names.changelog, driver.names.snapshot):
        for message in driver.broker.log(topic, 0).committed():
            line: dict[str, Any] = {"topic": topic, "offset": message.offset()}
            line["value"] = base64.b64encode(message.value() or b"").decode()
            if message.key() is not None:
                line["key"] = base64.b64encode(message.key() or b"").decode()
            line["timestamp"] = message.timestamp()[1]
            lines.append(json.dumps(line))
    commit_record = driver.commit_record()
    tables = {name: sorted(driver.table(name).items()) for name in inside.lane(driver).engine().state.tables}
    expected = {
        "statehold": written_by,
        "position": driver.position(),
        "positions": {topic: commit_record.positions[topic] for topic in driver.names.inputs},
        "n": commit_record.n,
        "digest": commit_record.digest.hex(),
        "fulls": [ref.offset for ref in commit_record.full_snapshots],
        "tables": msgspec.to_builtins(tables),
    }
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")
    path.with_suffix(".expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def control_command(driver: Driver) -> None:
    """Commands of the control topic between the records of a gap that no delta covers."""
    for number, move in enumerate(moves(12, 400)):
        driver.feed(move, key=move.account)
        if number % 3 == 1:
            driver.command(f"note-{number}", b"hear", id=f"id-{number}", via_control_topic=True)
            driver.advance(1.0)
    driver.commit()


def around(interval: float | Literal["commit", "off"]) -> Driver:
    """What duplicates, expiry, timers, effects and dead letters remember, some of it after the last full."""
    driver = Driver(Around, delta_interval=interval, run_effects=True)
    for number in range(3):
        run(driver, 1, seed=500 + number)
        driver.feed(b"no move", key="account-03")
        if number == 1:
            assert driver.release("account-09", discard=True, why="it is a test")
        assert number == 2 or driver.take_full() is not None
    driver.commit()
    return driver


def ahead(interval: float | Literal["commit", "off"]) -> Driver:
    """Records of the year 2100 that moved no time, some of them in a gap that no delta covers."""
    values = Settings(snapshot=SnapshotSettings(delta_interval=interval), time=TimeSettings(max_ahead=3600.0))
    driver = Driver(Around, settings=values)
    for number, move in enumerate(moves(50, 700)):
        driver.feed(move, key=move.account, timestamp=4_102_444_800_000 + number if number % 7 == 5 else None)
        if number in (15, 30):
            assert driver.take_full() is not None
        driver.advance(0.3)
    driver.commit()
    return driver


def several(interval: float | Literal["commit", "off"]) -> Driver:
    """Two inputs, merged by time and in the order of arrival, with full snapshots and a gap."""
    driver, source = Driver(Several, delta_interval=interval, batch=4), random.Random(600)
    for number, move in enumerate(moves(60, 600)):
        driver.feed(move, key=move.account, input="moves", timestamp=source.randrange(1000))
        if source.random() < 0.4:
            driver.feed(source.randrange(-3, 4), input="rates", timestamp=source.randrange(1000))
        if number in (20, 35):
            assert driver.take_full() is not None
        driver.advance(0.3)
    driver.commit()
    return driver


def joined(interval: float | Literal["commit", "off"]) -> Driver:
    """Rows of a join: with a partner, without one, and over, some of them in a gap that no delta covers."""
    driver = Driver(Joined, delta_interval=interval)
    for number, move in enumerate(moves(120, 800)):
        driver.feed(move, key=move.account, timestamp=1_750_000_000_000 + number * 300)
        if number in (40, 80):
            assert driver.take_full() is not None
        driver.advance(0.3)
    driver.commit()
    return driver


def shared(interval: float | Literal["commit", "off"]) -> Driver:
    """Two families of full snapshots that share chunks, the second of a new owner."""
    driver = Driver(bank_v3.Bank, settings=Settings(snapshot=SnapshotSettings(delta_interval=interval, share=2)))
    for number in range(7):
        run(driver, 1, seed=900 + number)
        if number == 3:
            driver.crash()
            driver.restore()
        assert number == 6 or driver.take_full() is not None
    return driver


def main(number: int) -> None:
    """Each format was written by release 0.1.0, with the first, the second and the third release of the service."""
    kind: Any = {1: bank_v1.Bank, 2: bank_v2.Bank}.get(number, bank_v3.Bank)
    for name, interval in MODES.items():
        driver = Driver(kind, delta_interval=interval)
        run(driver, 3, seed=100)
        dump(driver, HERE / f"format-{number}" / name, __version__)
    if number > 2:
        driver = Driver(kind, delta_interval="off")
        run(driver, 3, seed=100)
        control_command(driver)
        dump(driver, HERE / f"format-{number}" / "beside", __version__)
    services = ((3, AROUND, around), (4, SEVERAL, several), (5, JOINED, joined), (6, AHEAD, ahead), (7, SHARED, shared))
    for since, modes, written in services:
        for name, interval in modes.items() if number >= since else ():
            dump(written(interval), HERE / f"format-{number}" / name, __version__)
    if number > 1:
        driver = Driver(kind)
        run(driver, 2, seed=200)
        driver.command("close-day")
        driver.command("take")
        replace_state(driver)
        run(driver, 3, seed=300)
        dump(driver, HERE / f"format-{number}" / "adopted", __version__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
