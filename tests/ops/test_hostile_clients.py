"""Hostile clients of the ops server and the control socket: slow, greedy, malformed, guessing; probes still pass."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statehold import Handler, Record, Service, Table
from statehold.config import Secret, Settings
from statehold.config.sections.ops import OpsSettings
from statehold.ops.http.answers import HttpRequest
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.server import OpsServer
from statehold.ops.process.control import ControlServer

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105
HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-",
}
LISTENING = (
    "/",
    "/console.js",
    "/live",
    "/ready",
    "/metrics",
    "/status",
    "/state/balances/a",
    "/nothing",
    "//",
    "/%00",
)


class Nothing(Handler[bytes]):
    balances = Table(key=str, value=int)

    def on_record(self, record: Record[bytes]) -> None:
        self.balances["a"] = 1


class Door:
    """How a client reaches a server: an address, or the path of a Unix socket."""

    def __init__(self, where: tuple[str, int] | Path) -> None:
        self._where = where

    def connect(self) -> socket.socket:
        if isinstance(self._where, Path):
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(self._where))  # with a timeout it would not wait for room in the queue
            client.settimeout(30)
            return client
        return socket.create_connection(self._where, timeout=30)


def tcp(server: OpsServer) -> Door:
    parts = urlsplit(server.url)
    return Door((str(parts.hostname), int(parts.port or 0)))


def a_service() -> Service:
    ops = OpsSettings(listen="127.0.0.1:0", token=Secret(TOKEN), state="on")
    return Service("doors", input="in", handler=Nothing, settings=Settings(ops=ops))


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """A service that is not started, behind its ops server."""
    with OpsServer(a_service()) as server:
        yield tcp(server)


@pytest.fixture(scope="module")
def control_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A service that is not started, behind its control socket."""
    with ControlServer(a_service(), tmp_path_factory.mktemp("control")) as server:
        yield Door(server.path)


@pytest.fixture(params=["door", "control_door"])
def any_door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.getfixturevalue(request.param)
    return found


