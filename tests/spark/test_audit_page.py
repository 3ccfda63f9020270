"""The queries of docs/how-to/state/audit.md run in their order, and answer what a recomputation of the input says."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold import Handler, Output, Record, Service, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "state" / "audit.md"
BLOCK = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)
KEY = "key-1"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


class Event(msgspec.Struct, frozen=True):
    id: int
    amount: int


class Total(msgspec.Struct, frozen=True):
    events: int = 0
    amount: int = 0


def totals(output: str) -> type[Handler[Event]]:
    """The handler that `statehold new` writes."""

    class Totals(Handler[Event]):
        totals = Table(key=str, value=Total)
        updates = Output(output, value=Total)

        def on_record(self, record: Record[Event]) -> None:
            key = (record.key or b"").decode()
            before = self.totals.get(key, Total())
            after = Total(before.events + 1, before.amount + record.value.amount)
            self.totals[key] = after
            self.updates.send(after, key=key)

    return Totals


def __getattr__(name: str) -> Service:
    """Return the service whose name, input and output are in the attribute's name."""
    service, slash, rest = name.partition("/")
    topic, _, output = rest.partition("/")
    if not slash:
        raise AttributeError(name)
    return Service(service, input=topic, handler=totals(output))


class Audited:
    """The service in this process, on the topics of a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def service(self, **settings: str) -> Service:
        stage = self._stage
        handler = totals(stage.output)
        return Service(
            stage.names.service, input=stage.names.input, handler=handler, settings=stage.settings(**settings)
        )


def amounts(stage: Stage, ends: dict[int, int] | None = None) -> list[int]:
    """The amount of the key after each of its records."""
    found, amount = [], 0
    for partition, rows in read_all(stage.servers, stage.names.input).items():
        for row in rows:
            if row.key == KEY and (ends is None or row.offset < ends[partition]):
                amount += msgspec.json.decode(row.value, type=Event).amount
                found.append(amount)
    return found


@pytest.mark.long
def test_the_queries_answer_what_the_input_says(spark: SparkSession, staged: Stage) -> None:
    from statehold.spark import StateholdSource

    def fed() -> None:
        with Local(Audited(staged), STATEHOLD_COMMIT__MAX_RECORDS="20"):
            staged.feed(200, keys=5)
            staged.await_all()

    fed()
    ends = {p: len(rows) for p, rows in read_all(staged.servers, staged.names.input).items()}
    moment = datetime.now(UTC).isoformat()
    fed()
    spark.dataSource.register(StateholdSource)
    target = f"{__name__}:{staged.names.service}/{staged.names.input}/{staged.output}"
    source = {"service": target, "table": "totals"}
    settings = {"kafka.bootstrap_servers": staged.servers}
    names: dict[str, Any] = {"spark": spark, "source": source, "settings": settings}
    begin, *blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert "SparkSession" in begin
    for block in blocks:
        text = block.replace("2026-11-21T17:30:00Z", moment).replace(".load()", ".options(**settings).load()")
        exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code

    assert [row["amount"] for row in names["balance"].collect()] == amounts(staged, ends)[-1:]
    assert {row["partition"]: row["position"] for row in names["points"].collect()} == ends
    history = names["history"].collect()
    assert [row["after"]["amount"] for row in history][-1] == amounts(staged)[-1]
    assert {row["after"]["amount"] for row in history} <= set(amounts(staged))
    assert names["last"].count() == 5
    assert names["wrong"].collect() == []
