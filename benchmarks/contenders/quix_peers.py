"""quixstreams, exactly-once: the joins and windows of `join` and `window`, with its own operators."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from quixstreams import Application

job = json.loads(Path(sys.argv[1]).read_text())
application = Application(
    job["bootstrap"],
    consumer_group=job["group"],
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=job["commit_seconds"],
    state_dir=job["state_dir"],
    loglevel="ERROR",
    auto_create_topics=True,  # its changelog topics
)
frames = [application.dataframe(application.topic(name, value_deserializer="json")) for name in job["inputs"]]
grace = timedelta(milliseconds=job.get("grace_ms", 0))


def enrich(trade: dict[str, Any], price: dict[str, Any] | None) -> dict[str, Any]:
    """Join a trade with the newest price."""
    found = -1 if price is None else price["price"]
    value = 0 if price is None else found * trade["quantity"]
    return {"id": trade["id"], "symbol": trade["symbol"], "price": found, "value": value}


def match(order: dict[str, Any] | None, fill: dict[str, Any] | None) -> dict[str, Any]:
    """Join an order and a fill."""
    value = 0 if order is None or fill is None else order["quantity"] * fill["price"]
    return {"order": "" if order is None else order["id"], "fill": "" if fill is None else fill["id"], "value": value}


def first(trade: dict[str, Any]) -> list[int]:
    """Begin a candle: open, high, low, close, volume."""
    return [trade["price"]] * 4 + [trade["quantity"]]


def add(candle: list[int], trade: dict[str, Any]) -> list[int]:
    """Add a trade to its candle."""
    price = trade["price"]
    return [candle[0], max(candle[1], price), min(candle[2], price), price, candle[4] + trade["quantity"]]


def closed(window: dict[str, Any], key: bytes, _timestamp: int, _headers: Any) -> dict[str, Any]:
    """Return the output of a closed window."""
    begin, high, low, end, volume = window["value"]
    candle = {"open": begin, "high": high, "low": low, "close": end, "volume": volume}
    return {"symbol": key.decode(), "start": window["start"], **candle}


if job["work"] == "enrich":
    frame = frames[0].join_asof(frames[1], how=job["join"], on_merge=enrich)
elif job["work"] == "match":
    within = timedelta(milliseconds=job["within_ms"])
    frame = frames[0].join_interval(
        frames[1],
        how=job["join"],
        on_merge=match,
        grace_ms=within + grace,  # how long it keeps records; it has to be `within` at least
        backward_ms=within,
        forward_ms=within,
    )
else:
    size, every = (timedelta(milliseconds=job[name]) for name in ("size_ms", "every_ms"))
    frame = frames[0]
    window = (
        frame.tumbling_window(size, grace_ms=grace)
        if every == size
        else frame.hopping_window(size, every, grace_ms=grace)
    )
    frame = window.reduce(add, first).final(closing_strategy=job.get("closing", "key")).apply(closed, metadata=True)
frame.to_topic(application.topic(job["output"], value_serializer="json"))
application.run()
