"""What is live, ready and started, as pure verdicts; and what the door lets in. No broker."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.desk import TOKEN, Names, a_desk, ask, with_token

from statehold.config import load
from statehold.config.common.errors import SettingsError
from statehold.config.sections.ops import OpsSettings
from statehold.errors import StartError
from statehold.ops.http import health
from statehold.ops.http.server import OpsServer

NOWHERE = Names("127.0.0.1:1", "desk", "orders", "done")


def status(*phases: str, turned: float | None = 0.02, away: float = 0.0, running: bool = True) -> dict[str, Any]:
    outage = {"seconds": away, "cause": "no coordinator"} if away else None
    partitions = [{"partition": p, "phase": phase, "cause": None, "restore": None} for p, phase in enumerate(phases)]
    return {"running": running, "turned": turned, "outage": outage, "partitions": partitions}


@pytest.mark.parametrize(
    ("reported", "live", "ready", "started"),
    [
        (status("live", "live"), True, True, True),
        (status(), True, True, True),  # a standby
        (status("live", "restoring"), True, False, True),
        (status("failed"), True, False, True),  # a restart would not fix the record
        (status("live", away=180.0), True, False, True),  # three minutes without brokers: no restart
        (status("live", turned=61.0), False, False, True),
        (status(turned=None), True, False, False),  # it is joining
        (status(running=False), False, False, False),
    ],
)
def test_each_status_has_its_health_answers(reported: dict[str, Any], live: bool, ready: bool, started: bool) -> None:
    assert (health.live(reported).ok, health.ready(reported).ok, health.started(reported).ok) == (live, ready, started)
    assert all([*health.live(reported).why, *health.ready(reported).why])


def test_why_names_the_partition_its_progress_and_its_cause() -> None:
    reported = status("restoring", "failed", "live")
    reported["partitions"][0]["restore"] = {"step": "full", "position": 3, "end": 9}
    reported["partitions"][1]["cause"] = "the handler raised KeyError"
    assert health.ready(reported).why == [
        "partition 0 is restoring, full 3 of 9",
        "partition 1 is failed: the handler raised KeyError",
    ]
    reported["partitions"][1]["stuck"] = True
    assert health.live(reported) == (False, ["partition 1: the handler raised KeyError"])
    reported["partitions"][1]["stuck"] = False
    reported["stuck"] = [{"doing": "flush", "partition": 2, "seconds": 90.2}]
    assert health.live(reported) == (False, ["partition 2: flush has not come back for 90 s (its stack is in the log)"])


# The door


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a service that is not started: what answers must answer all the same."""
    with OpsServer(a_desk(NOWHERE)) as server:
        yield server.url


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with OpsServer(a_desk(NOWHERE, **with_token(state="on"))) as server:
        yield server.url


