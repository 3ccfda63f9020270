"""The server of examples/around books whole requests only."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from examples.around.booking import Bookings
from tests.support.processes import await_true

BODY = b'{"number": 1}'


@pytest.fixture
def bookings() -> Iterator[Bookings]:
    server = Bookings(0, lambda key, body: None)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_sender_that_dies_within_its_request_books_nothing(bookings: Bookings) -> None:
    port = bookings.server_address[1]
    head = f"POST /invoices HTTP/1.1\r\nIdempotency-Key: a/0/1\r\nContent-Length: {len(BODY)}\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", port))) as sender:
        sender.sendall(head.encode() + BODY[:5])
        sender.shutdown(socket.SHUT_WR)
        assert sender.recv(100) == b"", "no answer"
    assert bookings.booked == {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}", BODY, {"Idempotency-Key": "a/0/1"})
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  the server of this test
        assert answer.status == 201
    await_true(lambda: bookings.booked == {"a/0/1": BODY}, "it is booked", 30)
