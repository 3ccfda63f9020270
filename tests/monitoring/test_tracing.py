"""Trace context from records to outputs, and the spans of a real service, as OpenTelemetry's own SDK collects them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.desk import Names, Order, a_desk, await_true, create_topics
from tests.support.members import close_members
from tests.support.messages import message

from statehold import Record
from statehold.dev import Cluster
from statehold.ops.http.server import OpsServer
from statehold.worker.common.activity import Handling, UserCall
from statehold.worker.common.opentelemetry import Spans

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def spans() -> Iterator[InMemorySpanExporter]:
    """Of all that this process does; the provider stays, and no other test turns tracing on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def linked(span: ReadableSpan) -> set[str]:
    return {format(link.context.trace_id, "032x") for link in span.links}


def outputs(names: Names, count: int) -> dict[int, dict[str, str]]:
    """The tracing headers of each output, by its amount."""
    consumer = Consumer(
        {
            "bootstrap.servers": names.servers,
            "group.id": f"reader-{names.service}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([names.output])
    found: dict[int, dict[str, str]] = {}

    def read() -> bool:
        for each in consumer.consume(10, 0.2):
            headers: Any = each.headers() or []
            kept = {key: value.decode() for key, value in headers if key in ("traceparent", "tracestate")}
            found[msgspec.json.decode(each.value() or b"", type=int)] = kept
        return len(found) >= count

    try:
        await_true(read, f"{count} outputs")
    finally:
        close_members(consumer)
    return found


def send(names: Names, amount: int, *headers: tuple[str, bytes]) -> None:
    producer = Producer({"bootstrap.servers": names.servers})
    producer.produce(names.input, msgspec.json.encode(Order("ann", amount)), "ann", headers=list(headers))
    assert producer.flush(60) == 0


@pytest.mark.kafka
def test_a_service_passes_the_context_on_and_exports_its_spans(kafka: Cluster, spans: InMemorySpanExporter) -> None:
    names = Names.new(kafka.bootstrap_servers)
    service = a_desk(names, tracing="on")
    create_topics(service, 1)
    send(names, 1, ("traceparent", PARENT.encode()), ("tracestate", b"vendor=1"))
    send(names, 2)
    send(names, 3, ("traceparent", b"no such thing"))
    with ExitStack() as stack:
        stack.enter_context(OpsServer(service))
        stack.enter_context(service)
        reported = outputs(names, 3)
    assert reported[1] == {"traceparent": PARENT, "tracestate": "vendor=1"}
    batches = named(spans, f"process {names.input}")
    own = {format(span.context.trace_id, "032x") for span in batches if span.context}
    assert reported[2]["traceparent"].split("-")[1] in own  # the batch's: the record had none
    assert reported[3] == {"traceparent": "no such thing"}  # as it came
    assert set().union(*map(linked, batches)) == {TRACE}
    assert all((span.attributes or {})["messaging.consumer.group.name"] == names.service for span in batches)
    commits = named(spans, f"commit {names.input}")
    assert own == set().union(*map(linked, commits))
    assert all(span.status.is_ok or span.status.is_unset for span in commits)
    assert len(named(spans, f"restore {names.input}")) == 1


@pytest.mark.kafka
def test_without_tracing_there_are_no_headers(kafka: Cluster, spans: InMemorySpanExporter) -> None:
    names = Names.new(kafka.bootstrap_servers)
    service = a_desk(names)
    create_topics(service, 1)
    send(names, 1, ("traceparent", PARENT.encode()))
    with service:
        assert outputs(names, 1) == {1: {}}
    assert not [span for span in spans.get_finished_spans() if names.input in span.name]


def test_without_tracing_nothing_of_it_is_imported(python: str) -> None:
    program = "import sys, statehold.service; print([each for each in sys.modules if 'opentelemetry' in each])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_batch_has_its_own_context_and_a_handler_may_give_another(spans: InMemorySpanExporter) -> None:
    handling, tracing = Handling(), Spans("desk", "orders", 0)
    sent = tracing.outputs(handling)
    with_context = message(0, headers=[("traceparent", PARENT.encode())])
    handling.record = Record(with_context, b"")
    one: Any = ("done", b"1", None, -1, None, None, 0, None)
    with tracing.batch([with_context]):
        handling.call = UserCall("on_batch", 0)
        sent.append(one)
        handling.call = None
        handling.call = UserCall("on_record", 0)
        sent.extend([one, (*one[:7], [("traceparent", b"my own")])])
        handling.call = None
    [span] = named(spans, "process orders")
    assert span.context is not None
    of_batch, of_record, own = (dict(each[7] or ()) for each in sent)
    assert of_batch["traceparent"].split(b"-")[1].decode() == format(span.context.trace_id, "032x")
    assert of_record["traceparent"] == PARENT.encode()
    assert own["traceparent"] == b"my own"


def test_a_commit_that_is_undone_says_so(spans: InMemorySpanExporter) -> None:
    tracing = Spans("desk", "undone", 0)
    with tracing.batch([message(0)]):
        pass
    tracing.commit_began(1, 1, 1)
    tracing.commit_ended(committed=False)
    tracing.commit_ended(committed=False)  # nothing has begun
    [span] = named(spans, "commit undone")
    assert not span.status.is_ok
    assert len(span.links) == 1
