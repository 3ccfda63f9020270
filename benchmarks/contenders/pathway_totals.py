"""Pathway (Rust engine, BSL licence): the total of each account; an output is coalesced over a commit of 100 ms."""

import json
import sys
from pathlib import Path

import pathway as pw

job = json.loads(Path(sys.argv[1]).read_text())
kafka = {"bootstrap.servers": job["bootstrap"], "group.id": job["group"], "auto.offset.reset": "earliest"}


class Trade(pw.Schema):  # type: ignore[misc]  # not installed here
    """What a total needs of a trade."""

    account: str
    side: str
    quantity: int
    price: int


trades = pw.io.kafka.read(
    kafka, topic=job["input"], schema=Trade, format="json", autocommit_duration_ms=int(job["commit_seconds"] * 1000)
)
amount = trades.quantity * trades.price
signed = trades.select(trades.account, amount=pw.if_else(trades.side == "BUY", amount, -amount))
totals = signed.groupby(signed.account).reduce(
    signed.account, total=pw.reducers.sum(signed.amount), count=pw.reducers.count()
)
pw.io.kafka.write(totals, kafka, job["output"], format="json", key=totals.account)
backend = pw.persistence.Backend.filesystem(job["state_dir"])
persistence = pw.persistence.Config(backend) if job["persistence"] else None
pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=persistence)
