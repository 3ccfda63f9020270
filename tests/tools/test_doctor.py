"""`statehold doctor` on a service that is as it should be, and what does not depend on a broker."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.ending import ending
from tests.tools.recorded import Ledger

from statehold.common.exit_codes import Answer
from statehold.dev import Cluster
from statehold.kafka.survey import api_versions
from statehold.ops.doctor.brokers import Versions
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import CHECKS, examine
from statehold.ops.doctor.machine import ClientLibrary
from statehold.ops.doctor.report import Check, Finding, Level, answer
from statehold.ops.doctor.snapshots import RestoreTime


def test_the_page_has_a_row_for_each_check(root: Path) -> None:
    page = (root / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")

    assert all(f"\n| `{each.name}` | " in page for each in CHECKS)
    assert len({each.name for each in CHECKS}) == len(CHECKS)


def test_each_check_is_made_to_fail_by_a_test(root: Path) -> None:
    """A check that no test ever saw fail may be one that cannot."""
    folders = ("tools", "security", "sinks")
    files = [path for folder in folders for path in sorted((root / "tests" / folder).glob("test_doctor*"))]
    others = ("ops/test_failed_partition.py", "ops/test_console_calls.py", "unit/test_doctor_local_disk.py")
    files += [root / "tests" / each for each in others]
    reported = "".join(path.read_text(encoding="utf-8") for path in files)

    assert [each.name for each in CHECKS if f'"{each.name}"' not in reported] == []


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ("", Answer.YES),
        ("PASS", Answer.YES),
        ("PASS WARN", Answer.WARNED),
        ("WARN UNKNOWN", Answer.UNKNOWN),
        ("UNKNOWN FAIL WARN", Answer.FAILED),
    ],
)
def test_the_worst_finding_decides_the_exit_code(levels: str, code: Answer) -> None:
    assert answer([Finding("x", "-", Level(each), "") for each in levels.split()]) is code


# On a broker of a developer


@pytest.mark.kafka
def test_a_sound_service_has_only_the_faults_of_one_broker(ledger: Ledger) -> None:
    reported = ledger.json("doctor", ledger.target, "--deep", "--set", "service.mode=development", code=10)

    assert reported["worst"] == "WARNED"
    not_good = {each["check"] for each in reported["findings"] if each["level"] != "PASS"}
    assert not_good == {"replication", "log-directory"}
    assert {each["check"] for each in reported["findings"]} == {each.name for each in CHECKS}
    assert all(each["fix"] for each in reported["findings"] if each["level"] in ("WARN", "FAIL"))


@pytest.mark.kafka
def test_by_names_alone_and_for_people(ledger: Ledger) -> None:
    names = ("--name", ledger.names.service, "--input", ledger.names.input, "--no-probe", "--quiet")
    done = ledger.run("doctor", *names)

    assert done.returncode == Answer.FAILED  # one replica, in production
    assert "FAIL    replication" in done.stdout
    assert "UNKNOWN clocks" in done.stdout
    assert "PASS" not in done.stdout
    assert "        fix: " in done.stdout


@pytest.mark.kafka
def test_without_a_service_the_cluster_alone(ledger: Ledger) -> None:
    reported = ledger.json("doctor", "--only", "topics", "--only", "unclean-election", code=11)

    assert [(each["check"], each["level"]) for each in reported["findings"]] == [
        ("unclean-election", "PASS"),
        ("topics", "UNKNOWN"),
    ]


@pytest.mark.kafka
def test_an_unknown_check_is_reported_with_the_known_ones(ledger: Ledger) -> None:
    done = ledger.run("doctor", "--only", "clock")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no check 'clock'; there are failed-partitions, " in done.stderr


@pytest.mark.kafka
@pytest.mark.parametrize(("off", "level"), [(-0.001, "PASS"), (30, "WARN"), (-120, "FAIL")])
def test_a_clock_that_is_wrong(ledger: Ledger, off: float, level: str) -> None:
    """The test's clock, in place of the broker's: what is compared is the difference."""
    settings = ledger.settings(STATEHOLD_DOCTOR__CLOCK_TOLERANCE="1")
    case = Case(settings, ledger.names, wall=lambda: time.time() + off)

    assert [each.level for each in examine(case, ["clocks"])] == [level]


@pytest.mark.kafka
def test_the_probes_topic_is_gone_afterwards(ledger: Ledger) -> None:
    case = Case(ledger.settings(), ledger.names)
    examine(case, ["clocks"])

    left = [name for name in case.admin.client.list_topics(timeout=60).topics if "doctor-" in name]
    assert [name for name in left if name.startswith(ledger.names.group)] == []


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("check", "level"),
    [
        (ClientLibrary((2, 10, 0)), "FAIL"),
        (ClientLibrary((2, 3, 0)), "FAIL"),
        (ClientLibrary((2, 15, 0)), "FAIL"),
        (ClientLibrary((2, 16, 0)), "PASS"),
        (RestoreTime(deadline=0.01), "FAIL"),
        (RestoreTime(budget=0.01), "WARN"),
    ],
    ids=["bad range", "loses messages", "too old", "good", "over the deadline", "over the budget"],
)
def test_other_versions_and_other_limits(ledger: Ledger, check: Check, level: str) -> None:
    """ "client-library", "restore-time": the real state, judged by limits that it exceeds."""
    found = examine(Case(ledger.settings(), ledger.names), checks=[check])

    assert level in {each.level for each in found}


@pytest.mark.kafka
def test_too_few_files(ledger: Ledger) -> None:
    words = [*ledger.command("doctor", ledger.target), "--only", "file-limit", "--json"]
    limited = ["sh", "-c", 'ulimit -n 250; exec "$@"', "sh", *words]

    done = subprocess.run(
        limited, cwd=ledger.directory, env=ledger.shell(), capture_output=True, text=True, check=False, timeout=90
    )

    assert done.returncode == Answer.WARNED, done.stderr
    assert "LimitNOFILE=278" in done.stdout


# Brokers of other releases, as bytes on a socket


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("levels", "level", "reported"),
    [
        ((33, 33), "PASS", ""),
        ((8, 8), "FAIL", "supports metadata.version up to 8, needed 21 (Kafka 3.9)"),
        ((33, 25), "WARN", "metadata.version is 25, all brokers support 33"),
        ((0, 0), "UNKNOWN", "reports no metadata.version"),
    ],
)
def test_an_old_broker(ledger: Ledger, levels: tuple[int, int], level: str, reported: str) -> None:
    case = Case(ledger.settings(), ledger.names)
    with _speaking(*levels) as port:
        case.spoken = {f"broker 1 at 127.0.0.1:{port}": api_versions.ask("127.0.0.1", port, None, 10)}

    (found,) = examine(case, checks=[Versions()])

    assert (found.level, reported in found.reason) == (level, True), found
    assert found.check == "broker-versions"


def test_an_address_without_a_broker_is_reported_as_such() -> None:
    with (
        _speaking(33, 33, garbage=b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        pytest.raises(ValueError, match="no Kaf"),
    ):
        api_versions.ask("127.0.0.1", port, None, 10)


@contextmanager
def _speaking(supported: int, finalized: int, garbage: bytes = b"") -> Iterator[int]:
    """A peer that answers one ApiVersions request as a broker with these levels of metadata.version would."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                (size,) = struct.unpack(">i", connection.recv(4))
                asked = connection.recv(size)
                body = asked[4:8] + struct.pack(">h", 0) + b"\x02" + struct.pack(">hhh", 18, 0, 4) + b"\x00"
                body += struct.pack(">i", 0) + _tags(supported, finalized)
                connection.sendall(garbage or struct.pack(">i", len(body)) + body)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join(30)


