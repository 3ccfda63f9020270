"""(g) bytewax: state in memory, no recovery store; at least once is all it has."""

import json
import sys
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.run import cli_main

job = json.loads(Path(sys.argv[1]).read_text())
Total = tuple[int, int]


def by_account(message: KafkaSourceMessage[bytes, bytes]) -> tuple[str, dict[str, Any]]:
    """Decode a trade and name the account it belongs to."""
    trade = json.loads(message.value)
    return trade["account"], trade


def add(state: Total | None, trade: dict[str, Any]) -> tuple[Total, dict[str, Any]]:
    """Add one trade to its account's total."""
    total, count = state or (0, 0)
    amount = trade["quantity"] * trade["price"]
    total, count = total + (amount if trade["side"] == "BUY" else -amount), count + 1
    return (total, count), {"id": trade["id"], "account": trade["account"], "total": total, "count": count}


def out(item: tuple[str, dict[str, Any]]) -> KafkaSinkMessage[bytes, bytes]:
    """Encode one output."""
    return KafkaSinkMessage(item[0].encode(), json.dumps(item[1]).encode())


flow = Dataflow("bench")
source = KafkaSource([job["bootstrap"]], [job["input"]], tail=True, batch_size=1000)
trades = op.map("account", op.input("in", flow, source), by_account)
totals = op.stateful_map("total", trades, add)
kop.output("out", op.map("encode", totals, out), brokers=[job["bootstrap"]], topic=job["output"])
cli_main(flow)
