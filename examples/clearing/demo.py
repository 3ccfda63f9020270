"""The demo: kills one of two processes during 200,000 trades, compacts, restarts it, and verifies every output.

`python -m examples.clearing.demo` prints `demo ok` and exits with 0 only if no output is lost or
duplicated.
"""

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from threading import Thread
from time import monotonic, time

from examples.clearing.app import Clearing
from examples.clearing.feed import records as keyed
from examples.clearing.market import trades
from examples.clearing.report import Report, takeover
from examples.clearing.verify import Verdict, verify
from examples.feeding import Feed
from examples.held import held_by
from examples.running import ServiceProcess, statehold, wait_until
from examples.topics import Progress
from statehold.common.names import Names
from statehold.dev import Cluster, JavaMissing
from statehold.dev.java import find_spark_java

TARGET = "examples.clearing.app:service"
CONFIG = "examples/clearing/clearing.toml"
PARTITIONS = 4
CALM, RUSH, NIGHT = 0.15, 0.60, 0.10
"""Shares of the trades that are sent at PACE, then without a limit, when the kill happens. During the compaction and
the restart of the killed process the rate is NIGHT_PACE, and PACE for the rest."""
NO_FULL_SNAPSHOTS = "snapshot.periodic_full=off"
"""Only the compaction and the stop write full snapshots."""
PACE = 7_500
"""Trades per second when the market is calm."""
NIGHT_PACE = 1_000
PATIENCE = 60.0
"""Timeout of each step in seconds."""


