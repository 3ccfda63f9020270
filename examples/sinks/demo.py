"""A broker and a database of its own, payments, two workers that are killed again and again, then all is compared.

`python -m examples.sinks.demo`; exit code 0 and the last line `demo ok` only if the tables are what the payments say.
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
from statehold.dev import Cluster
from statehold.dev.postgres import Postgres

TARGET = "examples.sinks.app:service"
TABLES = Path(__file__).with_name("tables.sql")
PATIENCE = 120.0
ACCOUNTS = 200


def payments(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Account and amount."""
    draw = random.Random(seed)
    for _ in range(count):
        yield f"a{draw.randrange(ACCOUNTS):03}", draw.randrange(-500, 1000)


def records(count: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    for account, amount in payments(count, seed):
        yield account.encode(), json.dumps({"account": account, "amount": amount}).encode()


def bookings(url: str) -> int:
    """Rows so far."""
    with psycopg.connect(url) as database:
        row = database.execute("SELECT count(*) FROM bookings").fetchone()
    assert row is not None
    return int(row[0])


def differences(url: str, count: int, seed: int) -> list[str]:
    """What the tables do not say as the payments do; recomputed from those alone."""
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
    """The course of events, on servers that somebody else starts and ends."""

    def __init__(self, servers: str, database: Postgres, directory: Path, count: int, seed: int) -> None:
        self.servers, self.database, self.count, self.seed = servers, database, count, seed
        settings = ("--set", f"sink.url={database.url}", "--set", "sink.timeout=3", "--set", "group.session_timeout=6")
        # A process that was killed comes back as the same member.
        own = (*settings, "--set", "group.membership=static")
        self.workers = [ServiceProcess(TARGET, servers, directory, name, *own) for name in ("alpha", "beta")]

    def play(self) -> list[str]:
        """All acts in their order; what is wrong in the end."""
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
            print(f"{bookings(self.database.url)} bookings: the database is stopped as by a crash, and started")
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
