"""Starts a broker and a database, kills two workers repeatedly while payments arrive, and compares the tables.

`python -m examples.sinks.demo` prints `demo ok` and exits with 0 only if the tables match the payments.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import monotonic

import psycopg

from examples.feeding import Feed
from examples.running import ServiceProcess, statehold, wait_until
from examples.sinks.server import Postgres
from statehold.dev import Cluster

TARGET = "examples.sinks.app:service"
TABLES = Path(__file__).with_name("tables.sql")
PATIENCE = 120.0
ACCOUNTS = 200


def payments(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yield account and amount of each payment."""
    draw = random.Random(seed)
    for _ in range(count):
        yield f"a{draw.randrange(ACCOUNTS):03}", draw.randrange(-500, 1000)


def records(count: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    for account, amount in payments(count, seed):
        yield account.encode(), json.dumps({"account": account, "amount": amount}).encode()


def bookings(url: str) -> int:
    """Return the number of booked rows."""
    with psycopg.connect(url) as database:
        row = database.execute("SELECT count(*) FROM bookings").fetchone()
    assert row is not None
    return int(row[0])


def differences(url: str, count: int, seed: int) -> list[str]:
    """Return the differences between the tables and the result recomputed from the payments."""
    balances, numbers, expected = Counter[str](), Counter[str](), set()
    for account, amount in payments(count, seed):
        balances[account] += amount
        numbers[account] += 1
        expected.add((account, numbers[account], amount))
    with psycopg.connect(url) as database:
        accounts = set(database.execute("SELECT account, balance, payments FROM accounts").fetchall())
        booked = set(database.execute("SELECT account, number, amount FROM bookings").fetchall())
    wanted = {(account, balances[account], numbers[account]) for account in numbers}
    return [
        f"{name}: {len(found - right)} rows are wrong, {len(right - found)} are missing"
        for name, found, right in (("accounts", accounts, wanted), ("bookings", booked, expected))
        if found != right
    ]


class Demo:
    """The steps of the demo, on servers that the caller starts and stops."""

    def __init__(self, servers: str, database: Postgres, directory: Path, count: int, seed: int) -> None:
        self.servers, self.database, self.count, self.seed = servers, database, count, seed
        settings = ("--set", f"sink.url={database.url}", "--set", "sink.timeout=3", "--set", "group.session_timeout=6")
        # Static membership, so that a killed process rejoins as the same member.
        own = (*settings, "--set", "group.membership=static")
        self.workers = [ServiceProcess(TARGET, servers, directory, name, *own) for name in ("alpha", "beta")]

    def play(self) -> list[str]:
        """Run all steps in order. Return the differences."""
        with psycopg.connect(self.database.url) as database:
            database.execute(TABLES.read_bytes())
        statehold(self.servers, f"topics create {TARGET} --start-at beginning --partitions 2")
        print(statehold(self.servers, f"sink init {TARGET} --set sink.url={self.database.url}"), end="")
        feeding = Thread(target=self._feed, daemon=True)
        for worker in self.workers:
            worker.start()
        feeding.start()
        try:
            for step in range(1, 7):
                self._until(self.count * step // 8)
                self._strike(step)
            self._until(self.count)
            feeding.join(PATIENCE)
        finally:
            for worker in self.workers:
                worker.stop()
        return differences(self.database.url, self.count, self.seed)

    def _feed(self) -> None:
        Feed(self.servers, "payments", rate=self.count / 8).send(records(self.count, self.seed))

    def _strike(self, step: int) -> None:
        if step == 4:
            print(f"{bookings(self.database.url)} bookings: the database crashes and restarts")
            self.database.stop(signal.SIGQUIT)
            self.database.start()
            return
        worker = self.workers[step % 2]
        print(f"{bookings(self.database.url)} bookings: {worker.name} is killed")
        worker.kill()
        worker.start()

    def _until(self, rows: int) -> None:
        wait_until(lambda: bookings(self.database.url) >= rows, f"{rows} bookings", PATIENCE, *self.workers)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payments", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STATEHOLD_SEED", "1")))
    given = parser.parse_args(arguments)
    began = monotonic()
    with tempfile.TemporaryDirectory() as directory, Cluster() as kafka, Postgres() as database:
        wrong = Demo(kafka.bootstrap_servers, database, Path(directory), given.payments, given.seed).play()
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{given.payments} payments, seed {given.seed}, {monotonic() - began:.0f} s")
    print("demo ok" if not wrong else "demo failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
