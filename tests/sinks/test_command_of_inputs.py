"""`statehold sink init | show` for a service with two inputs: a position is the sum of those of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from examples.feeding import Feed
from examples.sinks.server import Postgres
from psycopg import sql
from tests.sinks.stage import ROOT, await_true

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
STATEHOLD = str(Path(sys.executable).with_name("statehold"))
SERVICE = "tests.sinks.journal:service"


class Journals:
    """One partition of two inputs, its rows and its process."""

    def __init__(self, servers: str, postgres: Postgres, directory: Path) -> None:
        self.prefix = f"journal{uuid.uuid4().hex[:8]}"
        self.url = f"{postgres.url}?options=-csearch_path%3D{self.prefix}"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
            "STATEHOLD_SERVICE__NAMESPACE": f"{self.prefix}.",
            "STATEHOLD_SINK__URL": self.url,
            "JOURNAL_PREFIX": f"{self.prefix}-",
        }
        with psycopg.connect(postgres.url) as database:
            database.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.prefix)))
        self.run("CREATE TABLE entries (number bigint PRIMARY KEY, input text, link bigint)")
        self.log, self.process = directory / "journal.log", None
        self.feeds = {name: Feed(servers, f"{self.prefix}-{name}") for name in ("orders", "cancels")}
        self.fed = dict.fromkeys(self.feeds, 0)

    def run(self, text: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as database:
            cursor = database.execute(text)
            return cursor.fetchall() if cursor.description else []

    def call(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [STATEHOLD, *arguments], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def sink(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the standing of the partition, and stderr."""
        code, out, said = self.call("sink", arguments[0], SERVICE, *arguments[1:], "--json")
        (found,) = json.loads(out)
        return code, found, said

    process: subprocess.Popen[bytes] | None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [STATEHOLD, "run", SERVICE], cwd=ROOT, env=self.environment, stdout=log, stderr=log
            )

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def feed(self, count: int) -> None:
        """That many records for each input, whose values are their offsets."""
        for name, feed in self.feeds.items():
            first = self.fed[name]
            feed.send((b"key", json.dumps({"value": at}).encode()) for at in range(first, first + count))
            self.fed[name] += count

    def await_rows(self) -> None:
        wanted = sum(self.fed.values())
        await_true(lambda: int(self.run("SELECT count(*) FROM entries")[0][0]) >= wanted, self.log.read_text)

    def require_chain(self) -> None:
        """Each row follows from the one before it: no record is missing, twice, or in another place of its input."""
        link, positions, factors = 7, dict.fromkeys(self.feeds, 0), {"orders": 31, "cancels": 37}
        for number, (found, topic, kept) in enumerate(self.run("SELECT * FROM entries ORDER BY number"), 1):
            name = topic.removeprefix(f"{self.prefix}-")
            at = positions[name]
            link = (link * factors[name] + at + at) % 1_000_003
            assert (found, kept) == (number, link), (number, topic)
            positions[name] += 1
        assert positions == self.fed


@pytest.fixture
def journal(kafka: Cluster, postgres: Postgres, tmp_path: Path) -> Iterator[Journals]:
    made = Journals(kafka.bootstrap_servers, postgres, tmp_path)
    yield made
    made.end()


def test_positions_of_two_inputs_are_compared_and_adopted(journal: Journals) -> None:
    code, _, said = journal.call("topics", "create", SERVICE, "--start-at", "beginning", "--partitions", "1")
    assert code == 0, said
    code, found, said = journal.sink("init")
    assert (code, found["made"], found["position"]) == (0, True, 0), said
    journal.start()
    journal.feed(30)
    journal.await_rows()
    journal.end()
    code, found, said = journal.sink("show")
    assert (code, found["trouble"]) == (0, ""), said
    assert found["position"] == 60
    journal.run("UPDATE statehold_sink SET position = 61, note = ''")
    code, found, said = journal.sink("show")
    assert code == 1
    assert "another history" in found["trouble"]
    assert "statehold sink init" in said
    code, found, _ = journal.sink("init", "--adopt")
    assert (code, found["made"], found["position"]) == (0, True, found["commit_record"])
    journal.start()
    journal.feed(10)
    journal.await_rows()
    journal.end(signal.SIGTERM)
    code, found, _ = journal.sink("show")
    assert (code, found["commit_record"], found["position"], found["trouble"]) == (0, 80, 80, "")
    journal.require_chain()
