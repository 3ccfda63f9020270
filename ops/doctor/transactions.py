"""Checks the requirements of transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar, Final

from statehold.config.common.units import format_duration
from statehold.kafka.survey.open_transactions import OpenTransaction, open_transaction_at
from statehold.ops.doctor.case import Case, NotAsked
from statehold.ops.doctor.report import Finding, FindingsOf

#: a live service opens a new transaction well within that
_RECHECK: Final = 1.0


class IdExpiration:
    name: ClassVar = "id-expiration"
    looks_at: ClassVar = "transactional.id.expiration.ms against commit.renew_after"
    fails: ClassVar = "an idle partition's id may expire before its renewal, which revives a zombie"
    warns: ClassVar = "less than twice commit.renew_after: one late renewal is enough"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, renew = FindingsOf(self), case.settings.commit.renew_after
        for broker, value in case.setting("transactional.id.expiration.ms").items():
            kept = int(value) / 1000
            if kept < 2 * renew:
                report = seen.failed if kept <= renew else seen.warned
                yield report(
                    f"broker {broker}",
                    f"ids expire after {format_duration(kept)} without a transaction, commit.renew_after is "
                    f"{format_duration(renew)}",
                    case.set_brokers("transactional.id.expiration.ms", 604800000)
                    + f", or commit.renew_after = {kept / 3:.0f}",
                )


class TransactionTimeouts:
    name: ClassVar = "transaction-timeouts"
    looks_at: ClassVar = "commit.transaction_timeout against the brokers' transaction.max.timeout.ms"
    fails: ClassVar = "the brokers reject it: no partition could be fenced"
    warns: ClassVar = (
        "restore.hanging_after is shorter than theirs: a restore fails before the broker ends a foreign transaction"
    )

    def look(self, case: Case) -> Iterator[Finding]:
        seen, timeout = FindingsOf(self), case.settings.commit.transaction_timeout
        most = {broker: int(value) / 1000 for broker, value in case.setting("transaction.max.timeout.ms").items()}
        for broker, allowed in most.items():
            if allowed < timeout:
                yield seen.failed(
                    f"broker {broker}",
                    f"allows transactions of {format_duration(allowed)}, commit.transaction_timeout is "
                    f"{format_duration(timeout)}",
                    case.set_brokers("transaction.max.timeout.ms", round(timeout * 1000))
                    + f", or commit.transaction_timeout = {allowed:g}",
                )
        hanging = case.settings.restore.hanging_after
        if hanging < timeout:
            yield seen.warned(
                "restore.hanging_after",
                f"{format_duration(hanging)} is less than commit.transaction_timeout ({format_duration(timeout)})",
                f"restore.hanging_after = {timeout * 2:g}",
            )


class Hanging:
    name: ClassVar = "hanging-transactions"
    looks_at: ClassVar = "old open transactions on the service's topics that hide their ends from committed readers"
    fails: ClassVar = "one was open for longer than restore.hanging_after"
    warns: ClassVar = "one was open for longer than commit.transaction_timeout"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, settings = FindingsOf(self), case.settings
        for found in self._still(case):
            age = case.wall() - found.since
            topic, partition = found.topic, found.partition
            report = seen.failed if age > settings.restore.hanging_after else seen.warned
            yield report(
                f"{topic}[{partition}]",
                f"a transaction that is open for {age:.0f} s hides offsets {found.stable} to {found.end}",
                f"statehold txn list --topic {topic} names its owner; "
                f"statehold txn abort '{topic}[{partition}]' ends it",
            )
        if not case.data:
            raise NotAsked("none of the service's topics exists")

    def _still(self, case: Case) -> list[OpenTransaction]:
        """Return old ones that a recheck still finds, because timestamps of records may be those of old events."""
        limit, now = case.settings.commit.transaction_timeout, case.wall()
        places = [(topic, each.partition) for topic in case.data for each in case.topic(topic).partitions]
        asked = [open_transaction_at(case.settings, case.cluster, *place) for place in places]
        old = [each for each in asked if each is not None and now - each.since > limit]
        if old:
            time.sleep(_RECHECK)
        return [each for each in old if case.cluster.ends(each.topic, each.partition)[1] == each.stable]


CHECKS = (IdExpiration, TransactionTimeouts, Hanging)
