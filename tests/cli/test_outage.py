"""Commands while Kafka is away: they say which address, since when and what to do next, and show that they wait."""

from __future__ import annotations

import queue
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Commands

from statehold.config import load
from statehold.ops.cli.common import output, waiting
from statehold.ops.remote import local_services
from statehold.ops.remote.control_sockets import LocalProcess
from statehold.ops.reports import outage

pytestmark = pytest.mark.slow

ADDRESS = "127.0.0.1:9"
SUBJECT = ("--name", "ledger", "--input", "entries")
#: they take 8 to 15 s each
QUICK = ("dlq list", "pause")
LONG = (
    "lag",
    "status",
    "top --once",
    "resume",
    "command close-day",
    "finish-upgrade --dry-run",
    "dlq replay --all",
    "txn list",
    "topics check",
    "snapshot list",
    "snapshot show",
    "snapshot verify",
    "snapshot diff n:0 latest",
    "snapshot history a1",
    "snapshot take",
    "snapshot backup --to here",
    "snapshot export --latest --to there",
    "compact",
    "cat entries",
)


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A port that accepts connections and never answers, as that of a frozen broker."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("words", [*QUICK, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)])
def test_a_command_names_the_address_since_when_and_the_next_step(statehold: Commands, words: str) -> None:
    statehold.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"] = ADDRESS
    done = statehold.run(*words.split(), *(() if words.startswith("cat") else SUBJECT))

    assert done.returncode == 1
    first, *_, last = [line for line in done.stderr.splitlines() if line.startswith("statehold: ")]
    assert re.fullmatch(rf"statehold: {ADDRESS}: waits for Kafka for \d+ s: Connection refused", first)
    assert last.startswith(f"statehold: {ADDRESS}: connect: the brokers do not answer: Connection refused. ")
    assert re.search(r"since \d\d:\d\d:\d\dZ, for \d+ s\. Next: .*`statehold doctor`", last)


def test_the_doctor_names_the_address_and_the_cause(statehold: Commands) -> None:
    statehold.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"] = ADDRESS
    done = statehold.run("doctor")

    assert done.returncode == 12
    assert f"FAIL    brokers-reachable {ADDRESS}: no broker answers: Connection refused" in done.stdout
    assert done.stderr.startswith(f"statehold: {ADDRESS}: waits for Kafka for ")


def test_every_address_has_its_cause_unless_one_answers(silent_address: str) -> None:
    settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": f"{silent_address},{ADDRESS}"})
    found = outage.silent(settings)

    assert found == {silent_address: "no answer within 1 s", ADDRESS: "Connection refused"}
    assert outage.causes_of(found) == f"{silent_address}: no answer within 1 s, {ADDRESS}: Connection refused"


def test_the_error_says_since_when_the_service_has_had_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"outage": {"seconds": 312.4, "cause": "timed out"}}
    monkeypatch.setattr(local_services, "of_service", lambda _: [LocalProcess(Path("x.sock"), status)])
    text = outage.text_of(load(env={}), "ledger", {"127.0.0.1:9092": "Connection refused"}, 8.0)

    assert re.search(r" ledger on this machine has had no answer since \S+Z, for 312 s\. Next: ", text)


def test_a_wait_for_answers_shows_that_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(waiting, "_FIRST", 0.01)
    monkeypatch.setattr(output, "complain", said.put)
    with waiting.progress("the partitions' answers to pause", 60):
        first = said.get(timeout=30)

    assert first == "waits for the partitions' answers to pause for 0 s, 60 s at most"
