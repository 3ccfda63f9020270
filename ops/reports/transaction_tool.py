"""Runs Kafka's own tool for transactions in a short-lived JVM, because confluent_kafka lacks these calls."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from statehold.config.java_client import java_security
from statehold.config.settings import Settings
from statehold.dev.errors import DevError
from statehold.dev.jars import tools_class_path
from statehold.dev.java import find_java

_TOOL: Final = "org.apache.kafka.tools.TransactionsCommand"
_JVM: Final = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_PATIENCE: Final = 120.0


class ToolFailed(DevError):
    """The tool failed; the text is its own."""


class OpenProducer(NamedTuple):
    """A producer that has an open transaction on a partition."""

    producer_id: int
    epoch: int
    #: offset of the transaction's first record
    start: int


class Owner(NamedTuple):
    """The coordinator's data of a transactional id; times in seconds, `since` since 1970."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int
    timeout: float
    since: float
    partitions: tuple[str, ...]


class TransactionTool:
    """Each call starts a JVM: 1 to 3 s, 100 MB. Raises DevError: no Java, no jars, or `ToolFailed`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._java, self._path = find_java(), tools_class_path()

    def ids(self) -> dict[int, str]:
        """Return the transactional id of every producer id that the coordinators know."""
        rows = self._table("list")
        return {int(row["ProducerId"]): row["TransactionalId"] for row in rows}

    def open_on(self, topic: str, partition: int) -> list[OpenProducer]:
        """Return the producers with an open transaction on this partition, the oldest first."""
        rows = self._table("describe-producers", "--topic", topic, "--partition", str(partition))
        held = [row for row in rows if row["CurrentTransactionStartOffset"].isdecimal()]
        found = [
            OpenProducer(int(row["ProducerId"]), int(row["ProducerEpoch"]), int(row["CurrentTransactionStartOffset"]))
            for row in held
        ]
        return sorted(found, key=lambda each: each.start)

    def owner(self, transactional_id: str) -> Owner:
        (row,) = self._table("describe", "--transactional-id", transactional_id)
        began = row["CurrentTransactionStartTimeMs"]
        return Owner(
            transactional_id,
            int(row["ProducerId"]),
            row["TransactionState"],
            int(row["CoordinatorId"]),
            int(row["TransactionTimeoutMs"]) / 1000,
            int(began) / 1000 if began.isdecimal() else 0.0,
            tuple(row["TopicPartitions"].split(",")) if row["TopicPartitions"] else (),
        )

    def abort(self, topic: str, partition: int, start: int) -> None:
        """Write the abort marker of the transaction that begins at this offset."""
        self._run("abort", "--topic", topic, "--partition", str(partition), "--start-offset", str(start))

    def _table(self, *arguments: str) -> list[dict[str, str]]:
        lines = [line for line in self._run(*arguments).splitlines() if "\t" in line]
        if not lines:
            return []
        head, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
        return [dict(zip(head, row, strict=False)) for row in rows]

    def _run(self, *arguments: str) -> str:
        with tempfile.TemporaryDirectory(prefix="statehold-txn-") as directory:
            file = Path(directory) / "client.properties"
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as properties:
                properties.write(_properties(self._settings))
            servers = self._settings.kafka.bootstrap_servers.replace(" ", "")
            command = [self._java, *_JVM, "-cp", self._path, _TOOL, "--bootstrap-server", servers]
            command += ["--command-config", str(file), *arguments]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_PATIENCE
            )
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if "SLF4J" not in line]
            raise ToolFailed(" ".join(line.strip() for line in lines if line.strip())[:300] or "Kafka's tool failed")
        return done.stdout


def _properties(settings: Settings) -> str:
    """Return the file with the settings of the Java client."""
    lines = java_security(settings) | {"client.id": "statehold-txn"}
    return "".join(f"{key}={_escaped(value)}\n" for key, value in lines.items())


def _escaped(text: str) -> str:
    """Escape a value of a Java properties file."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "")
