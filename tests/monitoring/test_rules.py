"""The shipped rules and dashboard: metrics exist, promtool accepts them, each alert fires when it should, only then."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.monitoring.shipped import ALERTS, DASHBOARD, DEPLOY, RULES, panels
from tests.support.prometheus import missing, promtool

from statehold.ops.process.job_metrics import registry_of
from statehold.ops.process.shadow_metrics import ShadowMetrics
from statehold.shadow.report import ShadowReport
from statehold.telemetry.metrics import DECLARED, Histogram

NOTHING_SHADOWED = ShadowReport("incomplete", False, 0.0, 0, {}, [])

needs_promtool = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")

P = 'service="clearing",partition="0",instance="web1:8470",job="statehold"'
I = 'service="clearing",instance="web1:8470",job="statehold"'  # noqa: E741  no partition
J = 'service="clearing"'


def phase(name: str) -> str:
    return f'statehold_partition_phase{{{P},phase="{name}"}}'


def counted(name: str, labels: str, per_minute: float) -> tuple[str, str]:
    return f"statehold_{name}{{{labels}}}", f"0+{per_minute:g}x90"


def level(name: str, labels: str, value: float) -> tuple[str, str]:
    return f"statehold_{name}{{{labels}}}", f"{value:g}x90"


def slow_commits(bound: str) -> list[tuple[str, str]]:
    """100 commits a minute, all of them in the bucket that ends at `bound`."""
    found = []
    for le in ("0.1", "10", "+Inf"):
        n = 100 if le == "+Inf" or float(le) >= float(bound) else 0
        found.append((f'statehold_commit_seconds_bucket{{{P},le="{le}"}}', f"0+{n}x90"))
    return found


LAGGING = level("consumer_lag_records", P, 500)
#: alert -> series that make it fire at 80 minutes, series that do not
CASES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "StateholdDown": ([('up{job="statehold",instance="web1:8470"}', "0x90")], [('up{job="statehold"}', "1x90")]),
    "StateholdPartitionUnowned": (
        [level("input_partitions", I, 4), level("partitions_assigned", I, 3)],
        [level("input_partitions", I, 4), level("partitions_assigned", I, 4)],
    ),
    "StateholdNotReady": ([level("ready", I, 0)], [level("ready", I, 1)]),
    "StateholdPartitionFailed": ([(phase("failed"), "1x90")], [(phase("live"), "1x90")]),
    "StateholdOutage": ([level("outage_seconds", I, 61)], [level("outage_seconds", I, 59)]),
    "StateholdLoopStandsStill": (
        [level("loop_heartbeat_timestamp_seconds", I, 60)],
        [(f"statehold_loop_heartbeat_timestamp_seconds{{{I}}}", "0+60x90")],
    ),
    "StateholdStuckCall": ([level("stuck_calls", I, 1)], [level("stuck_calls", I, 0)]),
    "StateholdBehind": (
        [level("last_record_timestamp_seconds", P, 60), LAGGING],
        [level("last_record_timestamp_seconds", P, 60), level("consumer_lag_records", P, 3)],  # nothing more came
    ),
    "StateholdStandsStill": (
        [LAGGING, counted("records_processed_total", P, 0)],
        [LAGGING, counted("records_processed_total", P, 5)],  # behind, and at work
    ),
    "StateholdPaused": ([level("partition_paused", P, 1), (phase("live"), "1x90")], [(phase("live"), "1x90")]),
    "StateholdOpenTransaction": (
        [level("input_hidden_records", P, 9), level("position_offset", P, 70), level("consumer_lag_records", P, 0)],
        # producers with transactions that end: the last stable offset moves
        [level("input_hidden_records", P, 9), counted("position_offset", P, 40), level("consumer_lag_records", P, 0)],
    ),
    "StateholdRetentionNear": (
        [level("input_retention_left_seconds", P, 3600)],
        [(f"statehold_input_retention_left_seconds{{{P}}}", "Inf " * 90)],
    ),
    "StateholdDeadlyRecord": ([level("deadly_record_offset", P, 1207)], []),
    "StateholdSlowRecords": ([counted("slow_records_total", P, 1)], [counted("slow_records_total", P, 0)]),
    "StateholdDeadLetters": (
        [counted("failed_records_total", f'{P},what="raised"', 1)],
        [counted("failed_records_total", f'{P},what="retry"', 1)],
    ),
    "StateholdCallsDown": ([level("down_calls", P, 1)], [level("down_calls", P, 0)]),
    "StateholdCallsDead": ([level("dead_calls", P, 2)], [level("dead_calls", P, 0)]),
    "StateholdRequestsWait": (
        [level("requests_oldest_seconds", P, 1000)],
        [level("requests_oldest_seconds", P, 800)],
    ),
    "StateholdEffectsFail": ([counted("effect_failures_total", P, 1)], [counted("effect_failures_total", P, 0.2)]),
    "StateholdCommitsSlow": (slow_commits("10"), slow_commits("0.1")),
    "StateholdRollbacks": (
        [counted("transactions_total", f'{P},outcome="aborted"', 2)],
        [counted("transactions_total", f'{P},outcome="committed"', 600)],
    ),
    "StateholdFenced": (
        [counted("transactions_total", f'{P},outcome="fenced"', 1)],
        [counted("transactions_total", f'{P},outcome="fenced"', 0.1)],  # takeovers fence, too
    ),
    "StateholdRebalances": (
        [counted("rebalances_total", f'{I},kind="assigned"', 2)],
        [counted("rebalances_total", f'{I},kind="assigned"', 0.5)],
    ),
    "StateholdTakeoverLong": ([(phase("restoring"), "1x90")], [(phase("live"), "1x90")]),
    "StateholdRestoreOverBudget": (
        [level("restore_predicted_seconds", P, 20), level("restore_budget_seconds", I, 10)],
        [level("restore_predicted_seconds", P, 9), level("restore_budget_seconds", I, 10)],
    ),
    "StateholdFullSnapshotsAbandoned": (
        [counted("full_snapshots_total", f'{P},outcome="given_up"', 0.1)],
        [counted("full_snapshots_total", f'{P},outcome="written"', 0.1)],
    ),
    "StateholdDigestDiffers": (
        [counted("full_snapshots_total", f'{P},outcome="differs"', 0.1)],
        [counted("full_snapshots_total", f'{P},outcome="given_up"', 0.1)],
    ),
    "StateholdLocalStoreDiffers": (
        [counted("local_store_scrubs_total", f'{P},outcome="differs"', 0.1)],
        [counted("local_store_scrubs_total", f'{P},outcome="equal"', 0.1)],
    ),
    "StateholdCompactionFailed": ([level("compaction_success", J, 0)], [level("compaction_success", J, 1)]),
    "StateholdCompactionOld": (
        [level("compaction_finished_timestamp_seconds", J, -2 * 86400)],
        [level("compaction_finished_timestamp_seconds", J, 0)],
    ),
    "StateholdShadowDiffers": (
        [level("shadow_differences", f'{J},partition="0",kind="table",name="totals"', 2)],
        [level("shadow_differences", f'{J},partition="0",kind="table",name="totals"', 0)],
    ),
    "StateholdRestarts": (
        [(f"process_start_time_seconds{{{I}}}", "0+120x90")],
        [(f"process_start_time_seconds{{{I}}}", "7x90")],
    ),
    "StateholdFilesNearLimit": (
        [(f"process_open_fds{{{I}}}", "900x90"), (f"process_max_fds{{{I}}}", "1024x90")],
        [(f"process_open_fds{{{I}}}", "90x90"), (f"process_max_fds{{{I}}}", "1024x90")],
    ),
}


def exported() -> set[str]:
    """Every series name that a service, a compaction or a shadow exports."""
    names = {family.name for family in registry_of("desk", [], 1.0, ok=False).collect()}
    names |= {family.name for family in ShadowMetrics("desk", lambda: NOTHING_SHADOWED).collect()}
    for metric in DECLARED:
        ends = ("_bucket", "_sum", "_count") if isinstance(metric, Histogram) else ("",)
        names |= {metric.name + end for end in ends}
    return names


def test_every_metric_in_the_rules_exists() -> None:
    named = {name for alert in ALERTS for name in re.findall(r"\bstatehold_\w+", alert.expression)}
    assert len(named) > 20
    assert named - exported() == set()


def test_every_metric_in_the_dashboard_exists() -> None:
    assert set(re.findall(r"\bstatehold_\w+", json.dumps(DASHBOARD))) - exported() == set()


def test_every_metric_has_a_panel() -> None:
    drawn = [target["expr"] for panel in panels() for target in panel["targets"]]
    missing_ones = [
        each.name for each in DECLARED if not any(re.search(rf"\b{each.name}(_bucket)?\b", line) for line in drawn)
    ]
    assert missing_ones == [], "add a panel to deploy/grafana/statehold.json"
    assert all(panels(row) for row in ("Overview", "Takeover", "Transactions", "Snapshots"))


def test_the_dashboard_is_whole() -> None:
    rows = [each for each in DASHBOARD["panels"] if each["type"] == "row"]
    assert len({each["id"] for each in [*rows, *panels()]}) == len(rows) + len(panels())
    assert all(each["description"] and each["targets"] for each in panels())
    assert [row["title"] for row in rows if not row["collapsed"]] == ["Overview"]
    for placed in (DASHBOARD["panels"], *(row["panels"] for row in rows)):
        taken: set[tuple[int, int]] = set()
        for place in (each["gridPos"] for each in placed):  # none lies over another
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            assert max(x for x, _ in cells) < 24
            taken |= cells


def test_no_panel_names_a_job_and_each_can_be_of_one_instance() -> None:
    lines = [target["expr"] for panel in panels() for target in panel["targets"]]
    lines += [note["expr"] for note in DASHBOARD["annotations"]["list"]]
    assert not [line for line in lines if re.search(r"\bjob\s*=", line)]
    assert not [line for line in lines if "$instance" not in line]
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "service", "instance"}


def test_events_that_are_rare_are_counted_and_limits_are_drawn() -> None:
    by_title = {panel["title"]: panel for panel in panels()}
    for title in ("rebalances", "partition failures", "failed records", "late records", "standbys dropped"):
        assert "increase(" in by_title[title]["targets"][0]["expr"], title
    for title in ("live", "behind", "outage", "retention left", "stuck calls", "ready"):
        assert len(by_title[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]) > 1, title


@needs_promtool
def test_promtool_accepts_them() -> None:
    for arguments in (("check", "rules", "statehold.rules.yml"), ("check", "config", "prometheus.yml")):
        done = promtool(*arguments, cwd=DEPLOY / "prometheus")
        assert done.returncode == 0, done.stdout


@needs_promtool
@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """Each has a rule file of its own, because promtool evaluates all rules of a file for each of its tests."""
    assert sorted(CASES) == sorted(alert.name for alert in ALERTS)
    (group,) = yaml.safe_load(RULES)["groups"]
    for rule in group["rules"]:
        name = rule["alert"]
        tests = [one(name, series, fires) for series, fires in zip(CASES[name], (True, False), strict=True)]
        # JSON is YAML
        (tmp_path / f"{name}.rules.yml").write_text(json.dumps({"groups": [{**group, "rules": [rule]}]}))
        whole = {"rule_files": [f"{name}.rules.yml"], "evaluation_interval": "1m", "tests": tests}
        (tmp_path / f"{name}.tests.yml").write_text(json.dumps(whole))
    done = promtool("test", "rules", *(f"{name}.tests.yml" for name in CASES), cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def one(name: str, series: list[tuple[str, str]], fires: bool) -> dict[str, Any]:
    """promtool compares whole alerts, so what is compared is how many of this name fire at 80 minutes."""
    question = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    return {
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series],
        "promql_expr_test": [
            {"expr": question, "eval_time": "80m", "exp_samples": [{"labels": "{}", "value": 1 if fires else 0}]}
        ],
    }
