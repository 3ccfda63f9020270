"""A response must not crash a process that ends, or that has dropped the client. Needs no broker: an error is a
response, too."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statehold.kafka.admin import tracked_client
from statehold.kafka.admin.tracked_client import TrackedClient

ROOT = Path(__file__).parents[2]

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


#: The last reference to a client with a request under way is dropped on the client's own thread.
FREED = """
import gc, sys, threading
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from statehold.kafka.admin.tracked_client import TrackedClient, _clients

called = threading.Event()  # a future wakes those that wait before it calls back

def ask():
    client = {kind}({{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
    (answer,) = client.list_offsets({{TopicPartition("t", 0): OffsetSpec.latest()}}, request_timeout=0.6).values()
    if {collected}:
        client.itself = client
        answer.add_done_callback(lambda future: gc.collect())
    else:
        answer.add_done_callback(lambda future, held=[client]: held.clear())
    answer.add_done_callback(lambda future: called.set())
    return answer

gc.disable()
answers = [ask()]
assert all(answer.exception(60) for answer in answers)
assert called.wait(60)
del answers[:]
gc.collect()
while _clients:
    pass
sys.exit(3)
"""


@pytest.mark.parametrize("collected", [False, True], ids=["by a callback", "by the collector"])
@pytest.mark.parametrize(("kind", "code"), [("TrackedClient", 3), ("AdminClient", -6)])
def test_a_client_is_never_freed_on_its_own_thread(kind: str, code: int, collected: bool) -> None:
    """The AdminClient shows the reason for `TrackedClient`."""
    script = FREED.format(kind=kind, collected=collected)
    found = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert found.returncode == code, found.stderr
    assert ("rd_kafka_destroy" in found.stderr) == (code < 0), found.stderr


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.long)])
def test_dropped_clients_end_and_their_answers_do_not_arrive(times: int) -> None:
    before, clients_before = threading.active_count(), set(tracked_client._clients)  # other tests keep some
    answers = []
    for _ in range(times):
        client = TrackedClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        answers.append(client.describe_consumer_groups(["group"], request_timeout=3600)["group"])
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.001)
        del client
    until = time.monotonic() + 60
    while tracked_client._clients.keys() - clients_before and time.monotonic() < until:
        time.sleep(0.01)
    assert not tracked_client._clients.keys() - clients_before
    assert threading.active_count() <= before + 1


def test_the_whole_interface_is_passed_on() -> None:
    """A method of the base class would use a client that does not exist."""
    for name in dir(AdminClient):
        if not name.startswith("_"):
            assert name in vars(TrackedClient), name


def test_no_other_client_asks_without_waiting() -> None:
    """A plain AdminClient is for calls that return their answer, never for requests with a future."""
    found = {
        (path.name, line.strip())
        for folder in ("src", "worker", "ops", "snapshot", "balancer", "config")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\bAdminClient\(", line) and "class " not in line and path.name != "tracked_client.py"
    }
    assert all(re.search(r"AdminClient\(\w+\)\.list_topics\(", line) for _, line in found), found


def ended(kind: str, seconds: float) -> int:
    return subprocess.run([sys.executable, "-c", ENDS.format(kind=kind, seconds=seconds)], check=False).returncode


def test_an_answer_is_awaited_before_python_ends() -> None:
    assert ended("TrackedClient", 0.6) == 1


def test_without_that_wait_the_process_ends_with_a_signal() -> None:
    """The reason for `TrackedClient`. If this test fails, the client library has fixed the bug."""
    assert ended("AdminClient", 0.6) == -11


def test_brokers_that_never_answer_do_not_keep_the_process() -> None:
    assert ended("TrackedClient", 60) == 1
