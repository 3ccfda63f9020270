"""`script/bench spark`: the state as a Spark table, against Parquet that the export wrote of the same keys.

A service with 4 partitions writes its keys and stops, and `statehold compact` folds them into full snapshots. Then one
warm session reads all keys and aggregates all columns of the export: from Kafka with `format("statehold")`, from
Parquet, and with Spark's own state reader from the RocksDB state of a query that holds the same keys. `columns` and
`parquet_columns` read two of the three columns. Spark itself leaves out a column of Parquet that no query asks for, but
no release up to 4.3 does so for a data source in Python, so `format("statehold")` gets its columns by `.schema`.
`transfer` is a job whose tasks read the same records with the same client and drop them; its seconds are subtracted.
All must give the same numbers. PySpark 4.0 pushes no filter down, so there `key` reads all rows of its partition.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.compact import fill
from benchmarks.contender import HERE
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

#: of the time of Parquet, after the transfer is subtracted
REACH = 1.3
#: seconds for one key
KEY = 3.0
TITLES = {
    "statehold": "a Spark table, digest compared",
    "unverified": "a Spark table, verify=false",
    "columns": "a Spark table, two of three columns",
    "transfer": "merely the transfer from Kafka",
    "parquet": "Parquet of the export",
    "parquet_columns": "Parquet, two of three columns",
    "statestore": "Spark's state reader, RocksDB",
    "key": "one key of a Spark table",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `spark`."""
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="after one that is not counted")
    parser.add_argument("--memory", default="3g", help="heap of Spark")
    parser.add_argument("--only", default=",".join(TITLES))


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when two of them read different rows."""
    with Cluster() as cluster, tempfile.TemporaryDirectory(prefix="statehold-bench-") as folder:
        job, _ = fill(cluster.bootstrap_servers, options.keys, 1)
        file, out = Path(folder) / "job.json", Path(folder) / "out"
        own = {name: getattr(options, name) for name in ("keys", "rounds", "memory")}
        file.write_text(json.dumps({**job, **own, "only": options.only.split(","), "folder": folder}))
        command = [sys.executable, "-m", "benchmarks.spark_read", str(file), str(out)]
        subprocess.run(command, cwd=HERE.parent, check=True)
        found = json.loads(out.read_text())
    _report(found["seconds"], options.keys, found["versions"])
    seen: dict[str, set[str]] = {}
    for each in found["rows"].values():
        for name, value in each.items():
            seen.setdefault(name, set()).add(json.dumps(value))
    same = all(len(values) == 1 for values in seen.values())
    if not same:
        console.print(f"different rows: {found['rows']}")
    return 0 if same else 1


def _report(seconds: dict[str, list[float]], keys: int, versions: str) -> None:
    figures, lines = Figures("spark"), []
    for name, runs in seconds.items():
        rate = f"{keys / median(runs):,.0f}" if name != "key" else "-"
        spread = f"{min(runs):.2f}-{max(runs):.2f}"
        lines.append([TITLES[name], f"{median(runs):.2f}", spread, rate])
        figures.add(f"{name}.seconds", median(runs), "s", runs)
    show(f"{keys:,} keys, {versions}", ["", "s", "lowest-highest", "keys/s"], lines)
    for name, ratios in _ratios(seconds).items():
        figures.add(name, median(ratios), "ratio", ratios)
        limit = {"without transfer/parquet": f" (at most {REACH})"}.get(name, "")
        console.print(f"{name} = {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}){limit}")
    if "key" in seconds:
        console.print(f"one key: {median(seconds['key']):.2f} s (at most {KEY})")
    figures.write()


def _ratios(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Ratios within each round, because the machine's speed varies between rounds."""

    def of(*names: str) -> list[tuple[float, ...]]:
        return list(zip(*(seconds[name] for name in names), strict=True)) if seconds.keys() >= set(names) else []

    found = {
        "without transfer/parquet": [
            (own - moved) / plain for own, moved, plain in of("statehold", "transfer", "parquet")
        ],
        "columns without transfer/parquet": [
            (own - moved) / plain for own, moved, plain in of("columns", "transfer", "parquet_columns")
        ],
        "table/parquet": [own / plain for own, plain in of("statehold", "parquet")],
        "table/statestore": [own / other for own, other in of("statehold", "statestore")],
        "verified/unverified": [own / other for own, other in of("statehold", "unverified")],
    }
    return {name: runs for name, runs in found.items() if runs}