def _tags(supported: int, finalized: int) -> bytes:
    if not supported:
        return b"\x00"
    name = b"\x11metadata.version"
    first = b"\x02" + name + struct.pack(">hh", 1, supported) + b"\x00"
    third = b"\x02" + name + struct.pack(">hh", finalized, finalized) + b"\x00"
    return b"\x02" + b"\x00" + bytes([len(first)]) + first + b"\x02" + bytes([len(third)]) + third


# At the start of a service


@pytest.mark.kafka
def test_a_service_does_not_start_when_a_check_fails(ledger: Ledger) -> None:
    words = ledger.command("run", ledger.target, "--json", "--set", "doctor.at_start=fail")
    done = subprocess.run(
        words, cwd=ledger.directory, env=ledger.shell(), capture_output=True, text=True, check=False, timeout=90
    )

    assert (done.returncode, done.stdout) == (1, "")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert not {"starting", "subscribed"} & {each["event"] for each in events}
    assert {"replication", "log-directory"} <= {each["check"] for each in events if each["event"] == "doctor"}
    assert events[-1]["cause"].startswith("doctor.at_start = fail: log-directory: broker 1: ")


@pytest.mark.kafka
def test_a_start_logs_the_findings_of_the_doctor(kafka: Cluster, tmp_path: Path) -> None:
    other = Ledger(kafka.bootstrap_servers, tmp_path).create()
    words = other.command("run", other.target, "--json", "--set", "doctor.at_start=warn")
    reported: set[str] = set()
    process = subprocess.Popen(words, cwd=tmp_path, env=other.shell(), stderr=subprocess.PIPE, text=True)
    with process, ending(process):
        for line in process.stderr or ():
            event = json.loads(line)
            reported.add(event["event"] if event["event"] != "doctor" else f"doctor {event['check']} {event['result']}")
            if {"live", "doctor replication FAIL"} <= reported:
                process.terminate()
    assert process.returncode == 0
    assert "stopped" in reported
