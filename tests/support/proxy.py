"""A TCP proxy in front of one broker that parses where Kafka requests begin and end.

It can hold a request (and, as TCP would, all that follows on that connection), let it through later, reset the client's
connection meanwhile, or let a request through and lose its answer. One proxy serves one broker, which must advertise
the proxy's port (`Cluster(advertised={1: proxy.port})`), or clients bypass it.
"""

from __future__ import annotations

import contextlib
import enum
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.support.accepting import HOST, Accepting

WAIT_SECONDS = 30.0


class ApiKey(enum.IntEnum):
    """The requests that tests trap; numbers of the Kafka protocol."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    JOIN_GROUP = 11
    SYNC_GROUP = 14
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    CONSUMER_GROUP_HEARTBEAT = 68


@dataclass(frozen=True)
class Request:
    """One request of a client, unchanged."""

    api_key: int
    version: int
    correlation: int
    frame: bytes


class Fault(enum.Enum):
    """The fault that a trap applies to its request."""

    HOLD = "hold"  # the network delays it: the client waits until its own timeout
    HOLD_AND_RESET = "hold and reset"  # it is on its way, and the client's connection breaks
    LOSE_ANSWER = "lose answer"  # the broker gets it, and the client's connection breaks before the answer


@dataclass(eq=False)
class Trap:
    """Catches the first request that matches. Its methods may be called from any thread."""

    match: Callable[[Request], bool]
    fault: Fault
    request: Request | None = None
    answer: bytes | None = None
    _caught: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)
    _answered: threading.Event = field(default_factory=threading.Event)

    @property
    def caught(self) -> bool:
        """Return whether a request is in the trap, or went through it."""
        return self._caught.is_set()

    def wait_caught(self) -> Request:
        """Block until a request is caught; AssertionError after 30 s."""
        assert self._caught.wait(WAIT_SECONDS), "no request came into the trap"
        assert self.request is not None
        return self.request

    def deliver(self) -> bytes:
        """Forward the request and return the broker's answer: the bytes after the correlation id."""
        self.wait_caught()
        self._released.set()
        assert self._answered.wait(WAIT_SECONDS), "the broker did not answer the delayed request"
        assert self.answer is not None
        return self.answer

    def end_txn_error(self) -> int:
        """Deliver an EndTxn and return the broker's error code for it, 0 for success."""
        answer = self.deliver()
        assert self.request is not None
        flexible = self.request.version >= 3  # an empty tag section comes first
        body = answer[1:] if flexible else answer
        return int(struct.unpack_from(">ih", body)[1])


class Storm:
    """Repeatedly catches requests of a kind, breaks their connections, and delivers each a little later.

    Each is held until its sender has sent it again and continued, so that it arrives between later requests.
    """

    def __init__(self, api_key: int, chance: float, latest: float, seed: int) -> None:
        self._api_key, self._chance, self._latest = api_key, chance, latest
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        #: number of caught requests; a storm that is `over` catches no more
        self.caught = 0
        self.over = False

    def trap_for(self, request: Request) -> Trap | None:
        if request.api_key != self._api_key or self.over:
            return None
        with self._lock:
            if self._random.random() >= self._chance:
                return None
            self.caught += 1
            late = self._random.uniform(0.0, self._latest)
        trap = Trap(lambda _: True, Fault.HOLD_AND_RESET)
        threading.Timer(late, trap._released.set).start()
        return trap


