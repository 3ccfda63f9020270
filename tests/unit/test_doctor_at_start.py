"""The doctor that runs when a service starts checks the same topics as `statehold doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from statehold import Handler, Output, Record, Service, dead_letter, retry, retry_later
from statehold.bound.topics import output_topics
from statehold.config.sections.doctor import DoctorSettings
from statehold.config.settings import Settings
from statehold.ops.doctor.case import Case
from statehold.ops.process import doctor_at_start


class Booked(Handler[int]):
    on_failure = {ValueError: dead_letter(), OSError: retry(2).then(retry_later(60))}  # noqa: RUF012  as users write it
    booked = Output("booked", value=int)

    def on_record(self, record: Record[int]) -> None: ...


def test_it_checks_the_topics_of_the_failure_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[Case] = []

    def examine(case: Case, only: Iterable[str]) -> list[Any]:
        assert not only, "all checks"
        cases.append(case)
        return []

    monkeypatch.setattr(doctor_at_start, "examine", examine)
    settings = Settings(doctor=DoctorSettings(at_start="fail"))
    service = Service("books", input="orders", handler=Booked, settings=settings)
    with doctor_at_start.DoctorAtStart(service):
        pass

    assert list(cases[0].outputs) == output_topics(service.handler, service.names)
    assert service.names.dead in cases[0].outputs
    assert len(cases[0].outputs) == 3
