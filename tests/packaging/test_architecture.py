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
    "statehold.errors": 0,
    "statehold.model": 0,
    "statehold.names": 0,
    "statehold.table": 0,
    "statehold.sorted_table": 0,
    "statehold.traced_table": 0,
    "statehold.clock_table": 0,
    "statehold.due_table": 0,
    "statehold.expiring": 0,
    "statehold.timers": 0,
    "statehold.declarations": 0,
    "statehold.internal": 0,
    "statehold.output": 0,
    "statehold.record": 0,
    "statehold.reference": 0,
    "statehold.handler": 0,
    "statehold.serde": 0,
    "statehold.letters": 0,
    "statehold.retried": 0,
    "statehold.failures": 0,
    "statehold.version": 0,
    "statehold.versions": 0,
    "statehold.partitioner": 0,
    "statehold.observe": 0,
    "statehold.memory": 0,
    "statehold.metrics": 0,
    "statehold.meters": 0,
    "statehold.gauges": 0,
    "statehold.recent": 0,
    "statehold.ports": 0,
    "statehold.beside": 0,
    "statehold.watch": 0,
    "statehold.contact": 0,
    "statehold.command": 0,
    "statehold.pinned": 0,
    "statehold.sink": 0,
    "statehold.config": 1,
    "statehold.rights": 2,
    "statehold.snapshot": 2,
    "statehold.worker": 3,
    "statehold.balancer": 3,
    "statehold.kafka": 3,
    "statehold.dev": 4,  # asks the adapter whether a broker serves
    "statehold.pytest_plugin": WIRING,
    "statehold": WIRING,  # the wiring: service, testing, topics, and the root that names them all
    "statehold.ops": 6,
}
INDEPENDENT = ("statehold.worker", "statehold.balancer", "statehold.kafka")  # one layer, not each other
ONLY_IN = {
    "confluent_kafka": ("statehold.kafka", "statehold.schema"),
    "pyspark": ("statehold.snapshot.spark",),
    "pyarrow": ("statehold.snapshot.spark",),
    "typer": ("statehold.ops.cli",),
    "rich": ("statehold.ops.cli",),
    "pydantic": ("statehold.config",),
    "pydantic_settings": ("statehold.config",),
    "prometheus_client": ("statehold.meters", "statehold.ops"),
    "pytest": ("statehold.pytest_plugin",),
    "obstore": ("statehold.snapshot.store",),
    "psycopg": ("statehold.worker",),
}
FOLDERS = {"src/statehold": "statehold"} | {
    name: f"statehold.{name}" for name in ("config", "balancer", "worker", "snapshot", "ops")
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
                if (base, alias.name) == ("statehold", "__version__"):
                    continue  # the one thing that the root itself defines
                # `from statehold import config` names a module, not a thing in statehold
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
    if not within(found.target, "statehold"):
        return None
    if found.target == "statehold" and layer_of(found.importer) < WIRING:
        return "import from the defining module, not from statehold"
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
        ("statehold.worker.partition", "statehold.balancer.flow"),
        ("statehold.balancer.manager", "statehold.worker"),
        ("statehold.snapshot.codec", "statehold.worker.partition"),
        ("statehold.worker.committer", "statehold.kafka.producer"),
        ("statehold.config.settings", "statehold.snapshot"),
        ("statehold.errors", "statehold.config"),
        ("statehold.service", "statehold.ops.cli"),
        ("statehold.worker.partition", "confluent_kafka"),
        ("statehold.service", "confluent_kafka.admin"),
        ("statehold.snapshot.codec", "pyspark.sql"),
        ("statehold.service", "typer"),
        ("statehold.worker.partition", "statehold"),
    ],
)
def test_a_wrong_import_is_seen(importer: str, target: str) -> None:
    assert complaint(Import(importer, target, 1)) is not None


def test_every_package_has_an_init(root: Path) -> None:
    assert all((path.parent / "__init__.py").exists() for _, path in modules(root))


def test_import_statehold_needs_no_extra(python: str) -> None:
    lean = (
        "import sys, statehold\n"
        f"heavy = {set(ONLY_IN) - {'prometheus_client'}}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([python, "-c", lean], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