class Proxy:
    """Listens on a free port at once; `connect` sets the broker's address."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        #: given a request and its answer (after the correlation id): the answer to send instead, None for the true one;
        #: an answer for which it raises OSError is lost
        self.lie: Callable[[Request, bytes], bytes | None] | None = None
        self._upstream = 0
        self._traps: list[Trap] = []
        self._storms: list[Storm] = []
        self._sprung: list[Trap] = []
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._accepting = Accepting(self._begin, "proxy")
        self.port = self._accepting.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self, port: int) -> None:
        """Forward to the broker that listens on `port` of the loopback address."""
        self._upstream = port

    def trap(self, api_key: int, fault: Fault, where: Callable[[Request], bool] = lambda _: True) -> Trap:
        """Set a trap for the next request with `api_key` for which `where` holds."""
        trap = Trap(lambda request: request.api_key == api_key and where(request), fault)
        with self._lock:
            self._traps.append(trap)
        return trap

    @contextlib.contextmanager
    def storm(self, api_key: int, chance: float, latest: float, seed: int) -> Iterator[Storm]:
        """Run a `Storm` during the `with` block."""
        made = Storm(api_key, chance, latest, seed)
        with self._lock:
            self._storms.append(made)
        try:
            yield made
        finally:
            made.over = True

    def reset_all(self) -> None:
        """Break every open connection."""
        with self._lock:
            going = list(self._sockets)
        for each in going:
            _shutdown(each)

    def free(self) -> None:
        """Remove all traps that caught nothing yet, and release the requests that wait in one."""
        with self._lock:
            traps, self._traps = [*self._traps, *self._sprung], []
            self._sprung = []
        for trap in traps:
            trap._released.set()

    def close(self) -> None:
        """Stop listening, break all connections, release the requests that wait in a trap."""
        self._accepting.close()
        self.free()
        self.reset_all()

    def _begin(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection((HOST, self._upstream))
        except OSError:  # the broker is down: the client sees it as such
            client.close()
            return
        link = _Link(self, client, broker)
        for target in (link.upwards, link.downwards):
            threading.Thread(target=target, name="proxy link", daemon=True).start()

    def _trap_for(self, request: Request) -> Trap | None:
        with self._lock:
            self.requests[request.api_key] += 1
            for trap in self._traps:
                if trap.match(request):
                    self._traps.remove(trap)
                    self._sprung.append(trap)
                    return trap
            storms = list(self._storms)
        caught = (storm.trap_for(request) for storm in storms)
        return next((each for each in caught if each is not None), None)


class _Link:
    """One client connection and its connection to the broker."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy, self._client, self._broker = proxy, client, broker
        self._awaited: dict[int, Trap] = {}
        #: requests whose answers `lie` may change
        self._asked: dict[int, Request] = {}
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with proxy._lock:
                proxy._sockets.add(each)

    def upwards(self) -> None:
        """Forward client to broker, request by request."""
        with contextlib.suppress(OSError):
            while (frame := _read_frame(self._client)) is not None:
                api_key, version, correlation = struct.unpack_from(">hhi", frame, 4)
                request = Request(api_key, version, correlation, frame)
                trap = self._proxy._trap_for(request)
                if self._proxy.lie is not None:
                    self._asked[correlation] = request
                if trap is not None:
                    self._spring(trap, request)
                self._broker.sendall(frame)
        # Half closed, because a pending answer must come back before the connection closes.
        with contextlib.suppress(OSError):
            if not self._awaited:
                self._broker.shutdown(socket.SHUT_WR)

    def downwards(self) -> None:
        """Forward broker to client, answer by answer."""
        with contextlib.suppress(OSError):
            while (frame := _read_frame(self._broker)) is not None:
                trap = self._awaited.pop(struct.unpack_from(">i", frame, 4)[0], None)
                if trap is not None:
                    trap.answer = frame[8:]
                    trap._answered.set()
                    if trap.fault is not Fault.HOLD:
                        break
                with contextlib.suppress(OSError):  # the client may have closed its connection
                    self._client.sendall(self._answer_for(frame))
        self._forget()

    def _answer_for(self, frame: bytes) -> bytes:
        """Return the answer that the client gets."""
        request, lie = self._asked.pop(struct.unpack_from(">i", frame, 4)[0], None), self._proxy.lie
        false = lie(request, frame[8:]) if request is not None and lie is not None else None
        return frame if false is None else struct.pack(">i", 4 + len(false)) + frame[4:8] + false

    def _spring(self, trap: Trap, request: Request) -> None:
        """Apply the trap's fault to `request`; the caller then forwards it."""
        trap.request = request
        self._awaited[request.correlation] = trap
        if trap.fault is Fault.HOLD_AND_RESET:
            _shutdown(self._client)
        trap._caught.set()
        if trap.fault is not Fault.LOSE_ANSWER:
            trap._released.wait()

    def _forget(self) -> None:
        for each in (self._client, self._broker):
            _shutdown(each)
            each.close()
            with self._proxy._lock:
                self._proxy._sockets.discard(each)


def _shutdown(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def _read_frame(source: socket.socket) -> bytes | None:
    """Return one size-prefixed frame, prefix included; None at the end of the stream."""
    head = _read(source, 4)
    body = _read(source, struct.unpack(">i", head)[0]) if head else None
    return head + body if head and body is not None else None


def _read(source: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
