"""The figures of a service: typed declarations, a registry of their own, gauges that leave with their partition."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from script.generate.metrics_page import document
from tests.support import prometheus
from tests.support.handlers import Accounts, Op

from statehold.telemetry import metrics, status_gauges
from statehold.telemetry.metrics import DECLARED, Counter, Gauge, Histogram
from statehold.telemetry.registry import ServiceMetrics
from statehold.testing import Driver

UNITS = (
    "_seconds",
    "_bytes",
    "_records",
    "_offset",
    "_ratio",
    "_keys",
    "_info",
    "_phase",
    "_assigned",
    "_ready",
    "_calls",
    "_partitions",
    "_paused",
    "_hops",
)


def series(meters: ServiceMetrics) -> dict[tuple[str, str], float]:
    """Each sample's value by name and labels, read back from the text as Prometheus would."""
    text = generate_latest(meters).decode()
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: metric.name)
def test_a_declaration_keeps_the_conventions(metric: metrics.Metric) -> None:
    assert re.fullmatch(r"statehold_[a-z_]+", metric.name)
    assert metric.text.rstrip().endswith(".")
    assert metric.name.endswith("_total") == isinstance(metric, Counter)
    assert bool(metric.buckets) == isinstance(metric, Histogram)
    assert isinstance(metric, Counter) or metric.name.endswith(UNITS), "a gauge or histogram ends with its base unit"
    assert [other.name for other in DECLARED].count(metric.name) == 1


def test_two_services_do_not_mix() -> None:
    ours, theirs = ServiceMetrics("clearing"), ServiceMetrics("ledger")
    ours.partition(0).inc(metrics.RECORDS, 3)
    theirs.partition(0).inc(metrics.RECORDS, 5)
    assert series(ours)["statehold_records_processed_total", "partition=0,service=clearing"] == 3
    assert "process_resident_memory_bytes" in generate_latest(ours.registry).decode()


def busy(service: str) -> ServiceMetrics:
    """A service with two partitions and a sample of every metric."""
    made = ServiceMetrics(service)
    for meters in (made.service, made.partition(0), made.partition(1)):
        for metric in DECLARED:
            labels = ["x" for _ in metric.labels]
            if metric.of_partition == (meters is made.service):
                continue
            if isinstance(metric, Gauge):
                meters.set(metric, 1, *labels)
            elif isinstance(metric, Counter):
                meters.inc(metric, 1, *labels)
            elif isinstance(metric, Histogram):
                meters.observe(metric, 1, *labels)
    return made