class Demo:
    """The steps of the demo. `stack` owns and ends everything that is started."""

    def __init__(self, servers: str, directory: Path, report: Report, records: int, seed: int) -> None:
        self.servers, self.report, self.records = servers, report, records
        self.market = keyed(trades(records, seed=seed))
        self.progress = Progress(servers, group="clearing", topic="trades")
        self.workers = [
            ServiceProcess(TARGET, servers, directory, name, "--config", CONFIG, "--set", NO_FULL_SNAPSHOTS)
            for name in ("alpha", "beta")
        ]

    def play(self) -> bool:
        """Run all steps in order. Return True if the verifier found no difference."""
        self.create_topics()
        self.start_workers()
        self.open_market()
        self.rush_and_kill()
        self.compact_and_bring_back()
        self.close_market()
        self.stop_workers()
        return self.verify().ok

    def create_topics(self) -> None:
        """Create input, outputs, snapshot topics and initial commit records: the first start is explicit."""
        create = f"topics create {TARGET} --start-at beginning --partitions {PARTITIONS}"
        statehold(self.servers, create)
        self.report.step("topics", f"trades, fills, margin-calls and the snapshots, {PARTITIONS} partitions each")

    def start_workers(self) -> None:
        """Start two processes, and wait until each is live on its half of the partitions."""
        for worker in self.workers:
            worker.start()
        half = PARTITIONS // 2
        self._wait(lambda: all(len(worker.live()) == half for worker in self.workers), "both processes live")
        shares = ", ".join(f"{worker.name} {sorted(worker.live())}" for worker in self.workers)
        self.report.step("live", f"two processes, partitions by process: {shares}")

    def open_market(self) -> None:
        """Feed trades at a moderate rate for some seconds."""
        calm = int(self.records * CALM)
        with self._feeding(calm, PACE):
            self.report.step("open", f"{calm:,} trades at {PACE:,} a second")
        self._wait(lambda: self.progress.position() >= calm, "the first trades cleared")

    def rush_and_kill(self) -> None:
        """Feed trades without a limit, kill one process at 40 %, and wait for the takeover."""
        survivor, victim = self.workers
        before, began = self.progress.position(), monotonic()
        with self._feeding(int(self.records * RUSH), None):
            self.report.step("rush", f"{int(self.records * RUSH):,} trades without a rate limit")
            self._wait(lambda: self.progress.position() >= 0.4 * self.records, "40 % of the trades cleared")
            moved, done = victim.live(), self.progress.position()
            rate, killed = (done - before) / (monotonic() - began), time()
            victim.kill()
            self.report.step("kill -9", f"{victim.name} at {done:,} trades cleared; {rate:,.0f} a second in the rush")
            wait_until(lambda: survivor.live() >= moved, "takeover", PATIENCE, survivor)
            self.report.step("takeover", f"{survivor.name} is live on all {PARTITIONS} partitions")
        fed = int(self.records * CALM) + int(self.records * RUSH)
        wait_until(lambda: self.progress.position() >= fed, "the rush cleared", PATIENCE, survivor)
        self.report.step("caught up", f"{fed:,} trades cleared")
        rows = [takeover(partition, survivor.events(), killed) for partition in sorted(moved)]
        self.report.takeovers(f"taken over by {survivor.name}, seconds after the kill", rows)

    def compact_and_bring_back(self) -> None:
        """Compact and restart the killed process at a low rate; it restores from the new full snapshots."""
        _, victim = self.workers
        with self._feeding(int(self.records * NIGHT), NIGHT_PACE):
            made = self._compact()
            began = time()
            victim.start()
            self._wait(lambda: len(victim.live()) == PARTITIONS // 2, f"{victim.name} live again")
        moved = sorted(victim.live())
        source = "the compaction's full snapshots" if made else "deltas alone"
        self.report.step("back", f"{victim.name} is live on {moved}, restored from {source}")
        rows = [takeover(partition, victim.events(), began) for partition in moved]
        self.report.takeovers(f"taken over by {victim.name}, seconds after its start", rows)
        for row in rows:
            if made and row.full != f"@{made[row.partition]}":
                raise RuntimeError(f"partition {row.partition} was restored from {row.full}, not from the compaction's")

    def _compact(self) -> dict[int, int]:
        """Compact by Spark while the survivor runs; return the offset of each partition's new full snapshot.

        Skipped without Spark or its Java, because a service needs neither.
        """
        if importlib.util.find_spec("pyspark") is None:
            self.report.step("no compaction", "it needs an extra: pip install 'statehold[spark]'")
            return {}
        try:
            find_spark_java()
        except JavaMissing as error:
            self.report.step("no compaction", str(error))
            return {}
        survivor, _ = self.workers
        self.report.step("compact", f"by Spark, while {NIGHT_PACE:,} trades per second arrive")
        before = self.progress.position()
        results = json.loads(statehold(self.servers, f"compact {TARGET} --config {CONFIG} --json"))
        meanwhile = self.progress.position() - before
        self.report.step("compacted", f"{len(results)} partitions; {survivor.name} cleared {meanwhile:,} trades")
        self.report.compaction(results)
        return {each["partition"]: each["full"] for each in results}

    def close_market(self) -> None:
        """Feed the rest of the trades to both processes, and wait until all are cleared."""
        with self._feeding(self.records, PACE):
            self.report.step("morning", f"the rest of {self.records:,} trades, at {PACE:,} a second")
        self._wait(lambda: self.progress.position() >= self.records, "all trades cleared")
        self.report.step("cleared", f"{self.progress.position():,} trades")

    def stop_workers(self) -> None:
        """Send SIGTERM: each process commits, writes its full snapshots and leaves the group."""
        codes = {worker.name: worker.stop(PATIENCE) for worker in self.workers}
        if any(codes.values()):
            raise RuntimeError(f"a process did not stop cleanly, exit codes: {codes}")
        self.report.step("stopped", "both processes, cleanly")

    def verify(self) -> Verdict:
        """Read all topics with a plain consumer, recompute them and the state from the input, and compare."""
        began = monotonic()
        verdict = verify(self.servers, held_by(self.servers, Names("clearing", "trades"), Clearing))
        self.report.step("verified", f"in {monotonic() - began:.1f} s, by code that shares nothing with the service")
        self.report.verdict(verdict)
        if verdict.trades != self.records:
            raise RuntimeError(f"{verdict.trades:,} trades on the input, {self.records:,} were fed")
        return verdict

    def close(self) -> None:
        """Kill the processes that still run."""
        for worker in self.workers:
            worker.kill()

    @contextmanager
    def _feeding(self, count: int, rate: float | None) -> Iterator[None]:
        """Feed up to `count` more trades in the background within the context; an error of either ends both."""
        feed, failures = Feed(self.servers, "trades", rate), list[BaseException]()
        chosen = list(islice(self.market, count))

        def send() -> None:
            try:
                feed.send(chosen)
            except Exception as error:  # noqa: BLE001 (raised below, in the thread that waits)
                failures.append(error)

        thread = Thread(target=send, name="feed")
        thread.start()
        try:
            yield
        except BaseException:
            feed.stop()
            raise
        finally:
            thread.join()
        if failures:
            raise failures[0]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, PATIENCE, *self.workers)


def main() -> int:
    """Run the demo in a temporary directory with its own broker. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.clearing.demo")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report()
    report.title("statehold: a clearing service is killed and loses nothing")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statehold-demo-")))
        kafka = stack.enter_context(Cluster())
        report.step("kafka", f"one broker at {kafka.bootstrap_servers}")
        demo = Demo(kafka.bootstrap_servers, directory, report, options.records, options.seed)
        stack.callback(demo.close)
        try:
            ok = demo.play()
        except BaseException as error:
            report.failure(error, {worker.name: worker.tail() for worker in demo.workers})
            if isinstance(error, Exception):
                return 1
            raise
    print("demo ok" if ok else "demo failed")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
