"""quixstreams as a store of keys, for `restore`."""

import json
import sys
from pathlib import Path
from typing import Any

from quixstreams import Application, State

job = json.loads(Path(sys.argv[1]).read_text())


def apply(put: dict[str, Any], state: State) -> dict[str, Any] | None:
    """Store a put, or answer a look."""
    if put.get("look"):
        found = state.get("stored")
        return {"key": put["key"], "version": found[0] if found else -1}
    state.set("stored", (put["version"], put["text"]))
    return None


application = Application(
    job["bootstrap"],
    consumer_group=job["group"],
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=job["commit_seconds"],
    state_dir=job["state_dir"],
    loglevel="INFO",
)
frame = application.dataframe(application.topic(job["input"], value_deserializer="json"))
frame = frame.apply(apply, stateful=True)
frame = frame[frame.apply(lambda answer: answer is not None)]
frame.to_topic(application.topic(job["output"], value_serializer="json"))
application.run()
