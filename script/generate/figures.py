"""Fills the tables of figures in README.md and docs/ and draws the chart, from docs/figures.json.

A page marks a place with `<!-- figures: NAME -->` and `<!-- end of figures -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FIGURES: Final = ROOT / "docs" / "figures.json"
CHART: Final = ROOT / "docs" / "images" / "throughput.svg"
#: columns of a compaction
_COMPACTION: Final = (
    "Spark, merely reading",
    "one Python process",
    "`statehold compact`",
    "of reading",
    "with the start",
    "MB: program, JVM, Python workers",
)
_PLACE: Final = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def measured() -> dict[str, Any]:
    """Return the figures, as `script/bench all --record` wrote them."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return figures


def pages() -> list[Path]:
    """Return the pages that show figures."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if _PLACE.search(page.read_text(encoding="utf-8"))]


def filled(text: str) -> str:
    """Return a page with the figures of now."""
    return _PLACE.sub(lambda found: f"{found[1]}{_TABLES[found[2]]()}{found[4]}", text)


def headline() -> str:
    """One sentence with the figures of the default settings."""
    rows = {row["id"]: row["value"] for row in measured()["throughput"]["rows"]}
    own, streams, quix = rows["statehold"], rows["streams"], rows["quixstreams"]
    more, most = f"{own / streams:.1f} times", f"{own / quix:.1f} times"
    return (
        f"With default settings statehold processes {own:,} records/s: {more} as many as Kafka Streams\n"
        f"({streams:,}) and {most} as many as Quix Streams ({quix:,}). A consumer loop tuned by hand for this\n"
        f"one task reaches {rows['tuned']:,}; it writes no deltas and can neither restore nor take over.\n"
    )


def throughput() -> str:
    """Records per second of every contender."""
    block = measured()["throughput"]
    rows = ([row["name"], f"{row['value']:,}", _range(row), row["cpu"]] for row in block["rows"])
    return _table(_setting(block), ("", "records/s", "lowest to highest", "CPU s per million"), rows)


def restore() -> str:
    """Seconds from the start of a process to its first output."""
    block, fields = measured()["restore"], ("first", "restoring", "updated", "updated_restoring")
    rows = (
        [row["name"], *(f"{row[each]} s" if each in row else "not run" for each in fields)] for row in block["rows"]
    )
    heads = ("", "just written", "of it restoring", "after 10 updates of each key", "of it restoring")
    return _table(_setting(block), heads, rows)


def peers() -> str:
    """Records per second and processor time of joins and windows."""
    blocks, rows = [measured()[name] for name in ("join", "window")], []
    for row in (row for block in blocks for row in block["rows"]):
        contenders = [row[name] for name in ("statehold", "streams", "quix")]
        rows.append([f"{row['name']}: records/s", *(f"{each['value']:,} ({_range(each)})" for each in contenders)])
        rows.append(["CPU s per million records", *(each["cpu"] for each in contenders)])
    return _table(_setting(blocks[0]), ("", "statehold", "Kafka Streams", "quixstreams"), rows)


def start() -> str:
    """Seconds until a command answers."""
    block = measured()["start"]
    rows = ([row["name"], row["value"], _range(row)] for row in block["rows"])
    return _table(_setting(block), ("", "seconds", "lowest to highest"), rows)


def latency() -> str:
    """Milliseconds from sending a trade to its readable output."""
    block, rows = measured()["latency"], []
    for row in block["rows"]:
        cells = [", ".join(f"{each:.0f}" for each in row[name]) for name in ("statehold", "by_hand", "streams")]
        ratio = row["statehold"][1] / row["by_hand"][1]
        rows.append([f"{row['rate']:,}, {row['commit']:g} ms", *cells, f"{ratio:.2f}"])
    heads = ("records/s, commit interval", "statehold", "by hand", "Kafka Streams", "p99, of the loop by hand")
    return _table(_setting(block), heads, rows)


def compaction() -> str:
    """Seconds of a compaction, of merely reading, and of one process."""
    block, rows = measured()["compact"], []
    for row in block["rows"]:
        seconds = [f"{row[f'{name}_seconds']} s" for name in ("read", "python", "compact")]
        ratio = row["compact_seconds"] / row["read_seconds"]
        whole = f"{row['compact_whole']} s, {row['compact_whole'] / row['read_whole']:.2f}"
        memory = ", ".join(f"{each:,}" for each in row["memory"])
        rows.append([f"{row['millions']:g} million, {row['mb']:,} MB", *seconds, f"{ratio:.2f}", whole, memory])
    return _table(f"{block['date']}, {block['machine']}.", ("delta entries", *_COMPACTION), rows)


def commits() -> str:
    """Records per second of plain transactions, by how often they commit."""
    block, rows = measured()["commit"], []
    for row in block["rows"]:
        name = "no transactions, idempotent" if row["name"] == "plain" else row["name"]
        waits = [f"{row[each]} ms" if each in row else "" for each in ("p50", "p99")]
        rows.append([name, f"{row['value']:,}", f"{row['of_plain']:.2f}", *waits])
    heads = ("commit every", "records/s", "of no transactions", "commit, p50", "p99")
    return _table(_setting(block), heads, rows)


def partitions() -> str:
    """What the partitions of a process cost."""
    block, rows = measured()["lanes"], []
    one = block["rows"][0]["value"]
    for row in block["rows"]:
        rate = f"{row['value']:,}" + (f" ({row['value'] / one:.2f})" if row["partitions"] > 1 else "")
        costs = (f"{row['cpu']} s", row["live"], f"{row['idle']:.1%}", row["stop"], f"{row['memory']:,.0f} MB")
        rows.append([row["partitions"], rate, *costs])
    costs = ("processor time of a million records", "seconds to live", "idle, of a core", "seconds to stop", "memory")
    return _table(_setting(block), ("partitions", "records/s", *costs), rows)


def standby() -> str:
    """Seconds without answers at a takeover by a standby replica."""
    block, rows = measured()["standby"], []
    for row in block["rows"]:
        silent = (f"{value:.2f} s ({low:.2f} to {high:.2f})" for value, low, high in (row["stopped"], row["killed"]))
        rows.append([row["name"], *silent])
    heads = ("median, lowest to highest", "clean stop", "kill -9: session timeout plus")
    return _table(_setting(block), heads, rows)


def sink() -> str:
    """Rows per second into PostgreSQL."""
    block = measured()["sink"]
    own = block["rows"][0]["value"]
    rows = ([row["name"], f"{row['value']:,}", _range(row), f"{own / row['value']:.2f}"] for row in block["rows"])
    return _table(_setting(block), ("", "rows/s", "lowest to highest", "sink relative to it"), rows)


def memory() -> str:
    """Resident memory of a process, a key and a partition."""
    block, states, rows = measured()["growth"], ("written", "restored"), []
    for row in (row for row in block["rows"] if row["axis"] == "memory"):
        keys = (f"{row[f'{state}_key']:.0f} bytes" for state in states)
        spread = (f"{max(0.0, row[f'{state}_partition']):.1f} MB" for state in states)
        rows.append([row["name"], f"{row['written']:.0f} MB", *keys, *spread])
    costs = ("a key that was written", "a key after a restore", "a partition", "a partition after a restore")
    return _table(_setting(block), ("", "process", *costs), rows)


def growth(axis: str) -> str:
    """Rates by the number of keys or of processes."""
    block, rows = measured()["growth"], []
    for row in (row for row in block["rows"] if row["axis"] == axis):
        cells = (cell for peer in ("statehold", "streams") for cell in (f"{row[peer]:,}", row[f"{peer}_cpu"]))
        rows.append([f"{row['step']:,}", *cells, f"{row['statehold'] / row['streams']:.2f}"])
    peers = ("statehold: records/s", "CPU s per million", "Kafka Streams: records/s", "CPU s per million")
    return _table(_setting(block), (axis, *peers, "ratio"), rows)


def against() -> str:
    """Ratios of statehold to other programs."""
    found = {row["id"]: row for row in measured()["throughput"]["rows"]}
    own = found["statehold"]
    pairs = [(f"statehold / {found[name]['name']}", own, found[name]) for name in ("streams", "quixstreams", "tuned")]
    pairs.append(("`on_record` / `on_batch`", own, found["statehold_batch"]))
    for row in (row for name in ("join", "window") for row in measured()[name]["rows"]):
        for peer, title in (("streams", "Kafka Streams"), ("quix", "quixstreams")):
            pairs.append((f"{row['name']}, statehold / {title}", row["statehold"], row[peer]))
    rows = ([name, *(f"{one[each] / other[each]:.2f}" for each in ("value", "cpu"))] for name, one, other in pairs)
    return _table("", ("default settings, `on_record`", "records/s, ratio", "processor time, ratio"), rows)


def _setting(block: dict[str, Any]) -> str:
    rounds = f"medians of {block['rounds']} rounds in turns" if block["rounds"] > 1 else "one round"
    return f"{block['date']}, {block['machine']}; {rounds}."


def _range(row: dict[str, Any]) -> str:
    return f"{row['lowest']:,} to {row['highest']:,}"


def _table(setting: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table, below the sentence about its setting if there is one."""
    lines = [setting, ""] if setting else []
    lines += [_line(heads), "|" + "---|" * len(heads), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def chart() -> str:
    """Draw the charted figures as bars."""
    figures = measured()
    rates = [row for row in figures["throughput"]["rows"] if "chart" in row]
    left = sorted(((row["chart"], row["value"], f"{row['value']:,}") for row in rates), key=lambda bar: -bar[1])
    right = [(row["chart"], row["first"], f"{row['first']} s") for row in figures["restore"]["rows"]]
    parts = _bars(0, "records per second, more is better", left)
    parts += _bars(430, "seconds to the first output, less is better", right)
    style = (
        "text{font:14px system-ui,sans-serif;fill:#1f2a35}.head{font-weight:600}.bar{fill:#9aa7b4}.own{fill:#3f7f4f}"
        ".paper{fill:#fbfaf7;stroke:#d8d4c8}"
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 214" role="img">'
    title = "<title>Throughput and time to the first output after a kill, by framework</title>"
    paper = '<rect class="paper" x="0.5" y="0.5" width="859" height="213" rx="10"/>'
    return "\n".join([head, title, f"<style>{style}</style>", paper, *parts, "</svg>\n"])


def _bars(x: int, head: str, bars: list[tuple[str, float, str]]) -> list[str]:
    most = max(value for _, value, _ in bars)
    parts = [f'<text class="head" x="{x + 20}" y="34">{head}</text>']
    for number, (name, value, label) in enumerate(bars):
        y, width = 54 + 38 * number, round(180 * value / most, 1)
        kind = "own" if name == "statehold" else "bar"
        parts += [
            f'<text x="{x + 20}" y="{y + 17}">{escape(name.partition(" (")[0])}</text>',
            f'<rect class="{kind}" x="{x + 130}" y="{y}" width="{width}" height="24" rx="3"/>',
            f'<text x="{x + 138 + width}" y="{y + 17}">{label}</text>',
        ]
    return parts


_TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "headline": headline,
    "throughput": throughput,
    "restore": restore,
    "peers": peers,
    "against": against,
    "start": start,
    "latency": latency,
    "compaction": compaction,
    "commits": commits,
    "partitions": partitions,
    "standby": standby,
    "sink": sink,
    "memory": memory,
    "keys": partial(growth, "keys"),
    "processes": partial(growth, "processes"),
}


def write() -> None:
    """Fill the pages and draw the chart."""
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    CHART.write_text(chart(), encoding="utf-8")
