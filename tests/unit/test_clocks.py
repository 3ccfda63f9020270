"""Budgets and deadlines run on a monotonic clock; the wall clock only dates what people read (F32)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: where decisions are made; the wiring, tools and pages around them date things for people
FOLDERS = ("config", "balancer", "worker", "snapshot", "src/statehold/kafka")

#: where the wall clock is asked, and for what: nothing waits, times out or is deleted by it
WALL = {
    "config/token.py": "until when a token counts, as the brokers' clocks see it",
    "src/statehold/kafka/tools/command_producer.py": "the timestamp of a command record",
    "src/statehold/kafka/survey/cluster.py": "ages that the doctor shows",
    "snapshot/spark/export/export.py": "when an export was made",
}


def asks_the_wall(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in {("time", "time"), ("time", "time_ns"), ("datetime", "utcnow")}:
                return True
            if (node.value.id, node.attr) in {("datetime", "now"), ("datetime", "today")}:
                return True
    return False


def test_the_wall_clock_is_asked_where_it_is_listed_and_nowhere_else() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)) for path in files if asks_the_wall(path)}
    unknown = sorted(found - WALL.keys())
    assert not unknown, f"{unknown}: use the clock that is given (monotonic); or list it here, and say for what"


@pytest.mark.parametrize(
    "name",
    [
        "transaction/commit_policy",
        "transaction/rollback",
        "drain",
        "common/ownership",
        "recovery/checks",
        "fulls/restore_cost",
        "fulls/truncation",
        "loop",
        "recovery/recovery",
    ],
)
def test_a_worker_decides_by_the_clock_that_it_is_given(name: str) -> None:
    source = (ROOT / "worker" / f"{name}.py").read_text(encoding="utf-8")
    assert ".wall" not in source
    assert "import time" not in source
