"""One status, one health and one list of rows of several processes; how a process is started, pinned and limited."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as exposition

from statehold.health import process_memory
from statehold.ops.http.answers import HttpAnswer, HttpRequest
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.remote import control_sockets
from statehold.ops.supervisor import aggregate
from statehold.ops.supervisor.aggregate import ProcessView
from statehold.ops.supervisor.asking import passed_on
from statehold.ops.supervisor.exposition import merged, registry_of
from statehold.ops.supervisor.fleet import State
from statehold.ops.supervisor.launch import (
    Launch,
    ProcessCommand,
    automatic,
    available_cpus,
    environment_of,
    launch_of,
    working_directory,
)
from statehold.ops.supervisor.notify import FleetMessages
from statehold.ops.supervisor.pinning import Pinning
from statehold.telemetry.metrics import FAILURES
from statehold.telemetry.registry import ServiceMetrics


def row(partition: int, phase: str = "live") -> dict[str, Any]:
    return {"partition": partition, "phase": phase, "cause": None, "restore": None}


def status(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {"running": True, "turned": 0.1, "ready": True, "idle": not rows, "waiting": None, "begun": True}
    return found | {"outage": None, "stuck": [], "partitions": list(rows)} | more


def view(number: int, answer: dict[str, Any] | None, state: State = "live", why: str = "") -> ProcessView:
    return ProcessView(number, f"web1-{number}", "", state, why, 0, 100 + number, None, answer)


def test_a_partition_that_moves_is_shown_once_where_it_is_live() -> None:
    views = [view(1, status(row(0), row(1, "draining"))), view(2, status(row(1, "restoring"))), view(3, status(row(2)))]
    found = aggregate.merged(views)["partitions"]
    assert [(each["partition"], each["phase"], each["process"]) for each in found] == [
        (0, "live", 1),
        (1, "restoring", 2),
        (2, "live", 3),
    ]


def test_the_whole_is_as_well_as_its_worst_process() -> None:
    outage = {"seconds": 7.0, "cause": "no answer"}
    longer = {"seconds": 9.0, "cause": "no answer"}
    views = [view(1, status(row(0), outage=outage)), view(2, status(outage=longer, ready=False, turned=70.0))]
    found = aggregate.merged(views)
    assert (found["running"], found["ready"], found["idle"], found["turned"]) == (True, False, False, 70.0)
    assert found["outage"] == longer


def test_a_process_without_an_answer_is_missing() -> None:
    found = aggregate.merged([view(1, status(row(0))), view(2, None, "waiting")])
    assert (found["running"], found["ready"]) == (False, False)
    assert aggregate.merged([])["running"] is False


def test_health_names_the_process() -> None:
    views = [
        view(1, status(row(0))),
        view(2, status(row(1, "restoring"))),
        view(3, None, "down", "exit code 5: a setting"),
        view(4, status(row(2)), "starting"),
    ]
    verdict = aggregate.ready(views)
    assert (verdict.ok, verdict.why) == (
        False,
        [
            "process 2: partition 1 is restoring",
            "process 3 is down: exit code 5: a setting",
            "process 4 is starting",
        ],
    )
    assert aggregate.started(views).why == ["process 3 is down: exit code 5: a setting"]
    assert aggregate.ready(views[:1]).ok
    silent = replace(views[0], silent=12.0)
    assert aggregate.ready([silent]).why == ["process 1 has not answered for 12 s"]
    assert not aggregate.ready([]).ok  # they have not been started yet
    assert aggregate.live(views, 1.0, 60.0).ok
    assert not aggregate.live(views, 60.0, 60.0).ok


def test_rows_of_several_processes_are_in_key_order_and_cut() -> None:
    def answer(*keys: Any, elsewhere: list[int], truncated: bool = False) -> dict[str, Any]:
        rows = [{"key": key, "value": 1, "partition": 0} for key in keys]
        return {"rows": rows, "truncated": truncated, "partitions": {str(elsewhere[0]): {}}, "elsewhere": elsewhere}

    found = aggregate.merged_rows([answer("a", "d", elsewhere=[1, 2]), answer("b", elsewhere=[0, 2])], "str", 2)
    assert [each["key"] for each in found["rows"]] == ["a", "b"]
    assert (found["truncated"], found["elsewhere"], set(found["partitions"])) == (True, [2], {"0", "1"})
    # In the order of the bytes, not of their base64 text: "+/8=" is fb ff, "AAA=" is 00 00.
    found = aggregate.merged_rows([answer("+/8=", elsewhere=[1]), answer("AAA=", elsewhere=[0])], "bytes", 5)
    assert [each["key"] for each in found["rows"]] == ["AAA=", "+/8="]
    assert found["truncated"] is False


def test_systemd_hears_of_a_start_once_and_a_process_that_is_down_does_not_delay_it() -> None:
    messages = FleetMessages()
    starting = [view(1, status(row(0))), view(2, None, "starting")]
    assert set(messages.next(starting, "", stopping=False, watched=True)) == {
        "EXTEND_TIMEOUT_USEC",
        "WATCHDOG",
        "STATUS",
    }
    down = [view(1, status(row(0))), view(2, None, "down", "exit code 5")]
    heard = messages.next(down, "", stopping=False, watched=False)
    assert (heard["READY"], heard["STATUS"]) == (
        1,
        "2 processes: 1 down, 1 live; partitions: 1 live; process 2 is down: exit code 5",
    )
    assert messages.next(down, "", stopping=False, watched=False) == {}
    assert messages.next(down, "", stopping=True, watched=True) == {"STOPPING": 1, "WATCHDOG": 1}


# Start


def test_a_process_gets_its_name_and_its_launch_as_options() -> None:
    command = ProcessCommand(["run", "app:service", "--set", "service.instance=web1"], "web1")
    line = command.line(Launch(7, "/run/1.process", "http://web1:8470/process/3", 4, 2), 3)
    assert line[:5] == [sys.executable, "-m", "statehold.ops.cli.entry", "run", "app:service"]
    assert line[-4:-1] == ["--set", "service.instance=web1-3", "--launch"]  # the last one of a setting counts
    assert launch_of(line[-1]) == Launch(7, "/run/1.process", "http://web1:8470/process/3", 4, 2)


def test_a_process_does_not_talk_to_the_supervisor_s_supervisor() -> None:
    assert environment_of({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "PATH": "/bin"}) == {"PATH": "/bin"}


def test_a_release_behind_a_symbolic_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "current").symlink_to("one")
    monkeypatch.chdir(tmp_path / "current")
    assert working_directory({"PWD": str(tmp_path / "current")}) == tmp_path / "current"
    assert working_directory({"PWD": "/"}) == tmp_path / "one"
    assert working_directory({}) == tmp_path / "one"


@pytest.mark.parametrize(("cpus", "processes"), [(0.5, 1), (1, 1), (2, 2), (4, 3), (8, 6), (16, 11), (64, 43)])
def test_auto_is_two_processes_for_three_cores(cpus: float, processes: int) -> None:
    assert automatic(cpus) == processes


def test_auto_counts_the_limit_of_a_container(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("50000 100000\n")
    assert available_cpus(quota) == 0.5
    quota.write_text("max 100000\n")
    assert available_cpus(quota) == available_cpus(tmp_path / "missing") >= 1


# Memory and cores


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    process_memory.share_among(1)


def test_processes_share_the_memory_limit(tmp_path: Path, alone: None) -> None:
    process, cgroups = tmp_path / "proc" / "self", tmp_path / "cgroups"
    process.mkdir(parents=True)
    cgroups.mkdir()
    (process / "cgroup").write_text("0::/\n")
    (cgroups / "memory.max").write_text("4000000000\n")
    assert process_memory.limit(process, cgroups) == (4_000_000_000, str(cgroups / "memory.max"))
    process_memory.share_among(4)
    source = f"{cgroups / 'memory.max'}, shared by 4 processes"
    assert process_memory.limit(process, cgroups) == (1_000_000_000, source)


def test_python_s_threads_get_one_core_and_the_others_the_rest() -> None:
    pinned: dict[int, set[int]] = {}
    pinning = Pinning(1, [0, 1, 2], lambda task, cores: pinned.__setitem__(task, set(cores)))
    pinning.turn([10, 11, 12], [10, 11])
    assert pinned == {10: {1}, 11: {1}, 12: {0, 2}}
    pinned.clear()
    pinning.turn([10, 12, 13], [10, 13])
    assert pinned == {13: {1}}  # the others are where they belong
    alone: dict[int, set[int]] = {}
    Pinning(0, [0], lambda task, cores: alone.__setitem__(task, set(cores))).turn([10, 11], [10])
    assert alone == {10: {0}, 11: {0}}


# Metrics


def of_service(records: int) -> ServiceMetrics:
    found = ServiceMetrics("orders")
    metrics = found.partition(3)
    metrics.committed(
        seconds=0.1,
        handler_seconds=0.1,
        records=records,
        outputs=1,
        increment_bytes=1,
        position=1,
        keys=1,
        newest=1,
    )
    metrics.inc(FAILURES, 1, 'a "quoted" {name}\n')
    return found


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_every_metric_of_a_service_is_merged_and_stays_valid(accept: str) -> None:
    encode, kind = choose_encoder(accept)
    parse: Any = openmetrics if "openmetrics" in kind else exposition
    texts = {number: encode(of_service(number).registry).decode() for number in (1, 2)}
    own = encode(registry_of("orders", [view(1, None), view(2, None), view(3, None, "down")], texts)).decode()
    families = {family.name: family for family in parse(merged(texts, own))}

    expected = set()
    for number, text in texts.items():
        for family in parse(text):
            expected |= {
                (s.name, frozenset({**s.labels, "process": str(number)}.items()), s.value) for s in family.samples
            }
    found = {(s.name, frozenset(s.labels.items()), s.value) for each in families.values() for s in each.samples}
    assert len(expected) > 300
    assert expected - found == set()
    assert {name for name, _, _ in found - expected if not name.startswith("process_")} == {
        "statehold_ready",
        "statehold_process_restarts_total",
    }
    ready = {s.labels["process"]: s.value for s in families["statehold_ready"].samples}
    assert ready == {"3": 0.0}  # the others have no manager, and say nothing


def test_a_request_that_is_passed_on_carries_no_second_one() -> None:
    directory = Path(tempfile.mkdtemp(prefix="sup-"))  # short, as the path of a socket has to be
    heard: list[HttpRequest] = []

    def answer(request: HttpRequest) -> HttpAnswer:
        heard.append(request)
        return HttpAnswer(200, b"{}")

    server = BoundedServer(control_sockets.listen_at(directory / "1.process"), answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    member: Any = SimpleNamespace(number=1, socket=directory / "1.process")
    smuggled = "text/plain\r\nAuthorization: Bearer x\r\n\r\nPOST /drain HTTP/1.1\r\n"
    try:
        given = HttpRequest("GET", "/status", {"a": "b c&d"}, {"accept": smuggled, "cookie": "x"})
        assert passed_on(member, given).status == 200
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10.0)
        shutil.rmtree(directory)
    (only,) = heard
    assert (only.method, only.path, only.query) == ("GET", "/status", {"a": "b c&d"})
    assert "authorization" not in only.headers
    assert "cookie" not in only.headers
