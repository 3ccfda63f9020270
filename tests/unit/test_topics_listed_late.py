"""A topic that another tool has just created: the brokers may list it a moment later."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from statehold.admin import topics
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import TopicMissing
from statehold.kafka.admin.admin import Admin, TopicFacts

NAMES = Names("totals", "trades")


class LateAdmin(Admin):
    """Lists the input from the given call on, and everything else at once."""

    listed_at = 3

    def __init__(self, settings: Settings, group: str) -> None:
        self.calls = 0

    def describe(self, topics: list[str], cancelled: object = None) -> dict[str, TopicFacts | None]:
        self.calls += 1
        late = self.calls < self.listed_at
        return {name: None if late and name == NAMES.input else TopicFacts(name, "id", 2, 1) for name in topics}


class MakingAll:
    def __init__(self, admin: Admin) -> None: ...

    def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        return True


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ServiceTopics:
    monkeypatch.setattr(topics, "Admin", LateAdmin)
    monkeypatch.setattr(topics, "TopicAdmin", MakingAll)
    return ServiceTopics(Settings(), NAMES)


def test_an_input_that_is_listed_late_is_waited_for(service: ServiceTopics) -> None:
    service.make(1, {NAMES.input: 0})


def test_an_input_that_is_never_listed_is_missing_and_nothing_is_created(
    service: ServiceTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LateAdmin, "listed_at", 10**6)
    monkeypatch.setattr(topics, "_LISTED", 0.1)
    with pytest.raises(TopicMissing, match=r"missing on the cluster: trades\. Nothing was created"):
        service.make(1, {NAMES.input: 0})
