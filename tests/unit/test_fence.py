"""A fence checks what it has aborted (KAFKA-20734), without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import OutcomeUnknown
from statehold.kafka.clients import producer
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.telemetry.log_events import Log

NAMES = Names("ledger", "orders")
PLACE = (NAMES.changelog, 0)


class Hidden:
    """Finds records at each of these looks."""

    def __init__(self, *looks: list[tuple[str, int]]) -> None:
        self.looks = list(looks)

    def aborted(self, _cancelled: Callable[[], bool]) -> list[tuple[str, int]]:
        return self.looks.pop(0)


class Client:
    """A client whose every call succeeds."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: object) -> int:
            self.calls.append(name)
            return 0

        return call


class Handle:
    """Stands for the handle, whose constructor makes a client."""

    def __init__(self, *_: object) -> None:
        self.client = Client()

    def get(self) -> Client:
        return self.client

    def get_to_know(self) -> None: ...

    def init(self, _timeout: float) -> None: ...


def owner(monkeypatch: pytest.MonkeyPatch, hidden: Hidden) -> KafkaTransactions:
    monkeypatch.setattr(producer, "ProducerHandle", Handle)
    return KafkaTransactions(Settings(), NAMES, 0, Log(), time.monotonic, hidden=hidden)  # type: ignore[arg-type]


def test_a_fence_aborts_hidden_records_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Hidden([PLACE], [])
    owner(monkeypatch, hidden).fence(lambda: False)
    assert hidden.looks == []


def test_a_fence_fails_if_its_abort_has_left_records_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutcomeUnknown, match=r"ledger\.orders\.changelog\[0\]"):
        owner(monkeypatch, Hidden([PLACE], [PLACE])).fence(lambda: False)
