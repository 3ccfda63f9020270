"""The thread that monitors the topics continues after any error."""

from __future__ import annotations

import threading
from typing import Any

from statehold.common.names import Names
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.runtime.topic_monitor import TopicMonitor
from statehold.telemetry.log_events import Log
from statehold.testing.stepped import EventLog


class Ending(TopicMonitor):
    """Its looks end with these errors, one after the other, and then well."""

    def __init__(self, log: EventLog, errors: list[Exception]) -> None:
        absent: Any = None
        settings = Settings(service=ServiceSettings(topology_interval=0.5))
        super().__init__(settings, Names("service", "input"), absent, {}, Log(log), absent, absent)
        self._errors = errors
        self.well = threading.Event()

    def _look(self) -> None:
        if self._errors:
            raise self._errors.pop(0)

    def _measure_at_times(self, now: float) -> None:
        self.well.set()


def test_a_bug_is_logged_and_ends_nothing() -> None:
    log = EventLog()
    topology = Ending(log, [KafkaTrouble("away"), ValueError("a bug")])
    topology.start()
    assert topology.well.wait(60)
    topology.close()
    reported = [(event, fields["cause"]) for event, fields in log.events]
    assert reported == [("thread_died", "ValueError('a bug')")]


def test_questions_about_topics_go_to_the_client_of_now() -> None:
    """The login has changed: the one before it would be refused for the rest of the service's life."""
    admin = Admin(Settings(), "group")
    topics = TopicAdmin(admin)
    admin.renew()
    assert topics._client is admin.client
