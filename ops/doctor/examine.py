"""Runs the checks; for `statehold doctor`, for the start of a service, and for whoever embeds one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from statehold.errors import KafkaTrouble, StartError, StateholdError
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
from statehold.ops.doctor.report import Check, Finding, Level, Seen
from statehold.telemetry.log_events import Log

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
    """Every check, or those that are named; each has at least one finding. Blocks for seconds.

    Nothing is raised for what cannot be looked at: that is UNKNOWN, with its reason.
    """
    wanted = frozenset(only)
    chosen = [each() for each in CHECKS] if checks is None else list(checks)
    chosen = [each for each in chosen if not wanted or each.name in wanted]
    findings: list[Finding] = []
    silent = _silent(case)
    for check in chosen:
        if silent is not None and check.name != machine.ClientLibrary.name:
            fails = check.name == brokers.Reachable.name
            findings.append(_no_broker(case, check, silent) if fails else Seen(check).unknown("cluster", silent))
        else:
            findings += _looked(check, case)
    case.close()
    return findings


def _looked(check: Check, case: Case) -> list[Finding]:
    found: list[Finding] = []
    try:
        found += check.look(case)
    except StateholdError as error:
        found.append(Seen(check).unknown("-", str(error)))
    return found or [Seen(check).passed("-", check.looks_at)]


def _silent(case: Case) -> str | None:
    """Why nobody answers at all; every check would wait for its own deadline otherwise."""
    try:
        case.brokers  # noqa: B018 - asks
    except KafkaTrouble as error:
        return str(error)
    return None


def _no_broker(case: Case, check: Check, why: str) -> Finding:
    servers = case.settings.kafka.bootstrap_servers
    return Seen(check).failed(
        servers, f"no broker answers: {why}", "check kafka.bootstrap_servers and kafka.security; statehold dev status"
    )


def not_good(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (each for each in findings if each.level is not Level.PASS)


def tell(findings: Iterable[Finding], log: Log) -> None:
    """Log what is not good, for the start of a service; what could not be looked at is no news there."""
    for each in findings:
        if each.level in (Level.WARN, Level.FAIL):
            log.warning(
                "doctor", check=each.check, about=each.about, result=str(each.level), cause=each.reason, mend=each.mend
            )


def refuse(findings: Iterable[Finding]) -> None:
    """:raises StartError: a check has failed; the text names the first and how many there are."""
    failed = [each for each in findings if each.level is Level.FAIL]
    if failed:
        first, more = failed[0], f" ({len(failed)} checks failed; `statehold doctor` shows all)" if failed[1:] else ""
        raise StartError(f"doctor.at_start = fail: {first.check}: {first.about}: {first.reason}. {first.mend}{more}")
