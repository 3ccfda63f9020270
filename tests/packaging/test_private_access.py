"""No module of the product reads or writes private members of another module, but for what is named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.sources import modules

#: NamedTuple's documented methods, which begin with an underscore so that they cannot be field names
NAMED_TUPLE = {"_replace", "_asdict"}
#: owners whose underscored members are public by their documentation
DOCUMENTED = {
    "KafkaError": "librdkafka's own error codes",
    "_E": "an alias of KafkaError",
    "sys": "sys._current_frames",
    "os": "os._exit",
}
#: module and member, and why it has no public way
ALLOWED = {
    ("statehold.health.freeze_guard", "_exit"): "the C library's function, which has no other name",
    ("statehold.ops.process.hard_exit", "_run_exitfuncs"): "os._exit does not run atexit's functions",
    ("statehold.worker.handler.engine", "_service_key"): "users subclass Handler, so its names stay private",
}


def defined_in(tree: ast.Module) -> set[str]:
    """Every name that a module defines: functions, classes, variables, and attributes that it sets on self or cls."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value):
            found.add(node.attr)
    return found


def own(owner: ast.expr) -> bool:
    """Whether `owner` is the object itself: self, cls or super()."""
    if isinstance(owner, ast.Call):
        owner = owner.func
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_members(source: str) -> Iterator[tuple[str, int]]:
    """Yield each private member of another module that the source names, with its line."""
    tree = ast.parse(source)
    mine = defined_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from ((alias.name, node.lineno) for alias in node.names if private(alias.name))
        elif isinstance(node, ast.Attribute) and private(node.attr) and not own(node.value):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr not in mine | NAMED_TUPLE and owner not in DOCUMENTED:
                yield node.attr, node.lineno


def test_no_module_reaches_into_another(root: Path) -> None:
    found = {
        (module, member): line
        for module, path in modules(root)
        for member, line in foreign_members(path.read_text(encoding="utf-8"))
    }
    unknown = [
        f"{module}:{line} names {member}" for (module, member), line in found.items() if (module, member) not in ALLOWED
    ]
    assert not unknown, f"{unknown}: give it a public name, or list it here with the reason"
    assert set(found) == set(ALLOWED), "an exception that is not needed any more"


@pytest.mark.parametrize(
    "source",
    [
        "def f(other): return other._x",
        "from statehold.state.partition_table import _TOMBED",
        "class A:\n    def f(self, other): other._x = 1",
        "def f(other): return other.inner._x",
    ],
)
def test_private_access_is_seen(source: str) -> None:
    assert list(foreign_members(source))


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self): return self._x",
        "class A:\n    def f(self): self._x = 1\ndef g(a): return a._x",
        "class A(B):\n    def f(self): return super()._x()",
        "def f(row): return row._replace(a=1)",
    ],
)
def test_private_access_within_a_module_is_fine(source: str) -> None:
    assert not list(foreign_members(source))
