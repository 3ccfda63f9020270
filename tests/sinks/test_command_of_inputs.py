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
LATER = "tests.sinks.journal:later"


class Journals:
    """One partition of two inputs, its rows and its process."""

    def __init__(self, servers: str, postgres: Postgres, directory: Path) -> None:
        self.servers, self.prefix = servers, f"journal{uuid.uuid4().hex[:8]}"
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

    def sink(self, *arguments: str, service: str = SERVICE) -> tuple[int, dict[str, Any], str]:
        """Exit code, the standing of the partition, and stderr."""
        code, out, said = self.call("sink", arguments[0], service, *arguments[1:], "--json")
        (found,) = json.loads(out)
        return code, found, said

    process: subprocess.Popen[bytes] | None

    def start(self, service: str = SERVICE) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [STATEHOLD, "run", service], cwd=ROOT, env=self.environment, stdout=log, stderr=log
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

    def await_rows(self, skipped: int = 0) -> None:
        wanted = sum(self.fed.values()) - skipped
        await_true(lambda: int(self.run("SELECT count(*) FROM entries")[0][0]) >= wanted, self.log.read_text)

    def require_chain(self, **starts: int) -> None:
        """Each row follows from the one before it: no record is missing, twice, or in another place of its input.

        `starts`: the first offset of an input.
        """
        link, positions, factors = (
            7,
            dict.fromkeys(self.feeds, 0) | starts,
            {"orders": 31, "cancels": 37, "refunds": 41},
        )
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


@pytest.mark.long
def test_an_input_is_added_if_the_database_is_at_the_last_commit_record(journal: Journals) -> None:
    """The position is a sum of offsets: it says something else with another input, and is set before the next start."""
    assert journal.call("topics", "create", SERVICE, "--start-at", "beginning", "--partitions", "1")[0] == 0
    assert journal.sink("init")[0] == 0
    journal.start()
    journal.feed(20)
    journal.await_rows()
    journal.end(signal.SIGTERM)
    assert journal.call("topics", "create", LATER, "--start-at", "beginning", "--partitions", "1")[0] == 0
    journal.feeds["refunds"], journal.fed["refunds"] = Feed(journal.servers, f"{journal.prefix}-refunds"), 0
    journal.feed(10)
    words = ("state", "inputs", LATER, "--add", f"{journal.prefix}-refunds=3", "--why", "a test", "--yes")

    journal.run("UPDATE statehold_sink SET position = 41")
    code, _, said = journal.call(*words)
    assert (code, "the database of the sinks is at 41: ahead, by one transaction" in " ".join(said.split())) == (
        1,
        True,
    )
    journal.run("UPDATE statehold_sink SET position = 40")
    code, out, said = journal.call(*words)
    assert code == 0, said
    assert f"statehold sink init {LATER} --adopt" in " ".join(out.split() + said.split())
    code, found, _ = journal.sink("show", service=LATER)
    assert (code, found["commit_record"], found["position"]) == (1, 43, 40)
    assert journal.sink("init", "--adopt", service=LATER)[0] == 0
    journal.start(LATER)
    journal.await_rows(skipped=3)
    journal.end(signal.SIGTERM)
    journal.require_chain(refunds=3)
