"""A real Prometheus scrapes a live service: every panel and every alert has series to look at."""

from __future__ import annotations

from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import ClassVar

import pytest
from tests.monitoring.shipped import ALERTS, DASHBOARD, RULES, panels, shorter
from tests.support.desk import Desk, Names, Order, a_desk, await_true, create_topics, feed
from tests.support.prometheus import Prometheus, missing

from statehold import Record, dead_letter
from statehold.admin.commands import Commander
from statehold.config.sections.processing import SnapshotSettings
from statehold.dev import Cluster
from statehold.messages.command import TAKE
from statehold.ops.http.server import OpsServer
from statehold.ops.process.job_metrics import registry_of

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]

WINDOW = "30s"
#: no series of a service in quiet work: a partition that restores, that is paused or has failed with an error's name
ONLY_THEN = {"restore done ratio", "partition failures", "partition paused"}
#: no series of a service that uses no such thing
NOT_USED = {
    "local store bytes",
    "local store write seconds: median and 99%",
    "local store reads a second",
    "decoded values of tables on disk",
    "scrubs of tables on disk",
    "retry waiting records",
    "standby ready",
    "standby age seconds",
    "reference keys",
    "reference age seconds",
    "late records",
    "partition time",
    "calls pending",
    "calls oldest seconds",
    "calls down",
    "calls dead",
    "call seconds: median and 99%",
    "process restarts",
    "sends by another key in a row",
    "requests a second",
    "requests without an answer: oldest, seconds",
    "requests kept and without an answer",
}
#: what a compaction leaves behind, not a service
OF_A_JOB = {"StateholdCompactionFailed", "StateholdCompactionOld"}
#: what a shadow exports
OF_A_SHADOW = {"StateholdShadowDiffers"}
#: no series of a service without a `Call`
OF_CALLS = {"StateholdCallsDown", "StateholdCallsDead"}
#: no series until a record has ended processes
OF_A_DEATH = {"StateholdDeadlyRecord"}
#: no series of a service without `Replies`
OF_REQUESTS = {"StateholdRequestsWait"}
ABSENT = OF_A_JOB | OF_A_DEATH | OF_A_SHADOW | OF_CALLS | OF_REQUESTS


class Careful(Desk):
    """Puts an order of nothing aside."""

    on_failure: ClassVar = {ValueError: dead_letter()}

    def on_record(self, record: Record[Order]) -> None:
        super().on_record(record)
        if not record.value.amount:
            raise ValueError("an order of nothing")


def test_every_panel_and_alert_has_series(kafka: Cluster, tmp_path: Path) -> None:
    names = Names.new(kafka.bootstrap_servers)
    service = a_desk(names, handler=Careful, snapshot=SnapshotSettings(restore_budget=60.0))
    create_topics(service)
    with ExitStack() as stack:
        url = stack.enter_context(OpsServer(service)).url
        stack.enter_context(service)
        prometheus = stack.enter_context(Prometheus(tmp_path / "prometheus", RULES))
        prometheus.scrape(desk=url)
        await_true(lambda: [each["phase"] for each in service.status()["partitions"]] == ["live"] * 2, "it is live")
        feed(names, [Order("ann", 1), Order("bob", 2), Order("cy", 3), Order("dee", 0)])
        Commander(service.settings, service.names).send(TAKE, [])
        shown = [panel for panel in panels() if panel["title"] not in ONLY_THEN | NOT_USED]
        lines = [target["expr"] for panel in shown for target in panel["targets"]]
        lines += [note["expr"] for note in DASHBOARD["annotations"]["list"] if note["name"] == "takeovers"]
        known = {"$service": names.service, "$instance": ".*", "$__rate_interval": WINDOW}
        asked = [reduce(lambda text, name: text.replace(name, known[name]), known, line) for line in lines]
        prometheus.await_series(asked)
        prometheus.await_series([shorter(each.series, WINDOW) for each in ALERTS if each.name not in ABSENT])
        for alert in ALERTS:  # as it stands in the rules
            prometheus.query(alert.expression)
        assert prometheus.query('ALERTS{alertname="StateholdPartitionFailed"}') == []


def test_what_a_compaction_leaves_has_the_names_that_its_alerts_look_at() -> None:
    reported = {family.name for family in registry_of("desk", [], 1.0, ok=False).collect()}
    for alert in ALERTS:
        if alert.name in OF_A_JOB:
            assert any(name in alert.series for name in reported)


@pytest.mark.parametrize("title", sorted(ONLY_THEN | NOT_USED))
def test_the_exceptions_are_panels(title: str) -> None:
    assert title in {panel["title"] for panel in panels()}
