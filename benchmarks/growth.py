"""`script/bench growth`: what keys, partitions and processes cost, against Kafka Streams in memory and on RocksDB.

Memory: resident bytes of a process that has written many keys of about 100 bytes, few keys, or few keys in many
partitions, and of its successor after a kill; of Java after a full collection of its heap. Keys and processes: records
per second and processor time of the trades of `throughput`, by accounts, and by processes that share 8 partitions.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import environments, kafka, load
from benchmarks.contender import CONTENDERS, Contender, Running, cpu_seconds, new_job
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
    """Resident bytes of one process after its writes, and of the one that restored them."""

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
        few, many, wide = (
            _stored(contender, keys, spread) for keys, spread in ((_FEW, 1), (stored, 1), (_FEW, partitions))
        )
        row = [contender.title]
        for state in ("written", "restored"):
            base = getattr(few, state)
            each_key = (getattr(many, state) - base) / (stored - _FEW)
            each_partition = (getattr(wide, state) - base) / (partitions - 1) / 1e6
            figures.add(f"{contender.letter}.{state}", base / 1e6, "MB")
            figures.add(f"{contender.letter}.{state}.key", each_key, "bytes")
            figures.add(f"{contender.letter}.{state}.partition", each_partition, "MB")
            row += [f"{base / 1e6:.0f}", f"{each_key:.0f}", f"{each_partition:.2f}"]
        rows.append(row)
        console.print(*row)
    heads = ["", "MB", "bytes a key", "MB a partition", "restored MB", "bytes a key", "MB a partition"]
    show(f"resident memory, {stored:,} keys of 100 bytes, {partitions} partitions", heads, rows)


def _stored(contender: Contender, keys: int, partitions: int) -> Memory:
    """Let a process write these keys, kill it, and let another one restore them."""
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        source, target = (kafka.create(bootstrap, name, partitions) for name in ("puts", "seen"))
        Writer(bootstrap, source, keys, partitions).pass_over()
        job = new_job(bootstrap, 0, source, target)
        committed = kafka.Committed(bootstrap, job["group"], source, partitions)
        found = []
        for prepare in (True, False):
            running = Running(contender, {**job, "prepare": prepare})
            if not prepare:  # the restored process answers when it is live
                Writer(bootstrap, source, keys, partitions).look(10 * partitions)
            wanted = keys if prepare else keys + min(keys, 10 * partitions)
            _await(lambda count=wanted: committed.total() >= count, running)
            time.sleep(_SETTLE)
            found.append(resident(running.process.pid))
            running.stop(kill=True)
            if prepare:
                wait_empty(bootstrap, job["group"])
        return Memory(*found)


def _await(reached: Any, running: Running) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not reached():
        if not running.alive() or time.monotonic() > deadline:
            raise RuntimeError(f"it did not get through\n{running.said()}")
        time.sleep(0.2)


def resident(pid: int) -> float:
    """Return the resident bytes of a process; a Java process collects its garbage before."""
    if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "java":
        for _ in range(2):
            subprocess.run(["jcmd", str(pid), "GC.run"], check=True, capture_output=True)
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) * 1024


def _keys(figures: Figures, records: int, numbers: list[int]) -> bool:
    rows, right = [], True
    with Cluster() as cluster:
        for accounts in numbers:
            source = kafka.create(cluster.bootstrap_servers, f"trades-{accounts}")
            load.fill(cluster.bootstrap_servers, source, records, accounts=accounts)
            for contender in _RATES:
                found = _run(cluster.bootstrap_servers, contender, source, records, processes=1, partitions=1)
                right = right and found is not None
                rate, cpu = found or (0.0, 0.0)
                figures.add(f"keys.{accounts}.{contender.letter}", rate, "records/s")
                figures.add(f"keys.{accounts}.{contender.letter}.cpu", cpu, "s/million records")
                rows.append([f"{accounts:,}, {contender.title}", f"{rate:,.0f}", f"{cpu:.1f}"])
            kafka.delete(cluster.bootstrap_servers, source)
    show("by number of keys", ["accounts", "records/s", "CPU s/million"], rows)
    return right


def _processes(figures: Figures, records: int, numbers: list[int]) -> bool:
    rows, right = [], True
    joining = {"group.initial.rebalance.delay.ms": str(round(_JOINING * 1000))}
    with Cluster(settings=joining) as cluster:
        source = kafka.create(cluster.bootstrap_servers, "trades", _SHARED)
        load.fill(cluster.bootstrap_servers, source, records)
        for processes in numbers:
            for contender in _RATES:
                found = _run(
                    cluster.bootstrap_servers, contender, source, records, processes=processes, partitions=_SHARED
                )
                right = right and found is not None
                rate, cpu = found or (0.0, 0.0)
                figures.add(f"processes.{processes}.{contender.letter}", rate, "records/s")
                figures.add(f"processes.{processes}.{contender.letter}.cpu", cpu, "s/million records")
                rows.append([f"{processes}, {contender.title}", f"{rate:,.0f}", f"{cpu:.1f}"])
    show(f"by number of processes, {_SHARED} partitions", ["processes", "records/s", "CPU s/million"], rows)
    return right


def _run(
    bootstrap: str, contender: Contender, source: str, records: int, *, processes: int, partitions: int
) -> tuple[float, float] | None:
    """Return records per second and processor time per million records, without the start of the processes."""
    target = kafka.create(bootstrap, f"totals-{source}-{contender.letter}-{processes}", partitions)
    job = new_job(bootstrap, records, source, target, prepare=False)
    if contender.letter == "statehold":
        settings = settings_of(job)
        ServiceTopics(settings, Names(job["group"], job["input"], ""), [target]).create("beginning")
    running = [Running(contender, job) for _ in range(processes)]
    ends = kafka.Ends(bootstrap, target, partitions)
    try:
        _await(lambda: ends.stable() > 0, running[0])
        started = sum(cpu_seconds(each.process.pid) for each in running)
        came = ends.wait(records, lambda: all(each.alive() for each in running), seconds=60 + records / 5_000)
        used = sum(cpu_seconds(each.process.pid) for each in running) - started
    finally:
        said = [each.said() for each in running]
        for each in running:
            each.stop(patience=30)
    stamps = sorted(message.timestamp()[1] for message in kafka.records_of(bootstrap, target, partitions))
    kafka.delete(bootstrap, target)
    if not came or len(stamps) != records:
        console.print(f"[red]{contender.title}: {len(stamps):,} of {records:,} outputs[/red]\n{said[0]}")
        return None
    outcome = load.Outcome(len(stamps), [], stamps)
    console.print(f"{processes} x {contender.title}: {outcome.rate:,.0f} records/s")
    return outcome.rate, used * 1e6 / records
