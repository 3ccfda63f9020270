"""Every way in, by settings alone: who comes in is the principal that it should be, and others are shut out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic
from tests.support.processes import await_true
from tests.support.secured import Secured

from statehold.config import load
from statehold.errors import Misconfigured, StateholdError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.survey.cluster import ClusterSurvey

pytestmark = pytest.mark.kafka

#: how to come in -> the principal's name
WAYS = {
    "scram-512": "dora",
    "scram-256": "dora",
    "plain": "ann",
    "certificate": "web1",
    "certificate-of-others": "CN=odd,O=elsewhere",
}


def way_in(broker: Secured, way: str) -> dict[str, str]:
    match way:
        case "scram-512":
            return broker.scram("dora")
        case "scram-256":
            return broker.scram("dora", "SCRAM-SHA-256")
        case "plain":
            return broker.plain("ann")
        case "certificate":
            return broker.certificate("web1")
        case _:
            return broker.certificate("odd", "CN=odd,O=elsewhere")


@pytest.fixture
def topic(guarded: Secured) -> Iterator[str]:
    name = f"hidden-{uuid.uuid4().hex[:8]}"
    guarded.admin.create_topics([NewTopic(name, 1)])[name].result(30)
    yield name
    guarded.admin.delete_topics([name])[name].result(30)


def allowed(environment: dict[str, str], topic: str) -> frozenset[str]:
    """The operations that such a client may do on the topic; empty where it is hidden."""
    settings = load(env=environment)
    found = ClusterSurvey(settings, Admin(settings, "anybody")).topics([topic])[topic]
    return found.allowed if found is not None else frozenset()


@pytest.mark.parametrize("way", WAYS)
def test_a_way_in_leads_to_its_principal(guarded: Secured, topic: str, way: str) -> None:
    environment = way_in(guarded, way)
    with pytest.raises(StateholdError, match="uthorization"):
        allowed(environment, topic)
    right = guarded.allow(WAYS[way], "READ", "topic", topic)
    await_true(lambda: shown(environment, topic) == {"READ", "DESCRIBE"}, f"{WAYS[way]} may read")
    guarded.revoke(right)
    with_another = guarded.allow("somebody", "READ", "topic", topic)
    await_true(lambda: not shown(environment, topic), "its right is gone")
    guarded.revoke(with_another)


def shown(environment: dict[str, str], topic: str) -> frozenset[str]:
    try:
        return allowed(environment, topic)
    except StateholdError:
        return frozenset()


def test_a_reader_hears_at_once_that_it_may_not_see_a_topic(guarded: Secured, topic: str) -> None:
    """Its fetches would only wait for a leader that no broker names."""
    settings = load(env=guarded.scram("nobody"))
    reader = KafkaReader(settings, "anybody", Admin(settings, "anybody"), lambda: False, time.monotonic)
    try:
        with pytest.raises(Misconfigured, match=topic):
            list(reader.read(topic, 0, 0, 1))
    finally:
        reader.close()
