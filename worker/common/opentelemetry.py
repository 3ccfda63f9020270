"""Tracing with OpenTelemetry: the only importer of opentelemetry, itself imported only where `ops.tracing` is on.

An output carries the W3C context (`traceparent`, `tracestate`) of the record that caused it, unchanged. A batch is a
span with links to the contexts of its records, a commit one with links to its batches; restores and replays are spans.
The spans go to the process's tracer provider: https://www.w3.org/TR/trace-context/ has the headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from statehold.api.record import Message
from statehold.common.version import __version__
from statehold.messages.sent import Sent
from statehold.worker.common.activity import Handling

PARENT: Final = "traceparent"
_HEADERS: Final = (PARENT, "tracestate")
#: calls for a single record; for all others the batch's own context counts
_SINGLE: Final = ("on_record", "on_command")
#: the SDK keeps 128 links of a span
_LINKS: Final = 128
_PROPAGATOR: Final = TraceContextTextMapPropagator()

Headers = list[tuple[str, bytes]]


class Spans:
    """The spans of one partition; used by its thread."""

    def __init__(self, service: str, topic: str, partition: int) -> None:
        self._tracer = trace.get_tracer("statehold", __version__)
        self._topic = topic
        self._attributes = {
            "messaging.system": "kafka",
            "messaging.consumer.group.name": service,
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
        }
        #: of the batches since the last commit began
        self._batches: list[SpanContext] = []
        self._commit: Span | None = None

    def outputs(self, handling: Handling) -> list[Sent]:
        return _Outputs(handling)

    def batch(self, messages: Sequence[Message]) -> AbstractContextManager[Any]:
        return self._batch(messages)

    @contextmanager
    def _batch(self, messages: Sequence[Message]) -> Iterator[None]:
        attributes: dict[str, AttributeValue] = {
            **self._attributes,
            "messaging.operation.type": "process",
            "messaging.batch.message_count": len(messages),
            "messaging.kafka.offset": messages[0].offset() or 0,
        }
        with self._tracer.start_as_current_span(
            f"process {self._topic}",
            kind=SpanKind.CONSUMER,
            links=[Link(context) for context in _contexts(messages)],
            attributes=attributes,
        ) as span:
            self._batches.append(span.get_span_context())
            yield

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        with self._tracer.start_as_current_span(f"{name} {self._topic}", attributes=self._attributes):
            yield

    def commit_began(self, n: int, records: int, position: int) -> None:
        attributes: dict[str, AttributeValue] = {
            **self._attributes,
            "statehold.transaction": n,
            "statehold.position": position,
            "messaging.batch.message_count": records,
        }
        links = [Link(context) for context in self._batches[:_LINKS]]
        self._batches.clear()
        self._commit = self._tracer.start_span(f"commit {self._topic}", links=links, attributes=attributes)

    def commit_ended(self, *, committed: bool) -> None:
        span, self._commit = self._commit, None
        if not committed:
            self._batches.clear()
        if span is None:
            return
        if not committed:
            span.set_status(StatusCode.ERROR, "rolled back: its records are handled again")
        span.end()


class _Outputs(list[Sent]):
    """Adds the context of the record to each output, unless the handler has set one."""

    def __init__(self, handling: Handling) -> None:
        super().__init__()
        self._handling = handling

    def append(self, sent: Sent) -> None:
        super().append(_headed(sent, self._context()))

    def extend(self, sent: Any) -> None:
        context = self._context()
        super().extend(_headed(each, context) for each in sent)

    def _context(self) -> Headers:
        record = self._handling.record
        call = self._handling.call
        if record is not None and call is not None and call.doing in _SINGLE:
            given = [(name, value) for name, value in record.headers if name in _HEADERS and value]
            if given:
                return given
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return [(name, value.encode()) for name, value in carrier.items()]


def _headed(sent: Sent, context: Headers) -> Sent:
    headers = sent[7] or []
    if not context or any(name == PARENT for name, _ in headers):
        return sent
    return (*sent[:7], [*headers, *context])


def _contexts(messages: Sequence[Message]) -> list[SpanContext]:
    """Return the contexts of the records without duplicates, in their order, as many as a span keeps."""
    found: dict[tuple[int, int], SpanContext] = {}
    for message in messages:
        headers = message.headers() or ()
        carrier = {name: value.decode("ascii", "replace") for name, value in headers if name in _HEADERS and value}
        if PARENT not in carrier:
            continue
        context = trace.get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
        if context.is_valid:
            found.setdefault((context.trace_id, context.span_id), context)
        if len(found) == _LINKS:
            break
    return list(found.values())
