"""What a partition's work tells a tracing system; `statehold.worker.common.opentelemetry` does it with OpenTelemetry.

Only the partition's thread calls it: once for a batch, a commit or a restore, never for a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from statehold.output import Sent
from statehold.record import Message
from statehold.worker.common.activity import Handling


class Tracing(Protocol):
    """Of one partition."""

    def outputs(self, handling: Handling) -> list[Sent]:
        """The list that outputs append to; `handling` tells the record that sent them."""
        ...

    def batch(self, messages: Sequence[Message]) -> AbstractContextManager[Any]:
        """Around the handler for these records."""
        ...

    def step(self, name: str) -> AbstractContextManager[Any]:
        """Around a restore or a replay."""
        ...

    def commit_began(self, n: int, records: int, position: int) -> None: ...

    def commit_ended(self, *, committed: bool) -> None:
        """Of the one that began last, if it has not ended."""
        ...