def test_every_answer_has_the_headers_that_keep_a_browser_safe(url: str) -> None:
    for path in ("/", "/live", "/metrics", "/status", "/nothing"):
        headers = ask(url, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"


def test_a_service_that_does_not_run_is_reported_with_its_reason(url: str) -> None:
    for path, name in (("/live", "live"), ("/ready", "ready"), ("/startup", "started")):
        reply = ask(url, path)
        assert (reply.status, reply.json[name]) == (503, False)
        assert "not running" in reply.json["why"][0]


def test_metrics_are_what_prometheus_reads(url: str) -> None:
    reply = ask(url, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    names = {family.name for family in text_string_to_metric_families(reply.body.decode())}
    assert {"statehold_build_info", "statehold_ready", "process_resident_memory_bytes"} <= names
    openmetrics = ask(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_only_reading_and_no_bodies(url: str) -> None:
    assert ask(url, "/live", method="POST").status == 405
    assert ask(url, "/live", method="DELETE").status == 405
    assert ask(url, "/live", body=b"x" * 100).status == 413
    assert ask(url, f"/{'x' * 5000}").status == 414
    head = ask(url, "/status", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert ask(url, "/../../etc/passwd").status == 404
    assert ask(url, "/console/../../../server.py").status == 404


def test_a_line_that_is_no_http_gets_an_answer_and_the_next_one_too(url: str) -> None:
    place = urlsplit(url)
    for line in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 70_000 + b"\r\n\r\n"):
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=20) as connection:
            connection.sendall(line)
            assert b"HTTP/1.1 " in connection.recv(4096)
    assert ask(url, "/status").status == 200


def answers(connection: socket.socket) -> bool:
    with suppress(OSError):
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 ")
    return False


def test_beyond_the_limit_the_oldest_that_are_silent_are_cut_off_and_the_others_answered(url: str) -> None:
    place = urlsplit(url)
    with ExitStack() as stack:
        address = place.hostname or "", place.port or 0
        silent = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(40)]
        answered = [answers(connection) for connection in silent[8:]]  # 32 have room, and 8 more came
        assert all(answered[:24])
        assert any(answered[24:]), "who came late"  # each, but where the machine is too busy to cut one off in a second
        assert [connection.recv(1) for connection in silent[:8]] == [b""] * 8


def test_a_page_of_another_site_cannot_ask_under_its_own_name(url: str) -> None:
    assert ask(url, "/status", Host="evil.example").status == 421
    assert ask(url, "/status", Host=f"localhost:{urlsplit(url).port}").status == 200


def test_health_and_metrics_need_no_token_and_all_else_does(guarded: str) -> None:
    for path in ("/live", "/ready", "/startup", "/metrics", "/"):
        assert ask(guarded, path).status in (200, 503)
    for path in ("/status", "/console/data", "/state", "/state/accounts/ann"):
        assert ask(guarded, path).status == 401
        assert ask(guarded, path).headers["www-authenticate"].startswith("Bearer")
        assert ask(guarded, path, token=TOKEN[::-1]).status == 401
        assert ask(guarded, path, token=TOKEN[:-1]).status == 401
    assert ask(guarded, "/status", token=TOKEN).status == 200
    assert ask(guarded, "/status", Authorization=f"bearer {TOKEN}").status == 200
    assert ask(guarded, "/status", Authorization="Bearer töken".encode().decode("latin-1")).status == 401


def test_state_is_off_unless_it_was_turned_on(url: str) -> None:
    reply = ask(url, "/state/accounts/ann")
    assert reply.status == 404
    assert "ops.state" in reply.json["error"]


def test_on_an_address_that_others_reach_nothing_but_health_is_shown_without_a_token() -> None:
    with OpsServer(a_desk(NOWHERE, listen="0.0.0.0:0")) as server:
        here = f"http://127.0.0.1:{urlsplit(server.url).port}"
        assert ask(here, "/live").status == 503
        assert ask(here, "/metrics").status == 200
        reply = ask(here, "/status")
        assert reply.status == 403
        assert "ops.token" in reply.json["error"]


def test_auto_takes_the_next_port_when_one_is_taken_and_an_exact_one_is_rejected() -> None:
    with OpsServer(a_desk(NOWHERE, listen="auto")) as first, OpsServer(a_desk(NOWHERE, listen="auto")) as second:
        assert first.url != second.url
        assert {urlsplit(each.url).hostname for each in (first, second)} == {"127.0.0.1"}
        taken = f"127.0.0.1:{urlsplit(first.url).port}"
        with pytest.raises(StartError, match=rf"ops.listen = {taken}.*in use"):
            OpsServer(a_desk(NOWHERE, listen=taken)).open()


def test_off_is_off() -> None:
    service = a_desk(NOWHERE, listen="off")
    with OpsServer(service) as server:
        assert (server.url, service.url) == ("", "")


def test_the_group_gets_the_advertised_url() -> None:
    service = a_desk(NOWHERE, advertised="https://web1:8443/ops")
    with OpsServer(service):
        assert service.url == "https://web1:8443/ops"
        assert service._client_id() == "desk@https://web1:8443/ops"


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"STATEHOLD_OPS__STATE": "on"}, "ops.state"),
        ({"STATEHOLD_OPS__TOKEN": "short"}, "ops.token"),
        ({"STATEHOLD_OPS__LISTEN": "everywhere"}, "ops.listen"),
        ({"STATEHOLD_OPS__ADVERTISED": "web1:80"}, "ops.advertised"),
    ],
)
def test_settings_that_would_open_a_door_are_rejected(environment: dict[str, str], wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong) as rejected:
        load(env=environment)
    assert "short" not in str(rejected.value).replace("shorter", "")


def test_a_token_does_not_show() -> None:
    settings = OpsSettings(**with_token())
    assert TOKEN not in repr(settings)
    assert json.dumps(str(settings)).count(TOKEN) == 0


def test_a_closed_server_answers_no_open_connection() -> None:
    request = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with OpsServer(a_desk(NOWHERE)) as server:
        place = urlsplit(server.url)
        connection = socket.create_connection((place.hostname, place.port), timeout=30)
        connection.sendall(request)
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
    with connection, suppress(OSError):
        connection.sendall(request)
        rest = b"".join(iter(lambda: connection.recv(65536), b""))
        assert b"HTTP/1.1 " not in rest
