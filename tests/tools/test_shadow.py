"""`statehold shadow` next to a running service: equal code is equal, another is not, and nothing is written."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import await_true
from tests.support.verify import read_all
from tests.tools.recorded import Ledger
from tests.tools.test_rehearse import ends, groups, of, rewritten

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


class Shadowing:
    """A shadow in a process of its own; its ops server is read as Prometheus would."""

    def __init__(self, ledger: Ledger, target: str, *options: str) -> None:
        self.process = subprocess.Popen(
            ledger.command("shadow", target, "--json", "--every", "1h", "-s", "ops.listen=127.0.0.1:0", *options),
            cwd=ledger.directory,
            env=ledger.shell(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        await_true(lambda: self._url() or self.process.poll() is not None, "the ops server of the shadow")
        self.url = self._url()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.errors += iter(self.process.stderr.readline, "")

    def _url(self) -> str:
        found = [line.split("metrics: ")[1].split("/metrics")[0] for line in self.errors if "metrics: " in line]
        return found[0] if found else ""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=20) as answer:  # noqa: S310
            text: str = answer.read().decode()
            return text

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/report"))
        return found

    def await_partition(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        await_true(lambda: condition(self.report()["partitions"][0]), f"{what}: {self.errors}", 60)
        found: dict[str, Any] = self.report()["partitions"][0]
        return found

    def await_end(self, position: int) -> dict[str, Any]:
        return self.await_partition(lambda found: found["end"] >= position, f"the shadow at {position}")

    def end(self, code: int, number: int = signal.SIGINT) -> dict[str, Any]:
        """Send a signal; return the last report."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=60)
        self._reader.join()
        assert self.process.returncode == code, (out, self.errors)
        last: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert last["ended"]
        return last


@contextmanager
def shadowing(ledger: Ledger, target: str, *options: str) -> Iterator[Shadowing]:
    made = Shadowing(ledger, target, *options)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def following(found: dict[str, Any]) -> bool:
    return bool(found["phase"] == "following")


