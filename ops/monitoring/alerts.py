"""Every alert, declared once: deploy/prometheus/statehold.rules.yml is made from this; see docs/runbook/alerts.md.

An alert compares the series of `value` with `threshold`. `lasting` is for how long that has to be so, `{window}` in an
expression is how far it looks back. Whoever runs a service may write other numbers into the rules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from statehold.telemetry import metrics

#: where the runbook's pages are, if nobody says otherwise: in the repository, and below the root of the site
RUNBOOK: Final = "docs/runbook"
_PAGE: Final = "alerts"


@dataclass(frozen=True, slots=True)
class Alert:
    """`summary` is Prometheus's template; `unless` and `besides` are parts of the expression behind the comparison."""

    name: str
    severity: Literal["page", "ticket"]
    summary: str
    value: str
    operator: Literal[">", "<", "=="] = ">"
    threshold: float = 0
    lasting: str = "0m"
    window: str = "5m"
    besides: str = ""

    def query(self, window: str = "") -> str:
        """The series that are compared: there are some while a service is well, too."""
        return self.value.replace("{window}", window or self.window)

    def expression(self, window: str = "", threshold: float | None = None) -> str:
        limit = self.threshold if threshold is None else threshold
        compared = f"{self.query(window)} {self.operator} {limit:g}"
        besides = self.besides.replace("{window}", window or self.window)
        return f"({compared}) {besides}" if besides else compared


def _increase(metric: metrics.Counter, matcher: str = "", by: str = "service, partition") -> str:
    return f"sum by ({by}) (increase({metric.name}{matcher}[{{window}}]))"


_P: Final = "{{ $labels.service }}, partition {{ $labels.partition }}"
_I: Final = "{{ $labels.service }} at {{ $labels.instance }}"
_V: Final = "{{ $value }}"
_FOR: Final = "{{ $value | humanizeDuration }}"
_END: Final = f"({metrics.POSITION.name} + {metrics.LAG.name})"

