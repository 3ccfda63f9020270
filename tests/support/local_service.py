"""A service inside the test's own process, for what needs no kill: its phases, causes and log events."""

from __future__ import annotations

from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Protocol, Self

from structlog.testing import capture_logs
from tests.support.processes import await_true

from statehold import Service


class HasService(Protocol):
    """A stage, with one input or more."""

    def service(self, **settings: str) -> Service:
        """The service, not started."""
        ...


class Local:
    """`with Local(stage) as local:` starts the service and stops it at the end."""

    def __init__(self, stage: HasService, **settings: str) -> None:
        self.service: Service = stage.service(**settings)
        self._capture = capture_logs()
        self.log: list[MutableMapping[str, Any]] = []

    def __enter__(self) -> Self:
        self.log = self._capture.__enter__()
        self.service.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"status: {self.service.status()}")
        self.service.stop()
        self._capture.__exit__(kind, error, trace)
        if error is not None:
            print("\n".join(map(str, self.log[-30:])))

    def events(self, *names: str) -> list[MutableMapping[str, Any]]:
        return [event for event in self.log.copy() if event["event"] in names]

    def partitions(self) -> dict[int, dict[str, Any]]:
        return {status["partition"]: status for status in self.service.status()["partitions"]}

    def phase(self, partition: int) -> str:
        return str(self.partitions().get(partition, {}).get("phase"))

    def await_phase(self, partition: int, phase: str, seconds: float = 60.0) -> None:
        await_true(lambda: self.phase(partition) == phase, f"partition {partition} is {phase}", seconds)

    def await_live(self, *partitions: int, seconds: float = 60.0) -> Local:
        await_true(lambda: all(self.phase(p) == "live" for p in partitions), f"live: {partitions}", seconds)
        return self

    def await_failed(self, partition: int, error: type[BaseException], seconds: float = 60.0) -> str:
        """Until the partition has failed with this error; its text. Any other failure is an AssertionError."""
        await_true(lambda: self.phase(partition) == "failed", f"partition {partition} fails", seconds)
        await_true(lambda: self.failures(partition), "the log reports it")
        event = self.failures(partition)[-1]
        assert event["error"] == error.__name__, event
        return str(event["cause"])

    def failures(self, partition: int) -> list[MutableMapping[str, Any]]:
        return [event for event in self.events("failed", "fenced_by_new_owner") if event["partition"] == partition]
