"""Summarises states, full snapshots and changes as JSON objects."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec

from statehold.snapshot.format.records import COMPACTION, CommitRecord
from statehold.snapshot.full_listing import Full
from statehold.snapshot.inspect import compare, forecast, typed
from statehold.snapshot.inspect.compare import Change, Difference
from statehold.snapshot.inspect.past import PastState
from statehold.snapshot.inspect.survey import Survey
from statehold.snapshot.inspect.typed import Typed
from statehold.snapshot.restore.estimate import Workload
from statehold.state import digest


def of_state(
    found: PastState, partition: int, types: Typed, rows: int, key: str | None, table: str | None
) -> dict[str, Any]:
    """Summarise a state; with its first `rows` of each table, or with the rows of `key`."""
    base = found.base
    tables = {name: held for name, held in found.contents.tables.items() if table in (None, name)}
    return {
        "partition": partition,
        "position": found.position,
        "n": found.n,
        "digest": digest.show(found.digest),
        "lineage": found.lineage,
        "time": found.time,
        "age": _age(found.time),
        "full": base.offset if base else None,
        "deltas": found.deltas,
        "keys": found.contents.keys,
        "bytes": found.contents.bytes,
        "tables": {name: {"keys": len(held), "bytes": sum(map(len, held.values()))} for name, held in tables.items()},
        "rows": [
            {"table": name, "key": typed.key(each), "value": types.value(name, held[each])}
            for name, held in tables.items()
            for each in _keys(held, rows, key)
        ],
    }


def _keys(held: dict[Any, bytes], rows: int, key: str | None) -> list[Any]:
    if key is None:
        return list(held)[:rows]
    return [each for each in compare.readings(key) if each in held]


def of_difference(partition: int, old: PastState, new: PastState, types: Typed, limit: int) -> dict[str, Any]:
    """Count the differences of two states, and list the first `limit`."""
    counts: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for each in compare.differences(old.contents, new.contents):
        counts[each.what] += 1
        if len(rows) < limit:
            rows.append(_difference(each, types))
    return {
        "partition": partition,
        "a": {"position": old.position, "n": old.n, "keys": old.contents.keys},
        "b": {"position": new.position, "n": new.n, "keys": new.contents.keys},
        **{what: counts[what] for what in ("added", "changed", "removed")},
        "keys": rows,
    }


def _difference(each: Difference, types: Typed) -> dict[str, Any]:
    return {
        "what": each.what,
        "table": each.table,
        "key": typed.key(each.key),
        "old": types.value(each.table, each.old),
        "new": types.value(each.table, each.new),
    }


def of_change(partition: int, each: Change, types: Typed) -> dict[str, Any]:
    return {
        "partition": partition,
        "position": each.position,
        "start": each.start,
        "n": each.n,
        "time": each.time,
        "writer": each.writer,
        "table": each.table,
        "key": typed.key(each.key),
        "old": types.value(each.table, each.old) if each.old_known else "not stored",
        "old_known": each.old_known,
        "new": types.value(each.table, each.new),
    }


def of_survey(found: Survey, work: Workload, topic: str) -> dict[str, Any]:
    """Summarise the commit record, the full snapshots and the restore of a partition of the input `topic`."""
    return {
        "partition": found.partition,
        "commit_record": _commit_record(found.commit_record, topic),
        "full_snapshots": [_full(full, found, topic) for full in found.full_snapshots],
        "increment": {"start": found.increment[0], "end": found.increment[1]},
        "full": {"start": found.full[0], "end": found.full[1]},
        "restore": {
            "from": found.choice.offset if found.choice else None,
            "why": found.why,
            "replaying_far": found.far,
            "seconds": round(forecast.seconds(work, found.commit_record), 3),
            "work": msgspec.to_builtins(work),
        },
        "trouble": found.trouble,
    }


def _commit_record(commit_record: CommitRecord | None, topic: str) -> dict[str, Any] | None:
    if commit_record is None:
        return None
    return {
        "n": commit_record.n,
        "position": commit_record.position(topic),
        "keys": commit_record.keys,
        "digest": digest.show(commit_record.digest),
        "last_delta": commit_record.last_delta,
        "lineage": commit_record.lineage,
        "writer": commit_record.writer.instance,
        "version": commit_record.writer.version,
        "time": commit_record.time,
        "age": _age(commit_record.time),
    }


def _full(full: Full, found: Survey, topic: str) -> dict[str, Any]:
    summary: dict[str, Any] = {"offset": full.offset, "referred": full.referred, "finding": full.finding}
    if full.manifest is not None:
        made, proof = full.manifest, proof_of(full, found.commit_record)
        summary |= {
            "id": made.full,
            "n": made.first,
            "through": made.through,
            "position": None if made.position(topic) < 0 else made.position(topic),
            "keys": made.keys,
            "bytes": made.size,
            "chunks": len(made.checksums),
            "shared": made.shared,
            "maker": made.maker,
            "writer": made.writer.instance,
            "time": made.time,
            "age": _age(made.time),
            "proven": proof == "yes",
            "proof": proof,
        }
    return summary | {"chosen": full is found.choice}


def proof_of(full: Full, commit_record: CommitRecord | None) -> str:
    """Return whether its writer, whom the last commit record trusts, or the compaction has verified it."""
    if full.finding or full.manifest is None:
        return "no"
    if full.referred or full.maker == COMPACTION:
        return "yes"
    return "not yet: no commit record refers to it" if commit_record is not None else "no"


def _age(milliseconds: int) -> float:
    """Return the seconds since then by this machine's clock, which may differ from the writer's."""
    return round(max(0.0, time.time() - milliseconds / 1000), 1)
