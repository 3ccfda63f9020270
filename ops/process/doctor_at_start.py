"""Runs the doctor when a service starts, as `doctor.at_start` says; with several inputs always the check of keys."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, Self

from statehold.errors import StartError
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding, Level
from statehold.ops.doctor.topics import KeyPartitioners
from statehold.service import Service
from statehold.telemetry.log_events import Log

#: how long a stopping service waits for a doctor that is still running
_PATIENCE: Final = 15.0


class DoctorAtStart:
    """`with DoctorAtStart(service): service.run()`; `fail` runs it first, `warn` in parallel."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._only = (KeyPartitioners.name,) if service.settings.doctor.at_start == "off" else ()
        self._thread = threading.Thread(target=self._in_parallel, name=f"doctor-{service.name}", daemon=True)

    def __enter__(self) -> Self:
        """:raises StartError: `doctor.at_start` is `fail`, and a check failed."""
        if self._service.settings.doctor.at_start == "fail":
            findings = examine(self._case(), self._only)
            _log_findings(findings, self._log())
            _reject_failed(findings)
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)

    def _in_parallel(self) -> None:
        try:
            findings = examine(self._case(), self._only)
            if not self._service.status()["stopping"]:  # the last event of a stop is "stopped"
                _log_findings(findings, self._log())
        except Exception as error:  # noqa: BLE001 - a bug in the doctor must not stop the service
            self._log().warning("doctor", cause=f"{type(error).__name__}: {error}", exc_info=True)

    def _case(self) -> Case:
        service = self._service
        return Case.of_handler(service.settings, service.names, service.handler)

    def _log(self) -> Log:
        return Log(service=self._service.names.group, instance=self._service.settings.service.identity)


def _log_findings(findings: Iterable[Finding], log: Log) -> None:
    """Log WARN and FAIL; UNKNOWN is not worth a line at each start."""
    for each in findings:
        if each.level in (Level.WARN, Level.FAIL):
            log.warning(
                "doctor", check=each.check, about=each.about, result=str(each.level), cause=each.reason, fix=each.fix
            )


def _reject_failed(findings: Iterable[Finding]) -> None:
    """:raises StartError: a check failed; the text names the first and their number."""
    failed = [each for each in findings if each.level is Level.FAIL]
    if failed:
        first, more = failed[0], f" ({len(failed)} checks failed; `statehold doctor` shows all)" if failed[1:] else ""
        raise StartError(f"doctor.at_start = fail: {first.check}: {first.about}: {first.reason}. {first.fix}{more}")
