"""`script/bench sink`: rows/s of a service with a sink, against plain programs that upsert the same rows in batches.

The plain ones have the rows in memory and keep no position: no Kafka, no state, no guard. One goes by COPY into a
temporary table, as statehold does, one by psycopg's executemany. Each run starts with an empty table; the tables are
compared.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psycopg
from confluent_kafka import Producer
from examples.sinks.server import Postgres

from benchmarks.report import Figures, console, show
from benchmarks.sink_app import Booked, Payment, service
from statehold.admin.topics import ServiceTopics
from statehold.config import load
from statehold.dev import Cluster
from statehold.ops.reports.sinks import standings

ROOT: Final = Path(__file__).resolve().parents[1]
ACCOUNTS: Final = 10_000
CREATE: Final = "CREATE TABLE booked (id bigint PRIMARY KEY, account text NOT NULL, amount bigint, total bigint)"
INSERT: Final = """INSERT INTO booked VALUES (%s, %s, %s, %s)
    ON CONFLICT (id) DO UPDATE SET account = excluded.account, amount = excluded.amount, total = excluded.total"""
MERGE: Final = """INSERT INTO booked SELECT * FROM twin ORDER BY id
    ON CONFLICT (id) DO UPDATE SET account = excluded.account, amount = excluded.amount, total = excluded.total"""
DURABLE: Final = ("fsync=on", "full_page_writes=on", "max_wal_size=4GB")
PATIENCE: Final = 600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `sink`."""
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--batch", type=int, default=10_000, help="rows of a transaction of the plain programs")
    parser.add_argument("--rounds", type=int, default=3)


def main(options: argparse.Namespace) -> int:
    """Run it; 1 if the tables differ."""
    rates: dict[str, list[float]] = {"statehold": [], "plain, COPY": [], "plain, executemany": []}
    sums, payments = set(), [Payment(each, f"a{each * 7919 % ACCOUNTS}", each % 997) for each in range(options.rows)]
    rows = _rows(payments)
    with Cluster() as kafka, Postgres(DURABLE) as database:
        _fill(kafka.bootstrap_servers, payments)
        runs: dict[str, Callable[[int], float]] = {
            "statehold": lambda number: _service(kafka.bootstrap_servers, database.url, number, options.rows),
            "plain, COPY": lambda _: _plain(database.url, rows, options.batch, _copy),
            "plain, executemany": lambda _: _plain(database.url, rows, options.batch, _executemany),
        }
        for number in range(options.rounds):
            for name, run in runs.items():
                with psycopg.connect(database.url, autocommit=True) as connection:
                    connection.execute("DROP TABLE IF EXISTS booked")
                    connection.execute(CREATE)
                    connection.execute("CHECKPOINT")
                rates[name].append(run(number))
                with psycopg.connect(database.url) as connection:
                    sums.add(
                        connection.execute("SELECT count(*), sum(total), sum(hashtext(account)) FROM booked").fetchone()
                    )
                console.print(f"{name}: {rates[name][-1]:,.0f} rows/s")
    figures, best = Figures("sink"), statistics.median(rates["statehold"])
    lines = []
    for name, found in rates.items():
        median = statistics.median(found)
        figures.add(name, median, "rows/s", found)
        figures.add(f"statehold against {name}", best / median, "x")
        lines.append((name, f"{median:,.0f}", f"{best / median:.2f}"))
    show("rows into PostgreSQL", ("", "rows/s", "statehold is"), lines)
    figures.write()
    console.print("the tables are the same" if len(sums) == 1 else f"the tables DIFFER: {sums}")
    return 0 if len(sums) == 1 else 1


def _rows(payments: list[Payment]) -> list[Booked]:
    totals: dict[str, int] = {}
    found = []
    for payment in payments:
        total = totals[payment.account] = totals.get(payment.account, 0) + payment.amount
        found.append(Booked(payment.id, payment.account, payment.amount, total))
    return found


def _fill(servers: str, payments: list[Payment]) -> None:
    settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers})
    service.settings = settings
    ServiceTopics(settings, service.names, []).create("beginning", partitions=1)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for payment in payments:
        while True:
            try:
                producer.produce(service.input, msgspec.json.encode(payment), payment.account, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(PATIENCE) == 0


def _service(servers: str, url: str, number: int, rows: int) -> float:
    """Rows/s from the first commit that is seen to the last."""
    environment = {
        "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
        "STATEHOLD_SERVICE__NAMESPACE": f"round{number}.",
        "STATEHOLD_SINK__URL": url,
    }
    service.settings = settings = load(env=environment)
    ServiceTopics(settings, service.names, []).create("beginning", partitions=1)
    standings(service, settings, make=True)
    command = [str(Path(sys.executable).with_name("statehold")), "run", "benchmarks.sink_app:service"]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    )
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            began, first = _await(connection, service.names.group, 1)
            ended, last = _await(connection, service.names.group, rows)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            process.kill()
    return (last - first) / (ended - began)


def _await(connection: psycopg.Connection[tuple[int]], group: str, position: int) -> tuple[float, int]:
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        row = connection.execute("SELECT position FROM statehold_sink WHERE service = %s", [group]).fetchone()
        if row is not None and row[0] >= position:
            return time.perf_counter(), row[0]
        time.sleep(0.02)
    raise TimeoutError(f"not at {position} after {PATIENCE:.0f} s")


def _plain(url: str, rows: list[Booked], batch: int, upsert: Callable[[psycopg.Cursor, list[Booked]], None]) -> float:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TEMPORARY TABLE twin (LIKE booked) ON COMMIT DELETE ROWS")
        connection.commit()
        began = time.perf_counter()
        for at in range(0, len(rows), batch):
            with connection.cursor() as cursor:
                upsert(cursor, rows[at : at + batch])
            connection.commit()
        return len(rows) / (time.perf_counter() - began)


def _copy(cursor: psycopg.Cursor, rows: list[Booked]) -> None:
    with cursor.copy("COPY twin (id, account, amount, total) FROM STDIN") as copy:
        for row in rows:
            copy.write_row((row.id, row.account, row.amount, row.total))
    cursor.execute(MERGE)


def _executemany(cursor: psycopg.Cursor, rows: list[Booked]) -> None:
    values = [(row.id, row.account, row.amount, row.total) for row in rows]
    cursor.executemany(INSERT, values)
