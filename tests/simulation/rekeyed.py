"""A ledger in the simulated cluster: money moves between accounts of other partitions, and none is lost or made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from tests.simulation.stored import verify_stored
from tests.support.rekeyed import Ledger, Transfer, check_moved

from statehold.common.partitioner import murmur2
from statehold.config.settings import Settings
from statehold.testing.simulation.simulation import InputRecord, RunResult, Scenario

ACCOUNTS = "abcdefg"


def transfers(number: int, partitions: int, records: int, seconds: float) -> list[InputRecord]:
    """Return transfers between all accounts, in all partitions."""
    found = []
    for index in range(records):
        source = ACCOUNTS[(index * index + number) % len(ACCOUNTS)]
        target = ACCOUNTS[(index * 3 + number) % len(ACCOUNTS)]
        value = msgspec.json.encode(Transfer(source, target, 1 + (index * 7 + number * 5) % 40))
        moment = seconds * (index // 3) / max(1, records // 3)
        found.append(InputRecord(moment, (index * 2 + number) % partitions, value, b"row", "transfers"))
    return found


def verify_ledger(inputs: Sequence[InputRecord], outcome: RunResult) -> None:
    """Every movement once, in the partition of its account, each total made of the one before it."""
    given = [msgspec.json.decode(each.value or b"", type=Transfer) for each in inputs]
    (topic,) = outcome.names.rekeys
    for partition, sent in outcome.outputs(topic).items():
        astray = [key for key, _ in sent if key is None or murmur2(key, outcome.application.partitions) != partition]
        assert not astray, f"{topic}[{partition}] has records of the keys {astray}"
    moved = [
        ((key or b"").decode(), int(value or b"0")) for each in outcome.outputs("moved").values() for key, value in each
    ]
    check_moved(given, moved)


def ledger(
    name: str, number: int, settings: Settings, *, partitions: int, records: int, seconds: float, **more: Any
) -> Scenario:
    inputs = transfers(number, partitions, records, seconds)

    def verify(outcome: RunResult) -> None:
        verify_ledger(inputs, outcome)
        verify_stored(outcome)

    return Scenario(Ledger, inputs, settings, partitions, topics=("transfers",), name=name, verify=verify, **more)