def ask(door: Door, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = door.connect()
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def await_answer(door: Door, seconds: float = 60.0) -> int:
    """The status of /live as soon as the server answers; what is in the way may be cut off first."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return ask(door, "/live")[0]
        assert time.monotonic() < deadline, "no server answers"
        time.sleep(0.05)


@pytest.mark.parametrize("path", LISTENING)
def test_every_answer_has_the_headers(any_door: Door, path: str) -> None:
    _, headers, _ = ask(any_door, path)
    for name, part in HEADERS.items():
        assert part in headers.get(name, ""), name
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "python" not in headers.get("server", "").lower()


def test_slow_clients_do_not_shut_out_others(any_door: Door) -> None:
    """Slowloris: more connections than there is room for, each of which says a byte now and then, without end."""
    slow = [any_door.connect() for _ in range(80)]
    try:
        for connection in slow:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /live HTTP/1.1\r\nX-a: b")
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(b"b")
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert ask(any_door, "/live")[0] in (200, 503)
                return
            time.sleep(0.5)
        raise AssertionError("slow clients have shut the door")
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_rejected_and_leaves_nothing_behind(any_door: Door, seed: int) -> None:
    chance = random.Random(seed)
    begins = (
        b"GET /",
        b"POST /live",
        b"\x16\x03\x01",
        b"GET http://x/ HTTP/9.9\r\n",
        b"HEAD /metrics HTTP/1.1\r\n",
        b"",
    )
    for _ in range(60):
        noise = chance.choice(begins) + chance.randbytes(chance.choice((0, 3, 200, 70_000))) + b"\r\n\r\n"
        with any_door.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(200)
            assert not answer.startswith(b"HTTP/1.1 200") or noise.startswith((b"GET / ", b"HEAD /metrics"))
            assert not answer.startswith(b"HTTP/1.1 500"), (noise[:60], answer)
    assert await_answer(any_door) in (200, 503)


def test_large_requests_are_cut_short(any_door: Door) -> None:
    assert ask(any_door, "/" + "a" * 5000)[0] == 414
    with contextlib.suppress(OSError, http.client.HTTPException):  # cut off while it still sends, or answered
        assert ask(any_door, "/live", **{f"X-{number}": "b" * 60_000 for number in range(200)})[0] == 431
    assert await_answer(any_door) in (200, 503)


#: request line, headers, and the status of a server whatever it guards
MALFORMED = [
    ("GET http://[/live HTTP/1.1", "", 400),
    ("GET /state/balances?" + "&".join(f"a{number}=1" for number in range(100)) + " HTTP/1.1", "", 400),
    ("GET /live HTTP/1.1", "Content-Length: 0\r\nContent-Length: 5\r\n", 413),
    ("GET /live HTTP/1.1", "Content-Length: abc\r\n", 413),
    ("GET /live HTTP/1.1", "Transfer-Encoding: chunked\r\n", 413),
    ("GET /live HTTP/1.1", "".join(f"X-{number}: 1\r\n" for number in range(120)), 431),
    ("POST /state/balances/a HTTP/1.1", "", 405),
    ("get /live HTTP/1.1", "", 405),
    ("PRI * HTTP/2.0", "", 505),
]


@pytest.mark.parametrize(("request_line", "headers", "status"), MALFORMED)
def test_malformed_requests_get_a_clear_no(any_door: Door, request_line: str, headers: str, status: int) -> None:
    text = f"{request_line}\r\nHost: 127.0.0.1\r\n{headers}Connection: close\r\n\r\n"
    assert raw(any_door, text)[:1] == [str(status)]


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("GET /../../../../etc/passwd HTTP/1.1", "", 401),
        ("GET /state/../status HTTP/1.1", "", 401),
        ("GET /status HTTP/1.1", "Authorization: Bearer \xff\xfe\r\n", 401),
        ("GET /status HTTP/1.1", f"Authorization: Bearer {'x' * 60_000}\r\n", 401),
        (f"GET /../../pyproject.toml HTTP/1.1\r\nAuthorization: Bearer {TOKEN}", "", 404),
        (f"GET /state/%2e%2e HTTP/1.1\r\nAuthorization: Bearer {TOKEN}", "", 404),
        (f"GET /state/%2e%2e/%2e%2e/etc HTTP/1.1\r\nAuthorization: Bearer {TOKEN}", "", 400),
        (f"GET /state/balances/%ff%fe HTTP/1.1\r\nAuthorization: Bearer {TOKEN}", "", 400),
        (f"GET /state/__class__/a HTTP/1.1\r\nAuthorization: Bearer {TOKEN}", "", 404),
        (f"GET /state/balances?limit=-1 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}", "", 400),
    ],
)
def test_tricks_get_a_clear_no(door: Door, request_line: str, headers: str, status: int) -> None:
    assert raw(door, f"{request_line}\r\nHost: 127.0.0.1\r\n{headers}Connection: close\r\n\r\n")[:1] == [str(status)]


def raw(door: Door, text: str) -> list[str]:
    """Status code and phrase of the answer; '' without an answer."""
    with door.connect() as connection:
        connection.sendall(text.encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").readline().decode("latin-1").split()[1:]


def test_an_answer_without_headers_is_no_status(any_door: Door) -> None:
    with any_door.connect() as connection:
        connection.sendall(b"GET /metrics\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert answer == b'{"error":"HTTP/1.0 or HTTP/1.1"}\n'


@pytest.fixture
def open_door() -> Iterator[Door]:
    """On loopback, without a token."""
    service = Service("doors", input="in", handler=Nothing, settings=Settings(ops=OpsSettings(listen="127.0.0.1:0")))
    with OpsServer(service) as server:
        yield tcp(server)


@pytest.mark.parametrize(
    ("host", "status"), [("[", "400"), ("[::1", "400"), ("a.example", "421"), ("localhost", "200")]
)
def test_a_page_of_another_site_does_not_ask_under_a_name_of_its_own(open_door: Door, host: str, status: str) -> None:
    assert raw(open_door, f"GET /status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")[0] == status


@given(st.text(max_size=40), st.sampled_from(["bearer", "Bearer", "basic", "", "BEARER "]))
@settings(max_examples=200)
def test_no_other_token_opens(text: str, scheme: str) -> None:
    guard = RequestGuard(OpsSettings(token=Secret(TOKEN), state="on"), exposed=True)
    request = HttpRequest("GET", "/state", {}, {"authorization": f"{scheme} {text}", "host": "127.0.0.1"})
    opened = text.strip() == TOKEN and scheme.strip().lower() == "bearer"
    try:
        guard.check_token(request, needed=True)
    except Exception:  # noqa: BLE001  whichever it is, it is closed
        assert not opened
    else:
        assert opened


def test_the_state_is_closed_without_a_token(door: Door) -> None:
    for path in ("/state", "/state/balances", "/state/balances/a", "/status", "/console/data"):
        assert ask(door, path)[0] == 401, path
        assert ask(door, path, Authorization=f"Bearer {TOKEN[:-1]}")[0] == 401
        assert ask(door, path, Authorization=f"Bearer {TOKEN}")[0] != 401


def test_each_answer_of_a_kept_alive_connection_arrives_at_once() -> None:
    """In one write: otherwise Nagle's algorithm keeps the second one until the client acknowledges the first."""
    with OpsServer(a_service()) as server, tcp(server).connect() as client:
        for _ in range(5):
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            head, _, body = client.recv(1 << 16).partition(b"\r\n\r\n")
            (length,) = [
                int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")
            ]
            assert len(body) == length > 0
