"""`python -m benchmarks NAME`; without a name it lists them."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys

BENCHMARKS = {
    "throughput": "records/s of statehold and six others, exactly-once, outputs verified",
    "latency": "end-to-end p50, p99, p99.9 at four rates and three commit intervals, against two others",
    "commit": "1 KB records, a commit every 10, 50, 100, 500 ms, against plain idempotent produce",
    "lanes": "1, 8, 50, 200, 500 partitions in one process: the same load, time to live, idle, time to stop",
    "growth": "memory of a key and a partition, rates by keys and by processes, against Kafka Streams",
    "compact": "millions of delta entries folded by Spark, against mere reading and one Python process",
    "spark": "keys read as a Spark table and aggregated, against Parquet of the export, and Spark's own state reader",
    "standby": "1,000,000 keys, a standby replica, the owner stopped and killed: time without answers",
    "calls": "durable calls of 50 ms: answered calls/s, processor and memory, against a loop without state",
    "ask": "request and reply: alone and under load, against Restate",
    "reads": "committed values that a client reads a second, in the owner's process and from another one",
    "sink": "rows/s into PostgreSQL with position and epoch, against plain batched upserts of the same rows",
    "join": "stream-table and stream-stream joins by statehold, Kafka Streams and quixstreams, outputs verified",
    "window": "windows, sessions and deduplication by the same, one output when a window closes",
    "pathway": "keyed totals from the start of the process, against Pathway with and without persistence",
    "rehearse": "a rehearsal of unchanged code against `snapshot verify --replay`, and with --spark against Spark",
    "rebuild": "a rebuild from the beginning against the same",
    "shadow": "a service alone and with a shadow next to it: latency and processor time",
    "restore": "1,000,000 keys, killed at a random moment: from start to live",
    "rows": "1,000,000 rows of a join of two streams, killed at a random moment: from start to live",
    "disk": "20,000,000 keys: tables on disk against tables in memory and Kafka Streams on RocksDB",
    "start": "seconds until `--version`, `--help` and `run` say something, of an installed package",
    "smoke": "instructions per record of the engine alone, against the last recorded commit: 3 percent more fail",
    "all": "those above, as a release runs them; --record writes the figures of the documentation",
}
#: the modules whose names differ
MODULES = {"all": "release", **dict.fromkeys(("rehearse", "rebuild", "shadow"), "next_release")}


def main() -> int:
    """Parse the command line and run one benchmark."""
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__)
    commands = parser.add_subparsers(dest="name")
    modules = {}
    for name, text in BENCHMARKS.items():
        module = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")
        modules[name] = module
        module.arguments(commands.add_parser(name, help=text, description=text))
    options = parser.parse_args()
    if options.name is None:
        parser.print_help()
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contenders and brokers are stopped
    return int(modules[options.name].main(options))


if __name__ == "__main__":
    sys.exit(main())
