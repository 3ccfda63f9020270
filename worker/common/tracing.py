"""Interface to a tracing system; `statehold.worker.common.opentelemetry` implements it with OpenTelemetry.

Only the partition's thread calls it: once for a batch, a commit or a restore, never for a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from statehold.api.record import Message
from statehold.messages.sent import Sent
from statehold.worker.common.activity import Handling


class Tracing(Protocol):
    """The tracing of one partition."""

    def outputs(self, handling: Handling) -> list[Sent]:
        """Return the list that outputs append to; `handling` holds the record that sent them."""
        ...

    def batch(self, messages: Sequence[Message]) -> AbstractContextManager[Any]:
        """Wrap the handler call for these records."""
        ...

    def step(self, name: str) -> AbstractContextManager[Any]:
        """Wrap a restore or a replay."""
        ...

    def commit_began(self, n: int, records: int, position: int) -> None: ...

    def commit_ended(self, *, committed: bool) -> None:
        """End the span of the newest commit, if it is open."""
        ...
