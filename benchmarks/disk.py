"""`script/bench disk`: tables larger than memory, against tables in memory and Kafka Streams on RocksDB.

All read the same topic: each key once, then accesses of which 90 % go to 5 % of the keys, then uniform ones. An access
reads the row of a key, 100 bytes, and writes it with the number of its puts so far. The process on disk and that on
RocksDB have at most `--memory`: pages of their files included, where the system lets a benchmark make a cgroup,
otherwise what they allocate (RLIMIT_DATA). Tables in memory have no limit. Then the process is killed while
it handles uniform accesses, starts with its files, is killed again and starts without them. At the end statehold takes
two full snapshots, of which the second has nothing to write. Rates are those of the second half of the accesses, from
the committed offsets.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import Producer

from benchmarks import environments, kafka
from benchmarks.contender import Contender, Running, cpu_seconds, memory_mb, new_job
from benchmarks.environments import Skipped
from benchmarks.keys import Put, answers, key_of
from benchmarks.limits import MemoryLimit
from benchmarks.report import Figures, console, show
from benchmarks.restore import restore_seconds, wait_empty
from statehold.config.common.units import parse_size
from statehold.dev import Cluster

#: bytes of a text, so that a row has 100 with its number
_TEXT: Final = 92
_TEXTS: Final = 10_007
#: coprime to the numbers of keys, so that the hot keys are spread over all
_STRIDE: Final = 7919
_HOT, _HOT_SHARE = 0.05, 0.9
#: keys whose numbers are compared
_LOOKS: Final = 200
#: accesses before a kill
_BEFORE_KILL: Final = 50_000
#: a broker notices a kill after this time
_SESSION: Final = 10.0
_SAID_EVERY: Final = 10.0
#: seconds without progress, because a restore of all keys may take minutes
_PATIENCE: Final = 900.0
_ACCESSES: Final = ("skewed", "uniform")
#: what a statehold process and Kafka Streams may hold of values that are in use
_VALUES: Final = 256_000_000
REACH: Final = {
    ("skewed", "memory"): 0.6,
    ("skewed", "rocksdb"): 1.2,
    ("uniform", "rocksdb"): 1.0,
}

_STATEHOLD: Final[dict[str, dict[str, Any]]] = {
    "group": {"session_timeout": _SESSION},
    "snapshot": {"share": 8},
}
_STREAMS: Final = {
    "session.timeout.ms": str(round(_SESSION * 1000)),
    "heartbeat.interval.ms": "1000",
    "statestore.cache.max.bytes": str(_VALUES),
}


def _statehold() -> list[str]:
    return [sys.executable, "-m", "benchmarks.keys_app"]


def _streams() -> list[str]:
    return ["java", "-Xms512m", "-Xmx768m", "-cp", environments.streams_class_path(), "Keys"]


CONTENDERS: Final = {
    "memory": Contender("memory", "statehold, tables in memory", _statehold),
    "disk": Contender("disk", "statehold, tables on disk", _statehold),
    "rocksdb": Contender("rocksdb", "Kafka Streams, RocksDB", _streams, {"store": "rocksdb", "settings": _STREAMS}),
}


@dataclass
class Result:
    """What one contender did; rates in records per second, processor time in seconds per million records."""

    contender: Contender
    rates: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    own_mb: float = 0.0
    files_mb: float = 0.0
    #: from the start of the process to its first answer
    live: dict[str, float] = field(default_factory=dict)
    restored: dict[str, float] = field(default_factory=dict)
    #: seconds of a full snapshot: a whole one, one of an unchanged state
    fulls: list[float] = field(default_factory=list)
    skipped: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `disk`."""
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--accesses", type=int, default=0, help="of each kind [default: a quarter of the keys]")
    parser.add_argument("--memory", type=parse_size, default="1.5GB", help="of the process on disk, and on RocksDB")
    parser.add_argument("--only", default=",".join(CONTENDERS), help=f"comma-separated: {', '.join(CONTENDERS)}")
    parser.add_argument("--no-restarts", action="store_true", help="measure the rates alone")
    parser.add_argument("--state-dir", default="", help="a directory on the disk to measure [default: a temporary one]")
    parser.add_argument("--seed", type=int, default=5)


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a number was wrong."""
    accesses = options.accesses or max(options.keys // 4, 200_000)
    results, right = [], True
    with Cluster() as cluster, MemoryLimit(options.memory) as limit:
        if limit.missing:
            console.print(f"[yellow]memory is not limited: {limit.missing}[/yellow]")
        elif limit.pages:
            console.print(f"[yellow]only allocations are limited, no pages of files: {limit.pages}[/yellow]")
        bootstrap = cluster.bootstrap_servers
        source = kafka.create(bootstrap, "accesses")
        accessing = Accesses(bootstrap, source, options.keys, options.seed)
        console.print(f"writing {options.keys:,} keys and twice {accesses:,} accesses")
        bounds = [accessing.fill(), *(accessing.access(accesses, kind) for kind in _ACCESSES)]
        accessing.look()
        for name in options.only.split(","):
            result = Result(CONTENDERS[name])
            results.append(result)
            with tempfile.TemporaryDirectory(prefix="statehold-bench-disk-", dir=options.state_dir or None) as folder:
                prefix = limit.prefix if name != "memory" else []
                run = _Run(bootstrap, accessing, result, Path(folder) / "state", prefix, bounds)
                try:
                    right = run.all(restarts=not options.no_restarts) and right
                except Skipped as reason:
                    result.skipped = str(reason)
    _report(results, options.keys, limit)
    return 0 if right else 1


class Accesses:
    """Writes the records, and knows the answer to each look."""

    def __init__(self, bootstrap: str, topic: str, keys: int, seed: int) -> None:
        self.topic, self._keys = topic, keys
        self._numbers = random.Random(seed)
        self._texts = ["".join(self._numbers.choices("abcdefghijklmnop", k=_TEXT)) for _ in range(_TEXTS)]
        self._encode = msgspec.json.Encoder().encode
        settings = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "compression.type": "lz4",
            "log_level": 2,
        }
        self._producer = Producer(settings)
        self._hot = max(1, round(keys * _HOT))
        looked = [self._place(self._numbers.randrange(self._hot)) for _ in range(_LOOKS // 2)]
        looked += [self._numbers.randrange(keys) for _ in range(_LOOKS // 2)]
        #: number of puts so far of the keys that are looked at
        self._puts = dict.fromkeys(looked, 0)
        #: the answers to all looks so far, in order
        self.wanted: list[tuple[str, int]] = []
        #: records so far
        self.count = 0

    def fill(self) -> int:
        """Put every key once, in an order that is not that of the keys; return the number of records so far."""
        return self._put(map(self._place, range(self._keys)))

    def access(self, count: int, kind: str) -> int:
        """Put this number of keys by chance; return the number of records so far."""
        return self._put(
            self._skewed() if kind == "skewed" else self._numbers.randrange(self._keys) for _ in range(count)
        )

    def look(self) -> int:
        """Ask for the numbers of some keys; return how many answers there are in all."""
        for key, puts in self._puts.items():
            self._send(Put(key_of(key), -1, "", look=True))
            self.wanted.append((key_of(key), puts - 1))
        assert self._producer.flush(kafka.LONG_WAIT) == 0
        return len(self.wanted)

    def _place(self, index: int) -> int:
        return index * _STRIDE % self._keys

    def _skewed(self) -> int:
        if self._numbers.random() < _HOT_SHARE:
            return self._place(self._numbers.randrange(self._hot))
        return self._numbers.randrange(self._keys)

    def _put(self, keys: Iterator[int]) -> int:
        puts, texts = self._puts, self._texts
        for key in keys:
            if key in puts:
                puts[key] += 1
            self._send(Put(key_of(key), 0, texts[self.count % _TEXTS]))
        assert self._producer.flush(kafka.LONG_WAIT) == 0
        return self.count

    def _send(self, one: Put) -> None:
        self.count += 1
        data, key = self._encode(one), one.key.encode()
        while True:
            try:
                self._producer.produce(self.topic, data, key, 0)
                return
            except BufferError:
                self._producer.poll(0.1)


class _Run:
    """One contender, from an empty state on."""

    def __init__(
        self, bootstrap: str, accessing: Accesses, result: Result, state: Path, prefix: list[str], bounds: list[int]
    ) -> None:
        self._bootstrap, self._accessing, self._result, self._state = bootstrap, accessing, result, state
        self._bounds = bounds
        contender = result.contender

        def command() -> list[str]:
            return [*prefix, *contender.command()]

        self._contender = Contender(contender.letter, contender.title, command, contender.options)
        target = kafka.create(bootstrap, f"seen-{contender.letter}")
        self._job = new_job(bootstrap, 0, accessing.topic, target, counts=True, state_dir=str(state))
        if contender.letter != "rocksdb":
            self._job["settings"] = _settings(contender.letter, state)
        self._committed = kafka.Committed(bootstrap, self._job["group"], accessing.topic, 1)
        self._answered = 0

    def all(self, *, restarts: bool) -> bool:
        """Measure all; False when a number was wrong, or the contender did not get through."""
        running = self._start()
        try:
            self._rates(running)
            if not self._is_right(running):
                return False
            if restarts:
                for how in ("kept", "lost") if self._contender.letter != "memory" else ("lost",):
                    running = self._killed(running, how)
                    if not self._is_right(running):
                        return False
                if self._contender.letter != "rocksdb":
                    self._full_snapshots(running)
        except _Stuck as error:
            console.print(f"[red]{self._contender.title}: {error}[/red]\n{running.said()}")
            return False
        finally:
            running.stop(kill=True)
            kafka.delete(self._bootstrap, self._job["output"])
        return True

    def _start(self) -> Running:
        return Running(self._contender, self._job)

    def _rates(self, running: Running) -> None:
        begin = 0
        for name, end in zip(("fill", *_ACCESSES), self._bounds, strict=True):
            middle = begin + (end - begin) // 2
            self._reach(running, middle, name)
            first = time.monotonic(), self._committed.total(), cpu_seconds(running.process.pid)
            self._reach(running, end, name)
            records, seconds = self._committed.total() - first[1], time.monotonic() - first[0]
            self._result.rates[name] = records / seconds
            self._result.cpu[name] = (cpu_seconds(running.process.pid) - first[2]) * 1e6 / records
            self._say(f"{name}: {records / seconds:,.0f} records/s")
            begin = end
        self._result.own_mb = memory_mb(running.process.pid, "RssAnon")
        self._result.files_mb = sum(each.stat().st_blocks * 512 for each in self._files()) / 2**20
        self._say(f"{self._result.own_mb:,.0f} MB of its own, files of {self._result.files_mb:,.0f} MB")

    def _files(self) -> Iterator[Path]:
        return (each for each in self._state.rglob("*") if each.is_file()) if self._state.is_dir() else iter(())

    def _reach(self, running: Running, count: int, doing: str) -> None:
        """Wait until this number of records is committed. :raises _Stuck:"""
        said, last, moved = time.monotonic(), 0, time.monotonic()
        # Kafka Streams logs how far a restore has come, and nothing else.
        logged, telling = 0, self._contender.letter == "rocksdb"
        while (now := self._committed.total()) < count:
            size = running.log.stat().st_size if telling else 0
            if now > last or size > logged:
                last, logged, moved = max(now, last), size, time.monotonic()
            if not running.alive() or time.monotonic() - moved > _PATIENCE:
                raise _Stuck(f"{doing}: it stopped at {now:,} of {count:,}")
            if time.monotonic() - said > _SAID_EVERY:
                said = time.monotonic()
                self._say(f"{doing}: {now:,} of {count:,}")
            time.sleep(0.1)

    def _is_right(self, running: Running) -> bool:
        """Wait for the answers to all looks, and compare them."""
        self._reach(running, self._accessing.count, "looks")
        wanted = self._accessing.wanted
        found = [(key, version) for key, version, _ in answers(self._bootstrap, self._job["output"])]
        self._answered = len(found)
        if found != wanted:
            wrong = [(one, other) for one, other in zip(found, wanted, strict=False) if one != other]
            console.print(
                f"[red]{self._contender.title}: {len(found)} of {len(wanted)} answers, wrong: {wrong[:3]}[/red]"
            )
        return found == wanted

    def _killed(self, running: Running, how: str) -> Running:
        """Kill it while it works, and start it again with its files or without them."""
        before = self._accessing.count
        self._accessing.access(_BEFORE_KILL, "uniform")
        self._reach(running, before + _BEFORE_KILL // 4, "before a kill")
        running.stop(kill=True)
        try:
            wait_empty(self._bootstrap, self._job["group"])
        except RuntimeError as error:  # the other figures are reported
            raise _Stuck(str(error)) from error
        self._accessing.look()
        if how == "lost":
            shutil.rmtree(self._state, ignore_errors=True)
        self._job["prepare"] = False
        started, answered = time.time(), self._answered
        running = self._start()
        self._reach(running, self._accessing.count, f"start with files {how}")
        first = answers(self._bootstrap, self._job["output"])[answered:][:1]
        if first:
            self._result.live[how] = first[0][2] / 1000 - started
            self._result.restored[how] = sum(restore_seconds(running.log.read_text(errors="replace"))[:1])
            self._say(
                f"files {how}: first answer after {self._result.live[how]:.1f} s, of it restoring "
                f"{self._result.restored[how]:.1f} s"
            )
        return running

    def _full_snapshots(self, running: Running) -> None:
        """Let it take a whole full snapshot, then one of the unchanged state."""
        names = ["--name", self._job["group"], "--input", self._accessing.topic]
        command = [sys.executable, "-m", "statehold.ops.cli.entry", "snapshot", "take", *names]
        for _ in range(2):
            before = len(_full_snapshots(running))
            settings = {"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": self._bootstrap}
            subprocess.run(command, env=os.environ | settings, check=False, stdin=subprocess.DEVNULL)
            deadline = time.monotonic() + _PATIENCE
            while len(found := _full_snapshots(running)) <= before:
                if not running.alive() or time.monotonic() > deadline:
                    raise _Stuck("it wrote no full snapshot")
                time.sleep(0.1)
            self._result.fulls.append(found[before])
            self._say(f"full snapshot {len(self._result.fulls)}: {found[before]:.2f} s")

    def _say(self, text: str) -> None:
        console.print(f"{self._contender.title}: {text}")


class _Stuck(Exception):
    """The contender makes no progress; the text says where."""


def _settings(letter: str, state: Path) -> dict[str, dict[str, Any]]:
    if letter == "memory":
        return _STATEHOLD
    return {**_STATEHOLD, "state": {"storage": "disk", "dir": str(state), "memory": _VALUES}}


def _full_snapshots(running: Running) -> list[float]:
    """Return the seconds of each full snapshot that the process has written."""
    lines = running.log.read_text(errors="replace").splitlines()
    return [float(json.loads(line)["seconds"]) for line in lines if '"full_written"' in line]


def _report(results: list[Result], keys: int, limit: MemoryLimit) -> None:
    figures, rows, times = Figures("disk"), list[list[str]](), list[list[str]]()
    for result in results:
        name = result.contender.letter
        if not result.rates:
            rows.append([f"{result.contender.title}: {result.skipped or 'failed'}"])
            continue
        for kind, rate in result.rates.items():
            figures.add(f"{name}.{kind}", rate, "records/s")
            figures.add(f"{name}.{kind}.cpu", result.cpu.get(kind, 0.0), "s/million records")
        for how, seconds in result.live.items():
            figures.add(f"{name}.{how}.live", seconds, "s")
            figures.add(f"{name}.{how}.restore", result.restored.get(how, 0.0), "s")
        for kind, seconds in zip(("whole", "unchanged"), result.fulls, strict=False):
            figures.add(f"{name}.full.{kind}", seconds, "s")
        figures.add(f"{name}.own", result.own_mb, "MB")
        figures.add(f"{name}.files", result.files_mb, "MB")
        rows.append(
            [
                result.contender.title,
                *(f"{result.rates.get(kind, 0):,.0f}" for kind in ("fill", *_ACCESSES)),
                *(f"{result.cpu.get(kind, 0):.1f}" for kind in _ACCESSES),
                f"{result.own_mb:,.0f}",
                f"{result.files_mb:,.0f}",
            ]
        )
        cells = [f"{result.live[how]:.1f}" if how in result.live else "" for how in ("kept", "lost")]
        cells += [f"{each:.2f}" for each in result.fulls]
        times.append([result.contender.title, *cells, *[""] * (4 - len(cells))])
    bound = f"disk and RocksDB within {limit.size / 1e6:,.0f} MB{', pages of files not counted' if limit.pages else ''}"
    if limit.missing:
        bound = "memory not limited"
    title = f"{keys:,} keys of 100 bytes, {bound}"
    show(title, ["records/s", "fill", "skewed", "uniform", "CPU s/M", "uniform", "own MB", "files MB"], rows)
    if any(any(row[1:]) for row in times):
        show("seconds", ["", "start, files kept", "files lost", "full snapshot", "unchanged"], times)
    by_name = {result.contender.letter: result.rates for result in results}
    for (kind, peer), reach in REACH.items():
        disk, other = by_name.get("disk", {}).get(kind), by_name.get(peer, {}).get(kind)
        if disk and other:
            figures.add(f"{kind} disk/{peer}", disk / other, "ratio")
            console.print(f"{kind}: disk / {CONTENDERS[peer].title} = {disk / other:.2f} (at least {reach})")
    figures.add("limit of pages", 0 if limit.pages else 1, "")
    figures.add("limit", 0 if limit.missing else limit.size / 2**20, "MB")
    figures.write()
