"""An S3 server for tests: moto's server in a thread."""

from __future__ import annotations

import logging
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer


class S3:
    """A server; `bucket` creates an empty bucket and returns its address."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request otherwise
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        name = f"fulls-{uuid.uuid4().hex[:8]}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            assert answer.status == 200
        return f"s3://{name}/some/prefix"

    def stop(self) -> None:
        self._server.stop()


@contextmanager
def serving() -> Iterator[S3]:
    """Run an S3 server whose credentials are in the environment during the block."""
    server = S3()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server
    server.stop()
