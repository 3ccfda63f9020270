"""A broker restarts while a service asks for the offsets of its group."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

#: in a process of its own, which an AdminClient's request would end (SIGSEGV)
ASKING = """
import time
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.kafka.admin import group_answers
from statehold.kafka.admin.admin import Admin

group_answers._KEPT = 0.2


def ask_for(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        answer.look(0.1)


with Cluster() as cluster:
    servers = cluster.bootstrap_servers
    client = AdminClient({"bootstrap.servers": servers})
    client.create_topics([NewTopic("topic", 2)])["topic"].result(30)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "group"})
    while True:
        try:
            consumer.commit(offsets=[TopicPartition("topic", 0, 7)], asynchronous=False)
            break
        except KafkaException:
            time.sleep(0.2)
    consumer.close()
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=servers, socket_timeout=2.0))
    answer = group_answers.cached_offsets(Admin(settings, "group"), ["topic"], 2)
    for _ in range(3):
        deadline = time.monotonic() + 60
        while answer.look(1.0) != {("topic", 0): 7}:
            assert time.monotonic() < deadline
        answer._known = {}
        cluster.kill(1)
        ask_for(2)
        cluster.start(1)
        ask_for(2)
print("survived")
"""


def test_restarts_of_the_coordinator_cost_an_answer_and_not_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("survived\n"), (done.returncode, done.stderr[-2000:])
