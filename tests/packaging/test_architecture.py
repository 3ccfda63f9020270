"""Imports point down: the layers of docs/design.md, read from the source by its syntax tree."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

WIRING = 5
# Layer of each module, by its longest matching prefix. A module may import its own layer and lower ones.
LAYERS = {
    "holdfast.errors": 0,
    "holdfast.model": 0,
    "holdfast.names": 0,
    "holdfast.table": 0,
    "holdfast.sorted_table": 0,
    "holdfast.traced_table": 0,
    "holdfast.clock_table": 0,
    "holdfast.due_table": 0,
    "holdfast.expiring": 0,
    "holdfast.timers": 0,
    "holdfast.declarations": 0,
    "holdfast.internal": 0,
    "holdfast.output": 0,
    "holdfast.record": 0,
    "holdfast.reference": 0,
    "holdfast.handler": 0,
    "holdfast.serde": 0,
    "holdfast.letters": 0,
    "holdfast.retried": 0,
    "holdfast.failures": 0,
    "holdfast.version": 0,
    "holdfast.versions": 0,
    "holdfast.partitioner": 0,
    "holdfast.observe": 0,
    "holdfast.memory": 0,
    "holdfast.metrics": 0,
    "holdfast.meters": 0,
    "holdfast.gauges": 0,
    "holdfast.recent": 0,
    "holdfast.ports": 0,
    "holdfast.beside": 0,
    "holdfast.watch": 0,
    "holdfast.contact": 0,
    "holdfast.command": 0,
    "holdfast.pinned": 0,
    "holdfast.sink": 0,
    "holdfast.config": 1,
    "holdfast.rights": 2,
    "holdfast.snapshot": 2,
    "holdfast.worker": 3,
    "holdfast.balancer": 3,
    "holdfast.kafka": 3,
    "holdfast.dev": 4,  # asks the adapter whether a broker serves
    "holdfast.pytest_plugin": WIRING,
    "holdfast": WIRING,  # the wiring: service, testing, topics, and the root that names them all
    "holdfast.ops": 6,
}
INDEPENDENT = ("holdfast.worker", "holdfast.balancer", "holdfast.kafka")  # one layer, not each other
ONLY_IN = {
    "confluent_kafka": ("holdfast.kafka", "holdfast.schema"),
    "pyspark": ("holdfast.snapshot.spark",),
    "pyarrow": ("holdfast.snapshot.spark",),
    "typer": ("holdfast.ops.cli",),
    "rich": ("holdfast.ops.cli",),
    "pydantic": ("holdfast.config",),
    "pydantic_settings": ("holdfast.config",),
    "prometheus_client": ("holdfast.meters", "holdfast.ops"),
    "pytest": ("holdfast.pytest_plugin",),
    "obstore": ("holdfast.snapshot.store",),
    "psycopg": ("holdfast.worker",),
}
FOLDERS = {"core": "holdfast"} | {
    name: f"holdfast.{name}" for name in ("config", "balancer", "worker", "snapshot", "ops")
}


@dataclass(frozen=True)
class Import:
    """Module `importer` says, at `line`, that it needs `target`."""

    importer: str
    target: str
    line: int


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield every module of the packages by its installed name."""
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), path


def imports_of(module: str, path: Path, known: frozenset[str]) -> Iterator[Import]:
    """Yield what a module imports anywhere, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import from the defining module by its full name"
            base = node.module or ""
            for alias in node.names:
                if (base, alias.name) == ("holdfast", "__version__"):
                    continue  # the one thing that the root itself defines
                # `from holdfast import config` names a module, not a thing in holdfast
                deeper = f"{base}.{alias.name}"
                yield Import(module, deeper if deeper in known else base, node.lineno)


def layer_of(module: str) -> int:
    """The layer of the longest prefix."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(LAYERS[prefix] for prefix in prefixes if prefix in LAYERS)


def within(module: str, package: str) -> bool:
    """Whether `module` is `package` or lies in it."""
    return module == package or module.startswith(f"{package}.")


def complaint(found: Import) -> str | None:
    """Say what is wrong with an import, None when it is allowed."""
    owners = ONLY_IN.get(found.target.split(".")[0])
    if owners and not any(within(found.importer, owner) for owner in owners):
        return f"only {', '.join(owners)} may import it"
    if not within(found.target, "holdfast"):
        return None
    if found.target == "holdfast" and layer_of(found.importer) < WIRING:
        return "import from the defining module, not from holdfast"
    if layer_of(found.target) > layer_of(found.importer):
        return f"layer {layer_of(found.importer)} may not import layer {layer_of(found.target)}"
    sides = [[side for side in INDEPENDENT if within(name, side)] for name in (found.importer, found.target)]
    if sides[0] and sides[1] and sides[0] != sides[1]:
        return f"{sides[0][0]} and {sides[1][0]} never import each other"
    return None


def everything(root: Path) -> list[Import]:
    """All imports of all modules."""
    found = list(modules(root))
    known = frozenset(name for name, _ in found)
    return [each for name, path in found for each in imports_of(name, path, known)]


def test_imports_point_down(root: Path) -> None:
    wrong = [f"{e.importer}:{e.line} imports {e.target}: {why}" for e in everything(root) if (why := complaint(e))]
    assert wrong == []


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("holdfast.worker.partition", "holdfast.balancer.flow"),
        ("holdfast.balancer.manager", "holdfast.worker"),
        ("holdfast.snapshot.codec", "holdfast.worker.partition"),
        ("holdfast.worker.committer", "holdfast.kafka.producer"),
        ("holdfast.config.settings", "holdfast.snapshot"),
        ("holdfast.errors", "holdfast.config"),
        ("holdfast.service", "holdfast.ops.cli"),
        ("holdfast.worker.partition", "confluent_kafka"),
        ("holdfast.service", "confluent_kafka.admin"),
        ("holdfast.snapshot.codec", "pyspark.sql"),
        ("holdfast.service", "typer"),
        ("holdfast.worker.partition", "holdfast"),
    ],
)
def test_a_wrong_import_is_seen(importer: str, target: str) -> None:
    assert complaint(Import(importer, target, 1)) is not None


def test_every_package_is_installed(root: Path) -> None:
    """A package that pyproject.toml does not list is missing from the wheel, without a word."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    listed = {name for name in project["tool"]["setuptools"]["packages"] if not name.startswith("holdfast.deploy")}
    there = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in modules(root)}
    assert listed == there
    assert all((path.parent / "__init__.py").exists() for _, path in modules(root))


def test_import_holdfast_needs_no_extra(python: str) -> None:
    lean = (
        "import sys, holdfast\n"
        f"heavy = {set(ONLY_IN) - {'prometheus_client'}}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([python, "-c", lean], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