ALERTS: Final[Sequence[Alert]] = (
    # Is it there
    Alert(
        "StateholdDown",
        "page",
        "{{ $labels.instance }} does not answer Prometheus",
        'up{job="statehold"}',
        operator="==",
        lasting="2m",
    ),
    Alert(
        "StateholdPartitionUnowned",
        "page",
        "{{ $labels.service }}: {{ $value }} partitions of the input belong to nobody",
        f"max by (service) ({metrics.INPUT_PARTITIONS.name}) - sum by (service) ({metrics.PARTITIONS.name})",
        lasting="3m",
    ),
    Alert(
        "StateholdNotReady",
        "ticket",
        f"{_I} has not been ready for a long time",
        metrics.READY.name,
        operator="==",
        lasting="15m",
    ),
    Alert(
        "StateholdPartitionFailed",
        "page",
        f"{_P} has failed and waits for somebody",
        f'sum by (service, partition) ({metrics.PHASE.name}{{phase="failed"}} or 0 * {metrics.PHASE.name})',
        lasting="1m",
    ),
    Alert("StateholdOutage", "page", f"{_I}: Kafka has not answered for {_FOR}", metrics.OUTAGE.name, threshold=60),
    Alert(
        "StateholdLoopStandsStill",
        "page",
        f"{_I}: the manager's loop has not turned for {_FOR}",
        f"time() - {metrics.LOOP_TIME.name}",
        threshold=60,
    ),
    Alert("StateholdStuckCall", "page", f"{_I}: {_V} calls do not come back", metrics.STUCK.name),
    # Does it get on
    Alert(
        "StateholdBehind",
        "ticket",
        f"{_P} is {_FOR} behind its input",
        f"time() - {metrics.RECORD_TIME.name}",
        threshold=300,
        lasting="5m",
        besides=f"and on (service, partition, instance) {metrics.LAG.name} > 100",
    ),
    Alert(
        "StateholdStandsStill",
        "page",
        f"{_P} has {_V} records to read and commits none",
        metrics.LAG.name,
        threshold=100,
        lasting="5m",
        besides=f"unless on (service, partition) (sum by (service, partition) "
        f"(increase({metrics.RECORDS.name}[{{window}}])) > 0 or {metrics.PAUSED.name})",
    ),
    Alert(
        "StateholdPaused",
        "ticket",
        f"{_P} stands still by somebody's command",
        f"sum by (service, partition) ({metrics.PAUSED.name} or 0 * {metrics.PHASE.name})",
        lasting="1h",
    ),
    Alert(
        "StateholdOpenTransaction",
        "ticket",
        f"{_P}: an open transaction hides {_V} records of the input",
        metrics.HIDDEN.name,
        lasting="1m",
        besides=f"unless on (service, partition) sum by (service, partition) (changes({_END}[{{window}}:])) > 0",
    ),
    Alert(
        "StateholdRetentionNear",
        "page",
        f"{_P}: retention deletes what it still needs in {_FOR}",
        f"min by (service, partition) ({metrics.RETENTION_LEFT.name})",
        operator="<",
        threshold=6 * 3600,
    ),
    Alert(
        "StateholdSlowRecords", "ticket", f"{_P}: the handler was slow on {_V} records", _increase(metrics.SLOW_RECORDS)
    ),
    Alert(
        "StateholdDeadLetters",
        "ticket",
        f"{_P}: {_V} records have become dead letters",
        _increase(metrics.FAILED_RECORDS, '{what="raised"}'),
        window="1h",
    ),
    Alert(
        "StateholdEffectsFail",
        "ticket",
        f"{_P}: {_V} attempts of side effects failed",
        _increase(metrics.EFFECT_FAILURES),
        threshold=5,
        window="15m",
    ),
    # Transactions and owners
    Alert(
        "StateholdCommitsSlow",
        "ticket",
        f"{_P}: one commit in a hundred takes {_FOR}",
        f"histogram_quantile(0.99, sum by (service, partition, le) "
        f"(rate({metrics.COMMIT_SECONDS.name}_bucket[{{window}}])))",
        threshold=2,
        lasting="5m",
    ),
    Alert(
        "StateholdRollbacks",
        "ticket",
        f"{_P}: {_V} transactions did not commit",
        _increase(metrics.TRANSACTIONS, '{outcome=~"aborted|unknown"}'),
        threshold=20,
        window="15m",
    ),
    Alert(
        "StateholdFenced",
        "page",
        f"{_P} was fenced {_V} times: somebody else uses its transactional id",
        _increase(metrics.TRANSACTIONS, '{outcome="fenced"}'),
        threshold=3,
        window="15m",
    ),
    Alert(
        "StateholdRebalances",
        "ticket",
        "{{ $labels.service }} does not settle: {{ $value }} assignments",
        _increase(metrics.REBALANCES, '{kind="assigned"}', by="service"),
        threshold=20,
        window="15m",
    ),
    # Takeovers and snapshots
    Alert(
        "StateholdTakeoverLong",
        "ticket",
        f"{_P} has not been live for a long time",
        f"sum by (service, partition) ({metrics.PHASE.name}"
        f'{{phase=~"fencing|restoring|replaying"}} or 0 * {metrics.PHASE.name})',
        lasting="10m",
    ),
    Alert(
        "StateholdRestoreOverBudget",
        "ticket",
        f"{_P}: a restore would take {_V} of its budget",
        f"max by (service, partition) ({metrics.RESTORE_PREDICTED.name} / on (service, instance) group_left "
        f"{metrics.RESTORE_BUDGET.name})",
        threshold=1.5,
        lasting="15m",
    ),
    Alert(
        "StateholdFullsGivenUp",
        "ticket",
        f"{_P}: {_V} fulls were given up",
        _increase(metrics.FULLS, '{outcome="given_up"}'),
        window="1h",
    ),
    Alert(
        "StateholdCompactionFailed",
        "ticket",
        "{{ $labels.service }}: the last compaction did not succeed",
        "statehold_compaction_success",
        operator="==",
    ),
    Alert(
        "StateholdCompactionOld",
        "ticket",
        "{{ $labels.service }}: no compaction has ended for {{ $value | humanizeDuration }}",
        "time() - statehold_compaction_finished_timestamp_seconds",
        threshold=2 * 86400,
    ),
    # The process
    Alert(
        "StateholdFilesNearLimit",
        "ticket",
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of the files open that it may",
        'process_open_fds{job="statehold"} / process_max_fds',
        threshold=0.8,
        lasting="1m",
    ),
)


def anchor(name: str) -> str:
    """A section's stable link: the heading is the name."""
    return name.lower()


def rules(runbook: str = RUNBOOK, alerts: Sequence[Alert] = ALERTS) -> str:
    """The rule file for Prometheus, as YAML; `runbook` is where the pages of docs/runbook are, a URL or a path."""
    suffix = ".md" if runbook == RUNBOOK else ".html"
    lines = [
        "# Made by `python -m statehold.ops.monitoring` from statehold.ops.monitoring.alerts: change it there.",
        "groups:",
        "  - name: statehold",
        "    rules:",
    ]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression())}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          runbook_url: {json.dumps(f'{runbook}/{_PAGE}{suffix}#{anchor(alert.name)}')}",
        ]
    return "\n".join(lines) + "\n"
