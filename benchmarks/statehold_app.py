"""(a), (b) The same work with statehold: `python -m benchmarks.statehold_app JOB.json`. Public API, default settings.

The job may say `batch` (on_batch instead of on_record), `rekeyed` (two stages by a `Rekey`), `origin`, `settings`
({section: {key: value}}), `prepare`
(false: the topics are there already) and `all_live`: a file that appears when every partition is live, and until then
no record is handled.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.load import Running, Trade
from statehold import Handler, Output, Record, Rekey, Service, Table, on
from statehold.admin.topics import ServiceTopics
from statehold.config import Settings


class Total(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of one account."""

    total: int = 0
    count: int = 0


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the first of two stages sends to the second."""

    id: str
    amount: int


NOTHING = Total()


def settings_of(job: dict[str, Any]) -> Settings:
    """Return the settings: defaults, but for the broker, the commit interval and what the job says."""
    settings = Settings()
    sections: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrap_servers": job["bootstrap"]},
        "commit": {"interval": job["commit_seconds"]},
        "output": {"origin": job.get("origin", True)},
    }
    for name, given in job.get("settings", {}).items():
        sections.setdefault(name, {}).update(given)
    changed = {name: replace(getattr(settings, name), **given) for name, given in sections.items()}
    return replace(settings, **changed)


def handler_of(output: str, *, batch: bool, start: threading.Event | None = None) -> type[Handler[Trade]]:
    """Return the handler class for an output topic. Its first record waits for `start`."""

    class OnRecord(Handler[Trade]):
        totals = Table(key=str, value=Total)
        running = Output(output, value=Running)

        def on_record(self, record: Record[Trade]) -> None:
            trade = record.value
            account = trade.account
            old = self.totals.get(account, NOTHING)
            amount = trade.quantity * trade.price
            new = Total(old.total + (amount if trade.side == "BUY" else -amount), old.count + 1)
            self.totals[account] = new
            self.running.send(Running(trade.id, account, new.total, new.count), account)

    class OnBatch(OnRecord):
        def on_batch(self, records: Sequence[Record[Trade]]) -> None:
            """Touch each account's row once per batch."""
            totals, fresh = self.totals, dict[str, tuple[int, int]]()
            answers: list[Running] = []
            for record in records:
                trade = record.value
                account = trade.account
                at = fresh.get(account)
                if at is None:
                    old = totals.get(account, NOTHING)
                    at = (old.total, old.count)
                amount = trade.quantity * trade.price
                total, count = at[0] + (amount if trade.side == "BUY" else -amount), at[1] + 1
                fresh[account] = (total, count)
                answers.append(Running(trade.id, account, total, count))
            for account, (total, count) in fresh.items():
                totals[account] = Total(total, count)
            self.running.send_all(answers, [answer.account for answer in answers])

    class OnRecordLater(OnRecord):
        def on_record(self, record: Record[Trade]) -> None:
            if start is not None and not start.is_set():
                start.wait()
            super().on_record(record)

    if start is not None:
        return OnRecordLater
    return OnBatch if batch else OnRecord


def rekeyed(source: str, output: str) -> type[Handler[None]]:
    """Return the handler of two stages: it counts by symbol, then gives the totals by account."""

    class Rekeyed(Handler[None]):
        by_account = Rekey("by_account", key=str, value=Change)
        symbols = Table(key=str, value=int)
        totals = Table(key=str, value=Total)
        running = Output(output, value=Running)

        @on(source, value=Trade)
        def trade(self, record: Record[Trade]) -> None:
            trade = record.value
            self.symbols[trade.symbol] = self.symbols.get(trade.symbol, 0) + 1
            amount = trade.quantity * trade.price
            self.by_account.send(Change(trade.id, amount if trade.side == "BUY" else -amount), trade.account)

        @on(by_account)
        def account(self, record: Record[Change, str]) -> None:
            change, account = record.value, record.key
            old = self.totals.get(account, NOTHING)
            new = self.totals[account] = Total(old.total + change.amount, old.count + 1)
            self.running.send(Running(change.id, account, new.total, new.count), account)

    return Rekeyed


def await_live(service: Service, file: Path, start: threading.Event) -> None:
    """Write the file and let the handlers begin when every partition is live."""
    while not start.is_set():
        if service.status()["ready"] and len(service.status()["partitions"]) == service.overview.partitions:  # type: ignore[union-attr]
            file.touch()
            start.set()
        service.wait(0.2)


def main() -> None:
    """Create the topics, run until SIGTERM."""
    job = json.loads(Path(sys.argv[1]).read_text())
    start = threading.Event() if "all_live" in job else None
    handler: type[Handler[Any]] = handler_of(job["output"], batch=job.get("batch", False), start=start)
    if job.get("rekeyed", False):
        handler = rekeyed(job["input"], job["output"])
    service = Service(job["group"], input=job["input"], handler=handler, settings=settings_of(job))
    if job.get("prepare", True):
        ServiceTopics(service.settings, service.names, [job["output"]]).create("beginning")
    if start is not None:
        threading.Thread(target=await_live, args=(service, Path(job["all_live"]), start), daemon=True).start()
    service.run()


if __name__ == "__main__":
    main()
