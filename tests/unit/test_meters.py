"""The figures of a service: typed declarations, a registry of their own, gauges that leave with their partition."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from script.generate.metrics_page import document
from tests.driver.apps import Accounts, Op

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


def test_two_services_do_not_mix_and_a_host_may_register_them() -> None:
    ours, theirs = ServiceMetrics("clearing"), ServiceMetrics("ledger")
    ours.partition(0).inc(metrics.RECORDS, 3)
    theirs.partition(0).inc(metrics.RECORDS, 5)
    assert series(ours)["statehold_records_processed_total", "partition=0,service=clearing"] == 3
    host = CollectorRegistry()
    host.register(ours)
    host.register(theirs)
    assert generate_latest(host).decode().count("statehold_records_processed_total{") == 2
    assert "process_resident_memory_bytes" in generate_latest(ours.registry).decode()


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


def test_every_gauge_has_a_kind_that_the_page_names() -> None:
    for metric in DECLARED:
        kind = "gauge" if isinstance(metric, Gauge) else "counter" if isinstance(metric, Counter) else "histogram"
        assert f"| `{metric.name}` | {kind} |" in document()
