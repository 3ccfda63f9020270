"""The doctor at the start of a service: first, or beside it."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self

from statehold.declared.attributes import declared, sinks_of
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine, refuse, tell
from statehold.service import Service
from statehold.telemetry.log_events import Log

#: how long the end of a service waits for a doctor that still asks
_PATIENCE: Final = 15.0


class AtStart:
    """`with AtStart(service): service.run()`, as `doctor.at_start` says."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._thread = threading.Thread(target=self._beside, name=f"doctor-{service.name}", daemon=True)

    def __enter__(self) -> Self:
        """:raises StartError: it looks first, and a check has failed."""
        if self._service.settings.doctor.at_start == "fail":
            findings = examine(self._case())
            tell(findings, self._log())
            refuse(findings)
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)

    def _beside(self) -> None:
        try:
            tell(examine(self._case()), self._log())
        except Exception as error:  # noqa: BLE001 - a fault of the doctor must not be one of the service
            self._log().warning("doctor", cause=f"{type(error).__name__}: {error}", exc_info=True)

    def _case(self) -> Case:
        service = self._service
        outputs = [output.topic for output in declared(service.handler_class)[1].values()]
        sinks = sinks_of(service.handler_class).values()
        return Case(service.settings, service.names, outputs, probes=False, sinks=sinks)

    def _log(self) -> Log:
        return Log(service=self._service.names.group, instance=self._service.settings.service.identity)
