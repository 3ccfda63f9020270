"""Every test named in docs/explanation/reliability.md or the fault matrix exists, and every guarantee names a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.chaos.matrix import MATRIX

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
PAGE = (ROOT / "docs" / "explanation" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))
IN_MATRIX = sorted({name for scenario in MATRIX.values() for name in scenario.tests})


@pytest.mark.parametrize("name", sorted({*NAMED, *IN_MATRIX}))
def test_a_test_that_is_named_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    expected = function in found if function else found or not Path(path).name.startswith("test_")
    assert expected, f"{name}: {path} has {sorted(found)}"


def test_every_guarantee_names_a_test() -> None:
    guarantees = re.findall(r"^\| (G\d+) \|", GUARANTEES, re.MULTILINE)
    limits = re.findall(r"^\| (N\d+) \|", GUARANTEES, re.MULTILINE)
    evidence = dict(re.findall(r"^\| ([GN]\d+) \| (.*) \|$", PAGE, re.MULTILINE))
    assert len(guarantees) > 10
    assert sorted(guarantees) == sorted(each for each in evidence if each.startswith("G"))
    assert set(evidence) <= {*guarantees, *limits}
    assert all("`tests/" in tests for tests in evidence.values())
