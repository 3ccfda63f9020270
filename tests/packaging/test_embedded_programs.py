"""Programs that tests keep as text and run in a process of their own import names that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

IMPORT = re.compile(r"^from (statehold[\w.]*) import ([\w, ]+)$", re.M)
PACKAGES = ("tests", "benchmarks", "examples", "script")


def embedded_imports(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file, module and name of each import line inside a string."""
    for path in (path for folder in PACKAGES for path in sorted((root / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for module, names in IMPORT.findall(node.value):
                    for name in names.split(","):
                        yield str(path.relative_to(root)), module, name.split(" as ")[0].strip()


def exists(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_they_import_what_exists(root: Path) -> None:
    found = sorted(set(embedded_imports(root)))
    assert len(found) > 10
    missing = [f"{path}: from {module} import {name}" for path, module, name in found if not exists(module, name)]
    assert missing == []


@pytest.mark.parametrize(("module", "name"), [("statehold.api.handler", "Handled"), ("statehold.no_such", "Handler")])
def test_a_missing_name_is_seen(module: str, name: str) -> None:
    assert not exists(module, name)
