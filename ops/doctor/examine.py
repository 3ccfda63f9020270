"""Runs the checks, for `statehold doctor`, the start of a service, and programs that embed one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from statehold.errors import KafkaTrouble, Misconfigured, StateholdError
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
from statehold.ops.reports import outage

CHECKS: Final[tuple[type[Check], ...]] = (
    *group.CHECKS,  # first, because a partition that has failed is what a person at night looks for
    *brokers.CHECKS,
    *topics.CHECKS,
    *retention.CHECKS,
    *transactions.CHECKS,
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
    no_answer = _no_answer(case)
    for check in chosen:
        if no_answer is None or check.name == machine.ClientLibrary.name:
            findings += _looked(check, case)
        elif check.name == brokers.Reachable.name:
            findings.append(FindingsOf(check).failed(case.settings.kafka.bootstrap_servers, *no_answer))
        else:
            findings.append(FindingsOf(check).unknown("cluster", no_answer[0]))
    case.close()
    return findings


def _looked(check: Check, case: Case) -> list[Finding]:
    found: list[Finding] = []
    try:
        found += check.look(case)
    except StateholdError as error:
        found.append(FindingsOf(check).unknown("-", str(error)))
    return found or [FindingsOf(check).passed("-", check.looks_at)]


def _no_answer(case: Case) -> tuple[str, str] | None:
    """Return why no broker answers, and the fix; otherwise every check would wait for its own deadline."""
    try:
        case.brokers  # noqa: B018 - asks
    except Misconfigured as error:  # the brokers reject the login, or a file is missing; its text names which
        return str(error), "change kafka.security; statehold config show --changed"
    except KafkaTrouble as error:
        silent = outage.silent(case.settings)
        cause = outage.causes_of(silent) if silent else str(error)
        since = outage.of_services(case.given.group) if case.given is not None else ""
        fix = "check kafka.bootstrap_servers and kafka.security; statehold dev status"
        return f"no broker answers: {cause}{since and '.'}{since}", fix
    return None
