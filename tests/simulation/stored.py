"""What a run has stored, read without statehold's code: each delta and full snapshot leads to the recorded digest."""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash
from tests.support.frames import MODULUS, unframe

from statehold.testing.simulation.simulation import RunResult

#: table and packed key -> stored value
Stored = dict[tuple[str, bytes], bytes]


def verify_stored(outcome: RunResult) -> None:
    """Follow every changelog from its first record, and load every full snapshot that a commit record names."""
    for partition, log in enumerate(outcome.kafka.topics[outcome.names.changelog].logs):
        snapshots: dict[int | None, tuple[str, Any]] = {
            message.offset(): unframe(message.value() or b"")
            for message in outcome.kafka.topics[outcome.names.snapshot].logs[partition].past()
        }
        held: Stored = {}
        states: dict[int, Stored] = {}
        named: set[tuple[int, ...]] = set()
        entries: list[Any] = []
        for message in log.past():
            kind, body = unframe(message.value() or b"")
            if kind == "P":
                entries += body[3]
            if kind != "M":
                continue
            where = f"partition {partition}, transaction {body['n']}"
            for table, keys, values in entries:
                put(held, table, keys, values)
            if body.get("last_delta") == body["n"] or body["n"] == 0:
                assert digest(held) == body["digest"], f"{where}: its deltas lead to another digest"
                states[body["n"]] = dict(held)
            else:
                assert not entries, f"{where} has a delta that its commit record does not name"
            entries = []
            named.update(map(tuple, body.get("fulls", [])))
        for low, offset, first, through, _ in sorted(named):
            where = f"partition {partition}, full snapshot {offset} of transactions {first} to {through}"
            kind, manifest = snapshots[offset]
            assert kind == "F", where
            if manifest.get("store"):
                found = in_store(outcome, manifest)
                if found is None and offset != max(at for _, at, *_ in named):
                    continue  # older ones may have been deleted
                assert found is not None, f"{where} is not in the store"
            else:
                found = [snapshots[at] for at in range(low, offset) if at in snapshots]
            verify_full(where, manifest, found, states if first == through else {})


def in_store(outcome: RunResult, manifest: Any) -> list[tuple[str, Any]] | None:
    """Return the frames of a full snapshot in the store; None if a segment is not there."""
    folder, frames = "/".join(manifest["store"].split("/")[-3:]), []
    for number in range(manifest.get("segments", 0)):
        if (found := outcome.store.objects.get(f"{folder}/{number:06}")) is None:
            return None
        data, at = found[0], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            frames.append(unframe(data[at + 4 : at + 4 + size]))
            at += 4 + size
    return frames


def verify_full(where: str, manifest: Any, found: list[tuple[str, Any]], states: dict[int, Stored]) -> None:
    """Every chunk is there and readable; a snapshot of one transaction holds that transaction's state."""
    chunks = [body for kind, body in found if kind == "C"]
    chunks = [chunk for chunk in chunks if chunk[0] == manifest["full"]]
    assert [chunk[1] for chunk in chunks] == list(range(len(manifest.get("checksums", [])))), f"{where} lacks chunks"
    held: Stored = {}
    for chunk in chunks:
        put(held, *chunk[3])
    if manifest.get("digest"):
        assert digest(held) == manifest["digest"], f"{where}: its chunks lead to another digest"
    if manifest["first"] in states:
        assert held == states[manifest["first"]], f"{where} is another state than the deltas lead to"


def put(held: Stored, table: str, keys: list[Any], values: list[bytes | None]) -> None:
    for key, value in zip(keys, values, strict=True):
        place = table, msgspec.msgpack.encode(key)
        if value is None:
            held.pop(place, None)
        else:
            held[place] = value


def digest(held: Stored) -> bytes:
    total = 0
    for (table, packed), value in held.items():
        key = msgspec.msgpack.decode(packed)
        blob = key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else packed
        seed = xxhash.xxh3_64_intdigest(blob, xxhash.xxh3_64_intdigest(table.encode()))
        total += xxhash.xxh3_128_intdigest(value, seed)
    return (total % MODULUS).to_bytes(16, "little")
