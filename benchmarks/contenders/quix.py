"""(e) quixstreams, exactly-once, its own RocksDB state and changelog."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from quixstreams import Application, State

job = json.loads(Path(sys.argv[1]).read_text())


def apply(trade: dict[str, Any], state: State) -> dict[str, Any]:
    """Add one trade to its account's total."""
    total, count = state.get("totals", (0, 0))
    amount = trade["quantity"] * trade["price"]
    total, count = total + (amount if trade["side"] == "BUY" else -amount), count + 1
    state.set("totals", (total, count))
    return {"id": trade["id"], "account": trade["account"], "total": total, "count": count}


with tempfile.TemporaryDirectory() as directory:
    application = Application(
        job["bootstrap"],
        consumer_group=job["group"],
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=job["commit_seconds"],
        consumer_extra_config=job.get("consumer", {}),
        state_dir=job.get("state_dir", directory),
        loglevel="WARNING",
        auto_create_topics=True,  # its changelog topic
    )
    frame = application.dataframe(application.topic(job["input"], value_deserializer="json"))
    if job.get("rekeyed"):
        frame = frame.group_by("account")
    frame = frame.apply(apply, stateful=True)
    frame.to_topic(application.topic(job["output"], value_serializer="json"))
    application.run()
