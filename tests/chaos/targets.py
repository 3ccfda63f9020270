"""Whom the harness can be pointed at: statehold, quixstreams, Kafka Streams; the same work, the same faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import environments
from tests.chaos.workers import statehold_command

TARGETS = ("statehold", "quix", "streams")
_PEERS = Path(environments.__file__).parent / "contenders"
#: what makes a takeover as quick as statehold's in these runs
_CONSUMER = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def command(target: str, job: Path) -> list[str]:
    """Makes the peer's environment on first use. Raises `environments.Skipped`: it cannot run here."""
    if target == "quix":
        return [environments.python_of("quix"), str(_PEERS / "quix.py"), str(job)]
    if target == "streams":
        return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", environments.streams_class_path(), "Totals", str(job)]
    return statehold_command(job)


def job(target: str, reported: dict[str, Any]) -> dict[str, Any]:
    """The job file's content; the peers read what the benchmarks write for them, and these settings."""
    if target == "statehold":
        return reported
    peer = {**reported, "group": reported["service"], "commit_seconds": 0.1, "caching": True}
    if target == "quix":
        return peer | {"consumer": _CONSUMER}
    return peer | {"settings": {name: str(value) for name, value in _CONSUMER.items()}}
