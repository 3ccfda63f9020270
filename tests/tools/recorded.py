"""A small ledger whose service has run and stopped three times: snapshots, commit records and outputs for the tools."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
import structlog
from confluent_kafka import Producer
from tests.support.processes import await_true
from tests.support.verify import Group, Row, read_all

from statehold import Service
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config import load
from statehold.config.settings import Settings
from statehold.ops.cli import entry

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

APP = """
import random

import msgspec

from statehold import Handler, Output, Record, Service, Table


class Entry(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Balance(msgspec.Struct, frozen=True):
    amount: int = 0
    entries: int = 0


class Booked(msgspec.Struct, frozen=True):
    account: str
    balance: int


class Ledger(Handler[Entry]):
    balances = Table(key=str, value=Balance)
    pairs = Table(key=tuple[str, int], value=int)
    booked = Output("{name}.booked", value=Booked)

    def on_record(self, record: Record[Entry]) -> None:
        entry = record.value
        before = self.balances.get(entry.account, Balance())
        if entry.amount == 0:
            self.balances.delete(entry.account)
            return
        amount = before.amount + entry.amount {fault}
        self.balances[entry.account] = Balance(amount, before.entries + 1)
        self.pairs[entry.account[:1], record.offset % 7] = record.offset
        self.booked.send(Booked(entry.account, amount), key=entry.account)


service = Service("{name}", input="{name}.in", handler=Ledger)
"""
FAST = {
    "STATEHOLD_GROUP__SESSION_TIMEOUT": "6",
    "STATEHOLD_GROUP__HEARTBEAT_INTERVAL": "0.2",
    "STATEHOLD_COMMIT__INTERVAL": "0.02",
    "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096",
}


class Done(NamedTuple):
    """How a command ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Ledger:
    """A service of its own on the shared broker, with its module in `directory`."""

    servers: str
    directory: Path
    partitions: int = 2
    name: str = field(default_factory=lambda: f"ledger-{uuid.uuid4().hex[:8]}")
    #: accounts' balances as this file computes them
    balances: dict[str, int] = field(default_factory=dict)
    fed: list[int] = field(default_factory=lambda: [0, 0])
    live: bool = False

    def __post_init__(self) -> None:
        self.module = self.name.replace("-", "_")
        self.target = f"{self.module}:service"
        self.names = Names(self.name, f"{self.name}.in")
        self.group = Group(self.servers, self.names.group)
        self.write(self.module)
        self._inputs: dict[int, list[Row]] = {}
        self._producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 1})

    def write(self, module: str, fault: str = "") -> str:
        """The service's module, with an expression behind the new balance; what commands call it."""
        text = APP.replace("{name}", self.name).replace("{fault}", fault)
        (self.directory / f"{module}.py").write_text(text)
        return f"{module}:service"

    def environment(self, **more: str) -> dict[str, str]:
        return {"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": self.servers} | FAST | more

    def settings(self, **more: str) -> Settings:
        return load(env=self.environment(**more))

    def create(self) -> Ledger:
        ServiceTopics(self.settings(), self.names, [f"{self.name}.booked"]).create("beginning", self.partitions)
        return self

    def feed(self, count: int, accounts: int = 40, amount: int | None = None) -> None:
        """Append entries, `count` to each partition; with `amount=0` they close accounts."""
        for partition in range(self.partitions):
            for i in range(self.fed[partition], self.fed[partition] + count):
                account = f"{'ab'[partition]}{i % accounts}"
                moved = i % 97 + 1 if amount is None else amount
                self.balances[account] = self.balances.get(account, 0) + moved
                if moved == 0:
                    del self.balances[account]
                value = json.dumps({"account": account, "amount": moved}).encode()
                self._producer.produce(self.names.input, value, account.encode(), partition)
            self.fed[partition] += count
        assert self._producer.flush(30) == 0

    def feed_in_turns(self, *counts: int) -> None:
        """So that there are at least as many transactions, each ending where one of them ends."""
        for count in counts:
            self.feed(count)
            self.await_handled()

    def plant(self, topic: str, value: bytes, partition: int = 0) -> int:
        """Produce a foreign record; its offset."""
        offsets: list[int] = []
        self._producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, message: offsets.append(message.offset() or 0)
        )
        assert self._producer.flush(30) == 0
        return offsets[0]

    def service(self, module: str = "", **more: str) -> Service:
        service = imported(self.directory / f"{module or self.module}.py").service
        assert isinstance(service, Service)
        service.settings = self.settings(**more)
        return service

    @contextmanager
    def running(self, module: str = "", **more: str) -> Iterator[Service]:
        """Until the end of the block, when a clean stop takes a full."""
        with self.service(module, **more) as service:
            self.live = True
            try:
                yield service
                self.await_handled()
            finally:
                self.live = False

    def await_handled(self) -> None:
        def there() -> bool:
            positions = self.group.positions(self.names.input)
            return [positions.get(partition, 0) for partition in range(self.partitions)] == self.fed[: self.partitions]

        await_true(there, f"positions {self.fed}")

    def recomputed(self, partition: int, before: int) -> dict[str, tuple[int, int]]:
        """Balance and entries of each account after the input up to a position."""
        held: dict[str, tuple[int, int]] = {}
        for row in self.inputs()[partition][:before]:
            entry = json.loads(row.value)
            account, amount = entry["account"], entry["amount"]
            if amount == 0:
                held.pop(account, None)
            else:
                balance, entries = held.get(account, (0, 0))
                held[account] = balance + amount, entries + 1
        return held

    def inputs(self) -> dict[int, list[Row]]:
        if not self._inputs or [len(self._inputs[at]) for at in range(self.partitions)] != self.fed[: self.partitions]:
            self._inputs = read_all(self.servers, self.names.input)
        return self._inputs

    def commit_records(self, partition: int) -> list[dict[str, Any]]:
        return [commit_record for _, commit_record in bodies(self.servers, self.names.changelog, partition, b"M")]

    def manifests(self, partition: int) -> list[tuple[int, dict[str, Any]]]:
        return bodies(self.servers, self.names.snapshot, partition, b"F")

    def run(self, *arguments: str) -> Done:
        """`statehold ...` in the directory of the module: inside this process (a new one takes two seconds), unless
        the service runs in it and logs to the same streams.
        """
        if self.live:
            done = subprocess.run(
                self.command(*arguments),
                cwd=self.directory,
                env=self.shell(),
                capture_output=True,
                text=True,
                check=False,
                timeout=90,
            )
            return Done(done.returncode, done.stdout, done.stderr)
        out, err = io.StringIO(), io.StringIO()
        with (
            _logging_kept(),
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.directory),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name, value in self.shell().items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["statehold", *arguments])
            code = _code(entry.main)
        reported = "" if isinstance(code, int) else f"{code}\n"
        return Done(code if isinstance(code, int) else 1, out.getvalue(), err.getvalue() + reported)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What a command prints with --json; every command must end with `code`."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), cwd=self.directory, env=self.shell(), stdout=subprocess.PIPE, text=True
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "statehold.ops.cli.entry", *arguments]

    def shell(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("STATEHOLD_")}
        return inherited | {"COLUMNS": "160"} | self.environment()


@contextlib.contextmanager
def _logging_kept() -> Iterator[None]:
    """A command configures logging for its process: here that is everybody's."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    try:
        yield
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        sys.excepthook, threading.excepthook = hooks
        root.setLevel(level)
        logging.captureWarnings(capture=False)


def _code(main: Callable[[], None]) -> int | str:
    try:
        main()
    except SystemExit as ended:
        return 0 if ended.code is None else ended.code
    return 0


def bodies(servers: str, topic: str, partition: int, kind: bytes) -> list[tuple[int, Any]]:
    """Offset and body of each record of a kind, read and decoded from the description of the format alone."""
    found: list[tuple[int, Any]] = []
    for row in read_all(servers, topic).get(partition, []):
        if row.value[1:2] == kind:
            body = row.value[16:] if row.value[2] == 0 else zstd.decompress(row.value[16:])
            found.append((row.offset, msgspec.msgpack.decode(body)))
    return found


def imported(file: Path) -> ModuleType:
    spec = util.spec_from_file_location(f"{file.stem}_{time.monotonic_ns()}", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # msgspec resolves annotations there
    spec.loader.exec_module(module)
    return module
