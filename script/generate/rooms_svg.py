"""Draws docs/images/rooms.svg from the imports: the folders of the product, from what runs down to what all use.

An arrow says "imports". An import that follows from others is left out: where A imports B, and B imports C, no arrow
goes from A to C.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
#: what each room is for; modules directly in src/statehold are rooms, too
PURPOSES: Final = {
    "ops": "commands, ops server",
    "spark": "the state as Spark tables",
    "testing": "driver and simulation",
    "rehearsal": "tries a release",
    "shadow": "tries it in parallel",
    "rebuild": "makes the state again",
    "spread": "tries a release on Spark",
    "dev": "a broker for development",
    "service_lookup": "a service by its name in code",
    "service": "what a program starts",
    "asgi": "a service in a web application",
    "client": "asks a service",
    "watch": "follows committed changes",
    "runtime": "wires a service",
    "admin": "topics, migrations, repair",
    "worker": "one partition's life",
    "balancer": "the group",
    "disk": "tables on a local disk",
    "snapshot": "what is stored, and restored",
    "kafka": "clients of Kafka",
    "bound": "a declaration in a partition",
    "state": "a partition's state",
    "api": "what a user declares",
    "health": "watchdogs",
    "telemetry": "metrics and events",
    "ports": "protocols between rooms",
    "messages": "commands, dead letters",
    "common": "names, threads",
    "config": "settings",
    "errors": "all errors",
}
_WIDE, _HIGH, _GAP, _LEVEL, _EDGE = 168, 44, 22, 88, 20
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933;text-anchor:middle}.name{font-weight:bold}"
    ".why{font-size:11px;fill:#52606d}rect{fill:#eef3f8;stroke:#7b8794}"
    "path{fill:none;stroke:#9aa5b1}.head{fill:#9aa5b1;stroke:none}.ground{fill:#ffffff;stroke:none}"
)


def imports() -> dict[str, set[str]]:
    """Return the rooms that each room imports; imports inside of functions and of types count."""
    found: dict[str, set[str]] = {room: set() for room in PURPOSES}
    for room, path in _modules():
        for target in _targets(ast.parse(path.read_text(encoding="utf-8"))):
            found[room].add(target)
    return {room: others - {room} for room, others in found.items()}


def _modules() -> Iterator[tuple[str, Path]]:
    package = ROOT / "src" / "statehold"
    for path in sorted([*package.rglob("*.py"), *(each for link in _links() for each in (ROOT / link).rglob("*.py"))]):
        home = path.relative_to(package if path.is_relative_to(package) else ROOT)
        room = home.parts[0].removesuffix(".py")
        if room not in ("__init__", "__main__", *(_links() if path.is_relative_to(package) else ())):
            yield room, path


def _links() -> list[str]:
    """Return the folders at the root that belong to the package."""
    return [each.name for each in sorted((ROOT / "src" / "statehold").iterdir()) if each.is_symlink()]


def _targets(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if parts[0] == "statehold":
                yield from parts[1:2] or (alias.name for alias in node.names if alias.name in PURPOSES)


def direct(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows that do not follow from others."""
    below = {room: _reached(graph, room) for room in graph}
    return {
        room: {each for each in others if not any(each in below[other] for other in others - {each})}
        for room, others in graph.items()
    }


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return what a room imports, also through others."""
    found, left = set[str](), [*graph[start]]
    while left:
        if (room := left.pop()) not in found:
            found.add(room)
            left += graph[room]
    return found


def _levels(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the rooms by level, the top first: each stands above all that it imports."""
    height: dict[str, int] = {}

    def measure(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((measure(each) for each in graph[room]), default=-1)
        return height[room]

    for room in graph:
        measure(room)
    rows: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for room in PURPOSES:
        rows[-1 - height[room]].append(room)
    return rows


def document() -> str:
    """Return the drawing as SVG."""
    graph = imports()
    arrows, rows = direct(graph), _levels(graph)
    width = max(len(row) for row in rows) * (_WIDE + _GAP) + 8 * _EDGE
    place: dict[str, tuple[int, int]] = {}
    for level, row in enumerate(rows):
        left = (width - len(row) * (_WIDE + _GAP) + _GAP) // 2 + (_EDGE * 3 if level % 2 else -_EDGE * 3)
        for number, room in enumerate(row):
            place[room] = left + number * (_WIDE + _GAP), _EDGE + level * _LEVEL
    lines, boxes = [], []
    for room, (x, y) in place.items():
        for each in sorted(arrows[room]):
            to_x, to_y = place[each][0] + _WIDE // 2, place[each][1]
            from_x, from_y, bend = x + _WIDE // 2, y + _HIGH, (to_y - y - _HIGH) // 2
            lines.append(
                f'<path d="M{from_x} {from_y}C{from_x} {from_y + bend} {to_x} {to_y - bend} {to_x} {to_y - 6}"/>'
                f'<path class="head" d="M{to_x} {to_y}l-4 -8h8z"/>'
            )
        boxes.append(
            f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="6"/>'
            f'<text class="name" x="{x + _WIDE // 2}" y="{y + 19}">{room}</text>'
            f'<text class="why" x="{x + _WIDE // 2}" y="{y + 35}">{escape(PURPOSES[room])}</text>'
        )
    height = len(rows) * _LEVEL
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            f'<style>{_STYLE}</style><rect class="ground" width="{width}" height="{height}"/>',
            *lines,
            *boxes,
            "</svg>\n",
        )
    )