def value(text: str, name: str, *labels: str) -> float:
    """The sum of a metric's series that have all these labels."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.split()[-1]) for line in lines if all(label in line for label in labels))


def test_it_compares_what_the_running_service_does(kafka: Cluster, tmp_path: Path) -> None:
    """Both shadows at once: of the same code, and of another. Full snapshots and a restart are between."""
    made = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    with made.running():
        made.feed_in_turns(50, 50)
        members = groups(made)
    faulty = rewritten(made, "one_off", ("entry.amount \n", "entry.amount + (record.offset == 130)\n"))
    with shadowing(made, made.target) as same, shadowing(made, faulty) as other:
        for each in (same, other):
            assert each.await_partition(following, "the shadow follows")["end"] == 100
        with made.running():
            made.feed_in_turns(25, 25)
        with made.running():  # the stop between has written a full snapshot, and truncated the changelog
            made.feed_in_turns(25, 25)
            for each in (same, other):
                each.await_end(200)
            assert groups(made) == members
        before = ends(made)
        metrics = other.get("/metrics")
        ready = json.loads(same.get("/ready"))
        equal, different = same.end(0)["partitions"][0], other.end(4, signal.SIGTERM)["partitions"][0]

    assert ends(made) == before
    assert sum(map(len, read_all(made.servers, f"{made.name}.booked").values())) == 200  # the service's alone
    assert (equal["verdict"], equal["starts"], equal["records"], equal["examples"]) == ("equal", 1, 100, [])
    assert of(equal, "outputs", "booked")["compared"] == 100
    assert of(equal, "table", "balances")["compared"] >= 40
    assert (different["starts"], different["records"]) == (1, 100)
    assert different["examples"][0]["record"] == f"{made.names.input}[0]@130"
    booked = of(different, "outputs", "booked")
    assert (booked["compared"], booked["missing"], booked["added"]) == (100, 0, 0)
    assert booked["changed"] == len([offset for offset in range(130, 200) if offset % 40 == 130 % 40])
    assert of(different, "table", "balances")["changed"] == 1
    assert ready == {"ready": True, "why": ""}
    assert value(metrics, "statehold_shadow_records_total") == 100
    assert value(metrics, "statehold_shadow_following") == 1
    assert value(metrics, "statehold_shadow_starts_total") == 1
    assert value(metrics, "statehold_shadow_differences", 'kind="outputs"') == booked["changed"]
    assert value(metrics, "statehold_shadow_differences", 'kind="table"', 'name="balances"') == 1
    assert value(metrics, "statehold_shadow_compared_total", 'kind="outputs"') == 100
    assert 0 <= value(metrics, "statehold_shadow_age_seconds") < 60


@pytest.mark.long
def test_it_starts_again_after_a_state_replacement_and_after_truncation(kafka: Cluster, tmp_path: Path) -> None:
    made = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    with made.running():
        made.feed_in_turns(50)
    with shadowing(made, made.target) as shadow:
        shadow.await_partition(following, "the shadow follows")
        with made.running():
            made.feed_in_turns(25)
            shadow.await_end(75)
        done = made.run("state", "migrate", made.target, "--drop", "pairs", "--why", "a test", "--yes")
        assert done.returncode == 0, done.stderr
        shadow.await_partition(lambda found: found["starts"] == 2 and following(found), "another start")
        with made.running():
            made.feed_in_turns(25)
            shadow.await_end(100)
        shadow.process.send_signal(signal.SIGSTOP)
        for _ in range(3):  # each stop writes a full snapshot
            with made.running():
                made.feed_in_turns(25)
        shadow.process.send_signal(signal.SIGCONT)
        shadow.await_partition(lambda found: following(found) and found["age"] < 5, "the shadow at the end")
        with made.running():
            made.feed_in_turns(25)
            shadow.await_end(200)
        found = shadow.end(0)["partitions"][0]

    assert found["verdict"] == "equal"
    assert any("replaced the state" in text for text in found["notes"])
    assert of(found, "outputs", "booked")["changed"] == 0


@pytest.mark.long
def test_it_survives_an_outage_of_the_brokers(tmp_path: Path) -> None:
    with Cluster() as own:
        (broker,) = own.ports
        made = Ledger(own.bootstrap_servers, tmp_path, partitions=1).create()
        with made.running():
            made.feed_in_turns(50)
        with shadowing(made, made.target) as shadow:
            shadow.await_partition(following, "the shadow follows")
            own.kill(broker)
            shadow.await_partition(lambda found: found["phase"] == "waiting", "the shadow sees the outage")
            own.start(broker)
            with made.running():
                made.feed_in_turns(50)
                shadow.await_end(100)
            found = shadow.end(0)["partitions"][0]

    assert (found["verdict"], found["starts"], found["records"]) == ("equal", 1, 50)


def test_wrong_options_and_code_that_cannot_take_over(ledger: Ledger) -> None:
    wrong = ledger.run("shadow", ledger.target, "--for", "soon")
    assert (wrong.returncode, "--for soon" in wrong.stderr) == (2, True)

    unreadable = rewritten(ledger, "no_shadow", ("    entries: int = 0", "    entries: str = ''"))
    found = ledger.json("shadow", unreadable, "-s", "ops.listen=off", code=5)
    assert (found["verdict"], found["ended"]) == ("unreadable", True)
    assert [each["phase"] for each in found["partitions"]] == ["unreadable", "unreadable"]

    nothing = ledger.run("shadow", ledger.target, "--for", "2s", "--partitions", "1", "-s", "ops.listen=off")
    assert nothing.returncode == 1
    assert nothing.stdout.rstrip().splitlines()[-1].startswith("INCOMPLETE: ")
    assert "partition 1: follows from transaction" in nothing.stdout