def strictly_parsed(registry: CollectorRegistry) -> list[Metric]:
    """The families of the registry's OpenMetrics text, which repeats neither a family nor a series."""
    text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return list(openmetrics_parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("services", [("clearing",), ("clearing", "ledger", "prices")])
def test_any_number_of_services_in_one_registry_give_a_valid_exposition(
    services: tuple[str, ...], tmp_path: Path
) -> None:
    host = CollectorRegistry()
    for service in services:
        busy(service).register(host)

    families = {each.name: each for each in strictly_parsed(host)}

    assert families.keys() == {metric.name.removesuffix("_total") for metric in DECLARED}
    for family in families.values():
        assert {sample.labels["service"] for sample in family.samples} == set(services)
    if not prometheus.missing():
        text = tmp_path / "metrics"
        text.write_bytes(generate_latest(host))
        with text.open("rb") as given:
            checked = subprocess.run(["promtool", "check", "metrics"], stdin=given, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_a_registry_rejects_a_service_that_would_repeat_series() -> None:
    host = CollectorRegistry()
    first = busy("clearing")
    first.register(host)
    with pytest.raises(ValueError, match="clearing: the registry has metrics of a service of this name already"):
        busy("clearing").register(host)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        host.register(busy("ledger"))  # prometheus_client's own way repeats whole families

    first.unregister(host)

    assert generate_latest(host) == b""
    host.register(busy("ledger"))


def test_a_gauge_leaves_with_its_partition_and_a_counter_stays() -> None:
    meters = ServiceMetrics("clearing")
    first = meters.partition(3)
    first.set(metrics.KEYS, 12)
    first.inc(metrics.RECORDS, 7)
    keys = "statehold_state_keys", "partition=3,service=clearing"
    assert series(meters)[keys] == 12
    second = meters.partition(3)  # the group gave it back before the old thread had ended
    second.set(metrics.KEYS, 3)
    first.forget()
    assert series(meters)[keys] == 3
    second.forget()
    found = series(meters)
    assert keys not in found
    assert found["statehold_records_processed_total", "partition=3,service=clearing"] == 7


def test_no_series_of_the_times_at_which_counters_began() -> None:
    meters = ServiceMetrics("clearing")
    meters.partition(0).observe(metrics.COMMIT_SECONDS, 0.004)
    assert not [name for name, _ in series(meters) if name.endswith("_created")]
    assert series(meters)["statehold_commit_seconds_bucket", "le=0.005,partition=0,service=clearing"] == 1


def test_a_wrong_number_of_labels_is_rejected() -> None:
    with pytest.raises(ValueError, match="label"):
        ServiceMetrics("clearing").partition(0).inc(metrics.TRANSACTIONS)


def test_what_a_partition_did_is_counted_once_per_commit() -> None:
    driver = Driver(Accounts)
    for amount in range(5):
        driver.feed(Op("ann", amount), key="ann")
    driver.feed(Op("bob", 1), key="bob")
    assert len(driver.outputs("totals")) == 6
    found, of = series(driver.metrics), "partition=0,service=accounts"
    assert found["statehold_records_processed_total", of] == 6
    assert found["statehold_records_produced_total", of] == 6
    assert found["statehold_state_keys", of] == 2
    assert found["statehold_commit_records_sum", of] == 6
    committed = found["statehold_transactions_total", f"outcome=committed,{of}"]
    assert committed == found["statehold_commit_seconds_count", of] == found["statehold_handler_seconds_count", of]
    assert found["statehold_commit_increment_bytes_sum", of] == found["statehold_increment_bytes_total", of] > 0
    assert found["statehold_takeover_seconds_count", "partition=0,service=accounts,step=restore"] == 1


def test_a_scrape_reports_what_the_status_reports() -> None:
    restore = {"step": "full", "begin": 10, "end": 30, "position": 15}
    partitions = [
        {"partition": 0, "phase": "live", "mailbox": 12, "restore": None, "lag": 7, "hidden": 2},
        {"partition": 1, "phase": "restoring", "mailbox": 0, "restore": restore, "lag": None, "hidden": None},
        {
            "partition": 2,
            "phase": "restoring",
            "mailbox": 0,
            "restore": {**restore, "begin": 30, "step": "commit_record"},
            "lag": 0,
            "hidden": 0,
        },
    ]
    meters = ServiceMetrics("clearing")
    meters.ask(
        lambda: status_gauges.of_status({"ready": False, "partitions": partitions, "outage": {"seconds": 12.5}}, 123.5)
    )
    found = series(meters)
    assert found["statehold_ready", "service=clearing"] == 0
    assert found["statehold_partitions_assigned", "service=clearing"] == 3
    assert found["statehold_loop_heartbeat_timestamp_seconds", "service=clearing"] == 123.5
    assert found["statehold_partition_phase", "partition=0,phase=live,service=clearing"] == 1
    lag = [(labels, value) for (name, labels), value in found.items() if name == "statehold_consumer_lag_records"]
    assert lag == [("partition=0,service=clearing", 7), ("partition=2,service=clearing", 0)]
    assert found["statehold_input_hidden_records", "partition=0,service=clearing"] == 2
    assert found["statehold_outage_seconds", "service=clearing"] == 12.5
    assert found["statehold_mailbox_records", "partition=0,service=clearing"] == 12
    assert found["statehold_restore_done_ratio", "partition=1,service=clearing,step=full"] == 0.25
    assert found["statehold_restore_done_ratio", "partition=2,service=clearing,step=commit_record"] == 1.0


def test_a_scrape_reports_requests_only_with_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    none: dict[str, Any] = {"effects_since": 0, "bytes": 0, "since_full": 0, "effects": 0}
    none |= dict.fromkeys(("time", "calls", "blocked_keys", "later", "requests"))
    partition = {"phase": "live", "mailbox": 0, "restore": None, "lag": 0, "hidden": 0, "restore_predicted": 0}
    asked: dict[str, Any] = {"requests": 7, "requests_waiting": 2, "requests_since": 940.0}
    lives: tuple[dict[str, Any], ...] = ({}, asked, asked | {"requests_waiting": 0, "requests_since": None})
    partitions = [{"partition": number, "live": none | live, **partition} for number, live in enumerate(lives)]
    meters = ServiceMetrics("clearing")
    meters.ask(lambda: status_gauges.of_status({"ready": True, "partitions": partitions}, None))
    found = series(meters)
    shown = ("requests_kept_keys", "requests_waiting_records", "requests_oldest_seconds")
    for number, values in enumerate(([None] * 3, [7, 2, 60], [7, 0, 0])):
        of = f"partition={number},service=clearing"
        assert [found.get((f"statehold_{name}", of)) for name in shown] == values


def test_every_gauge_has_a_kind_that_the_page_names() -> None:
    for metric in DECLARED:
        kind = "gauge" if isinstance(metric, Gauge) else "counter" if isinstance(metric, Counter) else "histogram"
        assert f"| `{metric.name}` | {kind} |" in document()
