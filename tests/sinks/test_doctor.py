"""`statehold doctor`, check "sink-database", against a real server: sound, and with each fault made for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import pytest
from examples.sinks.app import Payments
from examples.sinks.server import Postgres
from tests.sinks.stage import ROOT, Stage

from statehold.bound.attributes import sinks_of
from statehold.common.names import Names
from statehold.config import load
from statehold.dev import Cluster
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding
from statehold.ops.doctor.sinks import SinkDatabase

pytestmark = pytest.mark.kafka

#: a user without special rights, as a service is
USER: LiteralString = "clerk"


@pytest.fixture(scope="module")
def stage(kafka: Cluster, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(kafka.bootstrap_servers, postgres, tmp_path_factory.mktemp("doctor"), 2)
    made.run("DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    made.run("DO $$ BEGIN EXECUTE 'GRANT USAGE ON SCHEMA ' || current_schema || ' TO clerk'; END $$")
    made.run("GRANT SELECT, INSERT, UPDATE, DELETE ON accounts, bookings, statehold_sink TO clerk")
    yield made
    made.close()


def look(stage: Stage, *, known: bool = True, **more: str) -> list[Finding]:
    """As a user with the rights of docs/how-to/write/sinks.md alone."""
    url = stage.environment["STATEHOLD_SINK__URL"].replace("statehold@", f"{USER}@")
    names = stage.service.names
    settings = load(
        env={**stage.environment, "STATEHOLD_SINK__URL": url, "STATEHOLD_SERVICE__MODE": "development", **more}
    )
    sinks = sinks_of(Payments).values() if known else None
    found = examine(Case(settings, names, probes=False, sinks=sinks), ["sink-database"])
    # The tests' own server is not durable, which test_durability looks at.
    return [each for each in found if each.about != "fsync"]


def one(found: list[Finding]) -> tuple[str, str, str, str]:
    (only,) = found
    return only.about, str(only.level), only.reason, only.fix


@contextmanager
def broken(stage: Stage, how: LiteralString, back: LiteralString) -> Iterator[None]:
    stage.run(how)
    try:
        yield
    finally:
        stage.run(back)


@pytest.mark.parametrize(("sinks", "why"), [((), "the service has no sinks"), (None, "sink.url names no database")])
def test_without_sinks_it_does_not_claim_to_have_asked_a_database(sinks: tuple[()] | None, why: str) -> None:
    case = Case(load(env={}), Names("totals", "paid"), probes=False, sinks=sinks)
    (found,) = SinkDatabase().look(case)
    assert (str(found.level), found.reason) == ("PASS", f"{why}, so none was asked")


def test_a_sound_one_has_no_fault(stage: Stage) -> None:
    assert look(stage) == []


@pytest.mark.parametrize(
    ("how", "back", "about", "level", "fix"),
    [
        (
            "ALTER TABLE accounts RENAME TO gone",
            "ALTER TABLE gone RENAME TO accounts",
            "accounts",
            "FAIL",
            "CREATE TABLE accounts",
        ),
        (
            "ALTER TABLE accounts RENAME balance TO b",
            "ALTER TABLE accounts RENAME b TO balance",
            "accounts",
            "FAIL",
            "ADD COLUMN",
        ),
        (
            "ALTER TABLE bookings DROP CONSTRAINT bookings_pkey",
            "ALTER TABLE bookings ADD PRIMARY KEY (account, number)",
            "bookings",
            "FAIL",
            "CREATE UNIQUE INDEX ON bookings (account, number)",
        ),
        (
            "REVOKE INSERT ON bookings FROM clerk",
            "GRANT INSERT ON bookings TO clerk",
            "bookings",
            "FAIL",
            "ON bookings TO clerk",
        ),
        (
            "REVOKE DELETE ON bookings FROM clerk",
            "GRANT DELETE ON bookings TO clerk",
            "bookings",
            "WARN",
            "ON bookings TO clerk",
        ),
        (
            "REVOKE TEMPORARY ON DATABASE postgres FROM public",
            "GRANT TEMPORARY ON DATABASE postgres TO public",
            "TEMPORARY",
            "FAIL",
            "GRANT TEMPORARY ON DATABASE postgres TO clerk",
        ),
        (
            "ALTER TABLE statehold_sink RENAME TO gone",
            "ALTER TABLE gone RENAME TO statehold_sink",
            "statehold_sink",
            "FAIL",
            "statehold sink init",
        ),
        (
            "REVOKE UPDATE ON statehold_sink FROM clerk",
            "GRANT UPDATE ON statehold_sink TO clerk",
            "statehold_sink",
            "FAIL",
            "ON statehold_sink TO clerk",
        ),
        (
            "UPDATE statehold_sink SET partition = 9 WHERE partition = 1",
            "UPDATE statehold_sink SET partition = 1 WHERE partition = 9",
            "partition 1",
            "FAIL",
            "statehold sink init MODULE:SERVICE",
        ),
        (
            "UPDATE statehold_sink SET position = 7, note = '' WHERE partition = 0",
            "UPDATE statehold_sink SET position = 0 WHERE partition = 0",
            "partition 0",
            "FAIL",
            "--adopt",
        ),
    ],
    ids=["table", "column", "index", "insert", "delete", "temporary", "positions", "update", "partition", "history"],
)
def test_a_fault_is_reported_with_its_fix(
    stage: Stage, how: LiteralString, back: LiteralString, about: str, level: str, fix: str
) -> None:
    with broken(stage, how, back):
        found = one(look(stage))
    assert found[:2] == (about, level)
    assert fix in found[3]


def test_durability(stage: Stage) -> None:
    with broken(stage, "ALTER ROLE clerk SET synchronous_commit = off", "ALTER ROLE clerk RESET ALL"):
        about, level, _, fix = one(look(stage))
        assert (about, level) == ("synchronous_commit", "WARN")
        assert "ALTER ROLE CURRENT_USER SET synchronous_commit = on" in fix
        assert one(look(stage, STATEHOLD_SERVICE__MODE="production"))[1] == "FAIL"


def test_a_database_that_does_not_answer(stage: Stage) -> None:
    about, level, reason, fix = one(look(stage, STATEHOLD_SINK__URL="postgresql://clerk@127.0.0.1:9/postgres"))
    assert (about, level) == ("sink.url", "FAIL")
    assert "refused" in reason
    assert "psql" in fix
    assert one(look(stage, STATEHOLD_SINK__URL=""))[:2] == ("sink.url", "FAIL")


def test_by_names_alone_the_tables_are_not_known(stage: Stage) -> None:
    assert one(look(stage, known=False))[:2] == ("tables", "UNKNOWN")


@pytest.mark.long
def test_the_command_knows_the_services_sinks(stage: Stage) -> None:
    with broken(stage, "ALTER TABLE accounts RENAME TO gone", "ALTER TABLE gone RENAME TO accounts"):
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("statehold")),
                "doctor",
                "tests.sinks.worker:service",
                "--json",
                "--only",
                "sink-database",
            ],
            cwd=ROOT,
            env={**os.environ, **stage.environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 12, done.stderr
    reported = [each for each in json.loads(done.stdout)["findings"] if each["about"] == "accounts"]
    assert reported[0]["level"] == "FAIL"
    assert "does not exist" in reported[0]["reason"]
