"""`python -m tests.chaos.worker JOB.json`: statehold's version of the service; logs JSON lines to standard output."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import structlog
from tests.chaos import clock, failing, mutants, points
from tests.chaos.answering import answering
from tests.chaos.caller import caller
from tests.chaos.rekeyed import rekeyed
from tests.chaos.workload import EVERYTHING, Running, Trade, linked

from statehold import Handler, Output, Record, Service, Table, on
from statehold.api.handler import EffectKey
from statehold.common.exit_codes import exit_of
from statehold.config import load
from statehold.errors import StateholdError
from statehold.ops.process.control import ControlServer
from statehold.ops.process.hard_exit import limit_the_end

#: one trade in this number has a side effect
EFFECT_EVERY = 20
#: bytes that no broker here takes
_TOO_LARGE = 3_000_000


class Account(msgspec.Struct, frozen=True):
    """An account's total and number of trades."""

    total: int = 0
    count: int = 0


class Totals(Handler[Trade]):
    """The same work as the other targets do."""

    accounts = Table(key=str, value=Account)
    answers: Output[Any]
    #: where effects are written down
    calls = -1

    def on_record(self, record: Record[Trade]) -> None:
        trade = record.value
        before = self.accounts.get(trade.account, Account())
        after = Account(before.total + trade.amount, before.count + 1)
        self.accounts[trade.account] = after
        self.answers.send(Running(trade.id, trade.account, after.total, after.count), key=trade.account)
        if int(trade.id[1:]) % EFFECT_EVERY == 0:
            self.effect(self.called, trade.id, self.replaying)

    def called(self, key: EffectKey, trade: str, replaying: bool) -> None:
        write_call(self.calls, key, trade, replaying)


class Fails(Totals):
    """Some trades fail by design, after they have written and sent; see `tests.chaos.failing`."""

    on_failure: ClassVar = failing.policies()
    #: the directory with a file for each trade whose cause is fixed
    fixed: Path

    def __init__(self) -> None:
        self.met: set[str] = set()

    def on_record(self, record: Record[Trade]) -> None:
        super().on_record(record)
        trade = record.value
        if trade.symbol == failing.LARGE:
            self.answers.send(bytes(_TOO_LARGE))
        elif trade.symbol != failing.PLAIN:
            failing.fail(trade.symbol, time.time() - record.timestamp / 1000, self.met, self.fixed, trade.id)


class Linked(msgspec.Struct, frozen=True):
    """An account's total and number of trades, and what depends on their order."""

    total: int = 0
    count: int = 0
    link: int = 1


def both(first: str, second: str, output: str, calls: str) -> type[Handler[None]]:
    """The handler of two inputs. It books each trade on its account, and on one that every order changes."""
    file = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    class Both(Handler[None]):
        accounts = Table(key=str, value=Linked)
        answers = Output(output, value=Running)

        @on(first, value=Trade)
        def trade_of_first(self, record: Record[Trade]) -> None:
            self._handle(record.value)

        @on(second, value=Trade)
        def trade_of_second(self, record: Record[Trade]) -> None:
            self._handle(record.value)

        def _handle(self, trade: Trade) -> None:
            self._book(EVERYTHING, trade)
            after = self._book(trade.account, trade)
            self.answers.send(Running(trade.id, trade.account, after.total, after.count), key=trade.account)
            if int(trade.id[1:]) % EFFECT_EVERY == 0:
                self.effect(self.called, trade.id, self.replaying)

        def _book(self, account: str, trade: Trade) -> Linked:
            before = self.accounts.get(account, Linked())
            link = linked(before.link, trade)
            after = self.accounts[account] = Linked(before.total + trade.amount, before.count + 1, link)
            return after

        def called(self, key: EffectKey, trade: str, replaying: bool) -> None:
            write_call(file, key, trade, replaying)

    return Both


def write_call(file: int, key: EffectKey, trade: str, replaying: bool) -> None:
    """Write down that an effect ran."""
    os.write(file, f"{trade} {key[1]} {key[2]} {key[3]} {int(replaying)}\n".encode())


def totals(output: str, calls: str, fixed_dir: str = "") -> type[Totals]:
    """The handler with its output topic and its file of effects; with `fixed_dir` the one that fails."""

    class Bound(Totals):
        answers = Output(output, value=Running)

    class BoundFails(Fails):
        answers: Output[Any] = Output(output, value=Running | bytes)
        fixed = Path(fixed_dir)

    bound: type[Totals] = BoundFails if fixed_dir else Bound
    bound.calls = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return bound


def service_of(job: dict[str, Any]) -> Service:
    """As the job says; settings come from STATEHOLD_*."""
    if job["rekeyed"]:
        kind = rekeyed(job["input"], job["output"])
        return Service(job["service"], input=job["input"], handler=kind, settings=load())
    if job["others"]:
        (second,) = job["others"]
        kind = both(job["input"], second, job["output"], job["calls"])
        return Service(job["service"], inputs=[job["input"], second], handler=kind, settings=load())
    if job["effects"]:
        handler = answering(job["output"], job["effects"])
        return Service(job["service"], input=job["input"], handler=handler, settings=load())
    if job.get("remote"):
        calling = caller(job["output"], job["remote"])
        return Service(job["service"], input=job["input"], handler=calling, settings=load())
    totalling = totals(job["output"], job["calls"], job["fixed"])
    return Service(job["service"], input=job["input"], handler=totalling, settings=load())


def log_lines() -> None:
    """One JSON object a line on standard output."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(),
    )


def _end_with_the_harness() -> None:
    """Its end of the pipe is closed when it dies, however it dies."""
    os.read(0, 1)
    os._exit(9)


def main() -> int:
    """Until SIGTERM. Exit codes as `statehold run`, and as there the interpreter's own end has its time."""
    threading.Thread(target=_end_with_the_harness, daemon=True).start()
    faulthandler.register(signal.SIGUSR2)
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes())
    log_lines()
    points.install(job["points"])
    clock.install(job["points"])
    mutants.install(job.get("mutant", ""))
    service = service_of(job)
    try:
        with ControlServer(service, Path(job["sockets"])):
            service.run()
    except StateholdError as error:
        traceback.print_exc()
        return exit_of(error)
    finally:
        limit_the_end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
