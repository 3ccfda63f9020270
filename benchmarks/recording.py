"""Writes what benchmarks measured to docs/figures.json, the source of each table and chart of figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from script.generate import figures

from benchmarks.report import BUILD, machine

Measured = Mapping[str, dict[str, Any]]
Block = dict[str, Any]

#: contender of `throughput` -> id and name of its row, and its name in the chart
_THROUGHPUT: Final = {
    "a_origin": ("statehold", "statehold, `on_record`, default settings", "statehold"),
    "b_origin": ("statehold_batch", "statehold, `on_batch`, default settings", ""),
    "a": ("statehold_no_origin", "statehold, `on_record`, `output.origin` off", ""),
    "b": ("statehold_batch_no_origin", "statehold, `on_batch`, `output.origin` off", ""),
    "d": ("tuned", "confluent-kafka by hand, msgspec, everything tuned, no garbage collector", ""),
    "c": ("by_hand", "confluent-kafka by hand, `json`", ""),
    "f": ("streams", "Kafka Streams 4.3.1, exactly_once_v2, in-memory store", "Kafka Streams"),
    "g": ("bytewax", "bytewax, at least once", "bytewax (at least once)"),
    "e": ("quixstreams", "quixstreams, exactly-once", "Quix Streams"),
}
_RESTORE: Final = {
    "statehold": ("statehold", "statehold"),
    "streams": ("Kafka Streams, in-memory store", "Kafka Streams"),
    "quix": ("quixstreams", "Quix Streams"),
}
_LATENCY: Final = {"a_origin": "statehold", "d": "by_hand", "f": "streams"}
_SPREAD: Final = ("value", "lowest", "highest")
_STANDBY: Final = {
    "statehold": "statehold, `standbys = 1`",
    "streams": "Kafka Streams 4.3.1, in-memory store, `num.standby.replicas=1`",
    "cold": "statehold without standbys",
}
_SINK: Final = {
    "statehold": "a service with a sink: decode, a total per account, deltas, rows and position",
    "plain, COPY": "plain upsert in batches of 10,000, `COPY` into a temporary table",
    "plain, executemany": "plain upsert in batches of 10,000, `executemany` (`INSERT ... ON CONFLICT`)",
}
_STORES: Final = {
    "statehold": "statehold",
    "streams": "Kafka Streams, in memory",
    "rocksdb": "Kafka Streams, RocksDB",
}
_PEERS: Final = ("statehold", "streams", "quix")
#: work -> what its rows are called
_WORKS: Final = {
    "enrich": "stream-table join",
    "match": "join of two streams within 60 s",
    "candles": "tumbling windows of 10 s with grace",
}


def record(name: str) -> None:
    """Write the figures of one benchmark."""
    source = BUILD / f"{name}.json"
    measured = {each["name"]: each for each in json.loads(source.read_text(encoding="utf-8"))}
    target, make = Path(figures.FIGURES), _BLOCKS[name]
    known = json.loads(target.read_text(encoding="utf-8"))
    known[name] = {"date": f"{datetime.now(UTC):%B %Y}", "machine": machine(), **make(measured)}
    target.write_text(_text(known), encoding="utf-8")


def _throughput(measured: Measured) -> Block:
    rows = []
    for letter, (row, title, bar) in _THROUGHPUT.items():
        if letter in measured:
            rows.append(
                {
                    "id": row,
                    "name": title,
                    **_spread(measured[letter]),
                    "cpu": round(measured[f"{letter}.cpu"]["value"], 1),
                    **({"chart": bar} if bar else {}),
                }
            )
    return {"rounds": measured["a_origin"]["rounds"], "rows": rows}


def _restore(measured: Measured) -> Block:
    rows = []
    for letter, (title, bar) in _RESTORE.items():
        found = {
            field: round(measured[name]["value"], 1)
            for field, name in (
                ("first", f"{letter}.1x.live"),
                ("restoring", f"{letter}.1x.restore"),
                ("updated", f"{letter}.10x.live"),
                ("updated_restoring", f"{letter}.10x.restore"),
            )
            if name in measured
        }
        if found:
            rows.append({"id": letter, "name": title, **found, "chart": bar})
    return {"rounds": measured["statehold.1x.live"]["rounds"], "rows": rows}


def _peers(measured: Measured) -> Block:
    rows = []
    for work, title in _WORKS.items():
        if f"{work}.statehold" in measured:
            rates = {peer: _spread(measured[f"{work}.{peer}"]) for peer in _PEERS if f"{work}.{peer}" in measured}
            for peer, found in rates.items():
                found["cpu"] = round(measured[f"{work}.{peer}.cpu"]["value"], 1)
            rows.append({"id": work, "name": title, **rates})
    return {"rounds": next(each["rounds"] for each in measured.values() if "rounds" in each), "rows": rows}


def _start(measured: Measured) -> Block:
    rows = [
        {"id": name, "name": f"`statehold {name}`" if name[0] == "-" else f"`statehold run`: {name.partition(', ')[2]}"}
        | {field: round(found[field], 2) for field in _SPREAD}
        for name, found in measured.items()
    ]
    return {"rounds": next(each["rounds"] for each in measured.values()), "rows": rows}


def _latency(measured: Measured) -> Block:
    rows: dict[tuple[int, float], dict[str, Any]] = {}
    for name in measured:
        rate, commit, letter, share = name.split(".")
        if letter in _LATENCY and share == "p50":
            row = rows.setdefault((int(rate), float(commit)), {"rate": int(rate), "commit": float(commit)})
            row[_LATENCY[letter]] = [
                round(measured[f"{rate}.{commit}.{letter}.{each}"]["value"], 1) for each in ("p50", "p99", "p999")
            ]
            row[f"{_LATENCY[letter]}_cpu"] = round(measured[f"{rate}.{commit}.{letter}.cpu"]["value"], 1)
    return {"rounds": next(each["rounds"] for each in measured.values() if "rounds" in each), "rows": [*rows.values()]}


def _compact(measured: Measured) -> Block:
    rows = []
    for millions in (name.removesuffix("m.megabytes") for name in measured if name.endswith("m.megabytes")):
        row: dict[str, Any] = {"millions": float(millions), "mb": round(measured[f"{millions}m.megabytes"]["value"])}
        for name in ("read", "python", "compact"):
            for field in ("seconds", "whole"):
                row[f"{name}_{field}"] = round(measured[f"{name}.{millions}m.{field}"]["value"], 1)
        row["memory"] = [
            round(measured[f"compact.{millions}m.memory.{p}"]["value"]) for p in ("program", "jvm", "workers")
        ]
        rows.append(row)
    return {"rounds": 1, "rows": rows}


def _commit(measured: Measured) -> Block:
    rows = []
    for name in (name for name, found in measured.items() if found["unit"] == "records/s"):
        waits = {
            field: round(measured[f"{name}.commit_{field}"]["value"], 1)
            for field in ("p50", "p99")
            if f"{name}.commit_{field}" in measured
        }
        rate, of_plain = measured[name]["value"], measured[f"{name}/plain"]["value"]
        rows.append(
            {"name": name.replace("_", " "), "value": int(round(rate, -3)), "of_plain": round(of_plain, 2), **waits}
        )
    return {"rounds": measured["plain"]["rounds"], "rows": rows}


def _lanes(measured: Measured) -> Block:
    fields = {"cpu": 1, "live": 1, "idle": 3, "stop": 1, "memory": 0}
    rows = []
    for name in (name for name in measured if name.isdigit()):
        found = {field: round(measured[f"{name}.{field}"]["value"], digits) for field, digits in fields.items()}
        rows.append({"partitions": int(name), **_spread(measured[name]), **found})
    return {"rounds": next(each["rounds"] for each in measured.values() if "rounds" in each), "rows": rows}


def _standby(measured: Measured) -> Block:
    rows = [
        {"id": letter, "name": title}
        | {how: [round(measured[f"{letter}.{how}"][field], 2) for field in _SPREAD] for how in ("stopped", "killed")}
        for letter, title in _STANDBY.items()
        if f"{letter}.stopped" in measured
    ]
    return {"rounds": measured["statehold.stopped"]["rounds"], "rows": rows}


def _sink(measured: Measured) -> Block:
    rows = [
        {"id": name, "name": title, **{field: int(round(measured[name][field], -2)) for field in _SPREAD}}
        for name, title in _SINK.items()
    ]
    return {"rounds": measured["statehold"]["rounds"], "rows": rows}


def _growth(measured: Measured) -> Block:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, found in measured.items():
        axis, step, *rest = name.split(".")
        if axis in ("keys", "processes"):
            row = rows.setdefault((axis, step), {"axis": axis, "step": int(step)})
            peer, *field = rest
            row["_".join([peer, *field])] = round(found["value"], 1) if field else int(round(found["value"], -3))
        else:
            row = rows.setdefault(("memory", axis), {"axis": "memory", "id": axis, "name": _STORES[axis]})
            row["_".join([step, *rest])] = round(found["value"], 2)
    return {"rounds": 1, "rows": [*rows.values()]}


def _spread(figure: dict[str, Any]) -> dict[str, int]:
    """Return a rate in thousands, because more digits are noise."""
    return {name: int(round(figure[name], -3)) for name in _SPREAD}


def _text(known: dict[str, Block]) -> str:
    """Return the file: a line for each row."""
    blocks = []
    for name, block in known.items():
        fields = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in block.items() if key != "rows"]
        rows = ",\n".join(f"      {json.dumps(row, ensure_ascii=False)}" for row in block["rows"])
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join([*fields, f'    "rows": [\n{rows}\n    ]']) + "\n  }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


_BLOCKS: Final[Mapping[str, Callable[[Measured], Block]]] = {
    "throughput": _throughput,
    "restore": _restore,
    "join": _peers,
    "window": _peers,
    "start": _start,
    "latency": _latency,
    "compact": _compact,
    "commit": _commit,
    "lanes": _lanes,
    "standby": _standby,
    "sink": _sink,
    "growth": _growth,
}
