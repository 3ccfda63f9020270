"""`script/bench growth`: what keys, partitions and processes cost, against Kafka Streams in memory and on RocksDB.

Memory: resident bytes of a process that has written many keys of about 100 bytes, few keys, or few keys in many
partitions, and of its successor after a kill; of Java after a full collection of its heap. Keys and processes: records
per second and processor time of the trades of `throughput`, by accounts, and by processes that share 8 partitions.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks import environments, kafka, load
from benchmarks.contender import CONTENDERS, Contender, Running, cpu_seconds, memory_mb, new_job
from benchmarks.environments import Skipped
from benchmarks.keys import Writer
from benchmarks.report import Figures, console, show
from benchmarks.restore import STORES, wait_empty
from benchmarks.statehold_app import settings_of
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.dev import Cluster

PARTS: Final = ("memory", "keys", "processes")
#: the first process waits for the others, so that all get their partitions in one assignment
_JOINING: Final = 15.0
_SHARED: Final = 8
_PATIENCE: Final = 300.0
#: seconds without input after which a process is measured
_SETTLE: Final = 3.0
_FEW: Final = 1_000


def _streams() -> list[str]:
    # No least heap as in `restore`: it would be resident, whatever is in it.
    return ["java", "-Xmx4g", "-cp", environments.streams_class_path(), "Keys"]


_MEMORY: Final = (
    STORES["statehold"],
    Contender("streams", "Kafka Streams, in-memory store", _streams),
    Contender("rocksdb", "Kafka Streams, RocksDB", _streams, {"store": "rocksdb"}),
)
_RATES: Final = (
    replace(CONTENDERS["a_origin"], letter="statehold", title="statehold"),
    replace(CONTENDERS["f"], letter="streams", title="Kafka Streams, in-memory store"),
)


@dataclass
class Memory:
    """Resident MB of a process after its writes, and of its successor after the restore."""

    written: float
    restored: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `growth`."""
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated: {', '.join(PARTS)}")
    parser.add_argument("--stored", type=int, default=1_000_000, help="keys of `memory`")
    parser.add_argument("--partitions", type=int, default=64, help="of `memory`")
    parser.add_argument("--records", type=int, default=2_000_000, help="of `keys`; `processes` reads twice as many")
    parser.add_argument("--accounts", default="10000,100000,1000000")
    parser.add_argument("--processes", default="1,2,4,8")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when outputs were missing."""
    figures, right = Figures("growth"), True
    parts = options.only.split(",")
    if "memory" in parts:
        _memory(figures, options.stored, options.partitions)
    if "keys" in parts:
        right = _keys(figures, options.records, [int(each) for each in options.accounts.split(",")]) and right
    if "processes" in parts:
        right = _processes(figures, 2 * options.records, [int(each) for each in options.processes.split(",")]) and right
    figures.write()
    return 0 if right else 1


def _memory(figures: Figures, stored: int, partitions: int) -> None:
    rows = []
    for contender in _MEMORY:
        try:
            few = _stored(contender, _FEW, 1)
        except Skipped as reason:
            console.print(f"{contender.title} skipped: {reason}")
            continue
        many, wide = _stored(contender, stored, 1), _stored(contender, _FEW, partitions)
        row = [contender.title]
        for state in ("written", "restored"):
            base = getattr(few, state)
            each_key = (getattr(many, state) - base) * 2**20 / (stored - _FEW)
            each_partition = (getattr(wide, state) - base) / (partitions - 1)
            figures.add(f"{contender.letter}.{state}", base, "MB")
            figures.add(f"{contender.letter}.{state}.key", each_key, "bytes")
            figures.add(f"{contender.letter}.{state}.partition", each_partition, "MB")
            row += [f"{base:.0f}", f"{each_key:.0f}", f"{each_partition:.2f}"]
        rows.append(row)
        console.print(*row)
    heads = ["", "MB", "bytes a key", "MB a partition", "restored MB", "bytes a key", "MB a partition"]
    show(f"resident memory, {stored:,} keys of 100 bytes, {partitions} partitions", heads, rows)


def _stored(contender: Contender, keys: int, partitions: int) -> Memory:
    """Let a process write these keys, kill it, and let another one restore them."""
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        source, target = (kafka.create(bootstrap, name, partitions) for name in ("puts", "seen"))
        writer = Writer(bootstrap, source, keys, partitions)
        writer.pass_over()
        job = new_job(bootstrap, 0, source, target)
        committed = kafka.Committed(bootstrap, job["group"], source, partitions)
        written = _resident(contender, job, committed, keys)
        wait_empty(bootstrap, job["group"])
        looks = len(writer.look(10 * partitions))  # answered when the state is restored
        return Memory(written, _resident(contender, {**job, "prepare": False}, committed, keys + looks))


def _resident(contender: Contender, job: dict[str, Any], committed: kafka.Committed, count: int) -> float:
    """Return the resident MB of a process that has handled `count` records; Java collects its garbage before."""
    running = Running(contender, job)
    try:
        _await(lambda: committed.total() >= count, running)
        time.sleep(_SETTLE)
        if running.process.args[0] == "java":  # type: ignore[index]
            for _ in range(2):
                subprocess.run(["jcmd", str(running.process.pid), "GC.run"], check=True, capture_output=True)
        return memory_mb(running.process.pid)
    finally:
        running.stop(kill=True)


def _await(reached: Callable[[], bool], running: Running) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not reached():
        if not running.alive() or time.monotonic() > deadline:
            raise RuntimeError(f"it did not get through\n{running.said()}")
        time.sleep(0.2)


def _keys(figures: Figures, records: int, numbers: list[int]) -> bool:
    rows: list[list[str]] = []
    right = True
    with Cluster() as cluster:
        for accounts in numbers:
            source = kafka.create(cluster.bootstrap_servers, f"trades-{accounts}")
            load.fill(cluster.bootstrap_servers, source, records, accounts=accounts)
            rates = _Rates(cluster.bootstrap_servers, source, records, partitions=1)
            right = rates.measure(figures, "keys", accounts, rows, processes=1) and right
            kafka.delete(cluster.bootstrap_servers, source)
    show("by number of keys", ["accounts", "records/s", "CPU s/million"], rows)
    return right


def _processes(figures: Figures, records: int, numbers: list[int]) -> bool:
    rows: list[list[str]] = []
    right = True
    joining = {"group.initial.rebalance.delay.ms": str(round(_JOINING * 1000))}
    with Cluster(settings=joining) as cluster:
        source = kafka.create(cluster.bootstrap_servers, "trades", _SHARED)
        load.fill(cluster.bootstrap_servers, source, records)
        rates = _Rates(cluster.bootstrap_servers, source, records, partitions=_SHARED)
        for processes in numbers:
            right = rates.measure(figures, "processes", processes, rows, processes=processes) and right
    show(f"by number of processes, {_SHARED} partitions", ["processes", "records/s", "CPU s/million"], rows)
    return right


@dataclass
class _Rates:
    """Lets processes of each contender handle the records of one topic."""

    bootstrap: str
    source: str
    records: int
    partitions: int

    def measure(self, figures: Figures, axis: str, step: int, rows: list[list[str]], processes: int) -> bool:
        """Add each contender's figures at this step of the axis; False when outputs were missing."""
        right = True
        for contender in _RATES:
            try:
                found = self._run(contender, processes)
            except Skipped as reason:
                console.print(f"{contender.title} skipped: {reason}")
                continue
            if found is None:
                right = False
                continue
            rate, cpu = found
            figures.add(f"{axis}.{step}.{contender.letter}", rate, "records/s")
            figures.add(f"{axis}.{step}.{contender.letter}.cpu", cpu, "s/million records")
            rows.append([f"{step:,}, {contender.title}", f"{rate:,.0f}", f"{cpu:.1f}"])
        return right

    def _run(self, contender: Contender, processes: int) -> tuple[float, float] | None:
        """Return records per second and processor time per million records, without the start of the processes."""
        name = f"totals-{self.source}-{contender.letter}-{processes}"
        target = kafka.create(self.bootstrap, name, self.partitions)
        job = new_job(self.bootstrap, self.records, self.source, target, prepare=False)
        if contender.letter == "statehold":
            ServiceTopics(settings_of(job), Names(job["group"], job["input"], ""), [target]).create("beginning")
        running = [Running(contender, job) for _ in range(processes)]
        ends = kafka.Ends(self.bootstrap, target, self.partitions)
        try:
            _await(lambda: ends.stable() > 0, running[0])
            started = sum(cpu_seconds(each.process.pid) for each in running)
            seconds = 60 + self.records / 5_000
            came = ends.wait(self.records, lambda: all(each.alive() for each in running), seconds)
            used = sum(cpu_seconds(each.process.pid) for each in running) - started
        finally:
            said = [each.said() for each in running]
            for each in running:
                each.stop(patience=30)
        stamps = sorted(message.timestamp()[1] for message in kafka.records_of(self.bootstrap, target, self.partitions))
        kafka.delete(self.bootstrap, target)
        if not came or len(stamps) != self.records:
            console.print(f"[red]{contender.title}: {len(stamps):,} of {self.records:,} outputs[/red]\n{said[0]}")
            return None
        rate = load.Outcome(len(stamps), [], stamps).rate
        console.print(f"{processes} x {contender.title}: {rate:,.0f} records/s")
        return rate, used * 1e6 / self.records
