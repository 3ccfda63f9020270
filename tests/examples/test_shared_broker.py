"""Examples whose tests share a broker have topics of their own, because a namespace does not cover those of others."""

from __future__ import annotations

from collections import Counter

from examples.microservice import app as microservice
from examples.scoring import app as scoring

from examples.around import endofday, front, invoices
from statehold.bound.topics import output_topics

SERVICES = [each.service for each in (endofday, front, invoices, microservice, scoring)]


def test_no_example_reads_or_writes_a_topic_of_another_one() -> None:
    topics = [topic for each in SERVICES for topic in {*each.names.inputs, *output_topics(each.handler, each.names)}]
    assert {topic: number for topic, number in Counter(topics).items() if number > 1} == {}
