"""Every test that docs/guarantees.md and the fault matrix name is there, and every promise names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.chaos.matrix import MATRIX

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
HOLDS = PAGE[PAGE.index("## What holds") : PAGE.index("## What does not hold")]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))
IN_MATRIX = sorted({name for scenario in MATRIX.values() for name in scenario.tests})


@pytest.mark.parametrize("name", sorted({*NAMED, *IN_MATRIX}))
def test_a_test_that_is_named_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert function in found if function else found, f"{name}: {path} has {sorted(found)}"


def test_every_promise_names_a_test() -> None:
    rows = [line for line in HOLDS.splitlines() if line.startswith("| ") and not line.startswith("| under")]
    assert len(rows) > 10
    assert all("`tests/" in row for row in rows)
