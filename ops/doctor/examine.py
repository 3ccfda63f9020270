"""Runs the checks, for `statehold doctor`, the start of a service, and programs that embed one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from statehold.errors import KafkaTrouble, StateholdError
from statehold.ops.doctor import (
    access_rights,
    brokers,
    group,
    machine,
    retention,
    sinks,
    snapshots,
    topics,
    transactions,
)
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Check, Finding, FindingsOf

CHECKS: Final[tuple[type[Check], ...]] = (
    *brokers.CHECKS,
    *topics.CHECKS,
    *retention.CHECKS,
    *transactions.CHECKS,
    *group.CHECKS,
    *access_rights.CHECKS,
    *machine.CHECKS,
    *snapshots.CHECKS,
    *sinks.CHECKS,
)


def examine(case: Case, only: Iterable[str] = (), checks: Iterable[Check] | None = None) -> list[Finding]:
    """Run every check, or the named ones; each has at least one finding. Blocks for seconds.

    A check that cannot run is UNKNOWN, with the reason, and raises nothing.
    """
    wanted = frozenset(only)
    chosen = [each() for each in CHECKS] if checks is None else list(checks)
    chosen = [each for each in chosen if not wanted or each.name in wanted]
    findings: list[Finding] = []
    silent = _silent(case)
    for check in chosen:
        if silent is not None and check.name != machine.ClientLibrary.name:
            fails = check.name == brokers.Reachable.name
            findings.append(_no_broker(case, check, silent) if fails else FindingsOf(check).unknown("cluster", silent))
        else:
            findings += _looked(check, case)
    case.close()
    return findings


def _looked(check: Check, case: Case) -> list[Finding]:
    found: list[Finding] = []
    try:
        found += check.look(case)
    except StateholdError as error:
        found.append(FindingsOf(check).unknown("-", str(error)))
    return found or [FindingsOf(check).passed("-", check.looks_at)]


def _silent(case: Case) -> str | None:
    """Return why no broker answers; otherwise every check would wait for its own deadline."""
    try:
        case.brokers  # noqa: B018 - asks
    except KafkaTrouble as error:
        return str(error)
    return None


def _no_broker(case: Case, check: Check, why: str) -> Finding:
    servers = case.settings.kafka.bootstrap_servers
    return FindingsOf(check).failed(
        servers, f"no broker answers: {why}", "check kafka.bootstrap_servers and kafka.security; statehold dev status"
    )
