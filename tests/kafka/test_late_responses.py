"""A response during the end of a process must not crash it. Needs no broker: an error is a response, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="on_exit is glibc's"),
]

#: A thread holds the client, so that Python's end does not free it; after that end the process stays for a second.
ENDS = """
import ctypes, sys, threading
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from statehold.kafka.admin.tracked_client import TrackedClient

client = {kind}({{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
threading.Thread(target=lambda held: threading.Event().wait(), args=(client,), daemon=True).start()
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)  # called with the exit code
client.list_offsets({{TopicPartition("t", 0): OffsetSpec.latest()}}, request_timeout={seconds})
sys.exit(1)
"""


def ended(kind: str, seconds: float) -> int:
    return subprocess.run([sys.executable, "-c", ENDS.format(kind=kind, seconds=seconds)], check=False).returncode


def test_an_answer_is_awaited_before_python_ends() -> None:
    assert ended("TrackedClient", 0.6) == 1


def test_without_that_wait_the_process_ends_with_a_signal() -> None:
    """The reason for `TrackedClient`. If this test fails, the client library has fixed the bug."""
    assert ended("AdminClient", 0.6) == -11


def test_brokers_that_never_answer_do_not_keep_the_process() -> None:
    assert ended("TrackedClient", 60) == 1
