"""Asking the group who owns a partition while its coordinator is silent costs an answer, not the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

#: in a process of its own: librdkafka's assertion would end it (librdkafka issue 4605)
ASKING = """
import time
from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.admin import Admin

with Cluster() as cluster:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=cluster.bootstrap_servers, socket_timeout=2.0))
    kept = []
    for _ in range(3):
        admin = Admin(settings, "absent")
        cluster.pause(1)
        try:
            admin.is_member("me", "topic", 0)
        except KafkaTrouble:
            pass
        else:
            raise AssertionError("a frozen broker has answered")
        kept.append(client)
        cluster.resume(1)
        for _ in range(60):
            try:
                assert not admin.is_member("me", "topic", 0)
                break
            except KafkaTrouble:
                time.sleep(0.5)
        else:
            raise AssertionError("no answer after the broker woke up")
        time.sleep(1)  # what was asked before is answered now, too
print("survived")
"""
#: another partition's thread would hold on to the client that was asked first
HOLDING = """
from statehold.kafka.admin.admin import Admin as _Admin
made = _Admin.new_client
def remember(self, name):
    global client
    client = made(self, name)
    return client
_Admin.new_client = remember
"""


def test_a_coordinator_that_was_silent_may_answer_late() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDING + ASKING], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("survived\n"), (done.returncode, done.stderr[-2000:])
