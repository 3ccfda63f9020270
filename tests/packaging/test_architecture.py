"""Imports point down, by one table; folders have a readable size; class names say one thing each."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.sources import modules

#: Each folder, and each module directly in src/statehold, with what it may import besides itself. The table is exact:
#: what is not used must not be listed. Python sees the order: a folder may only name folders above it.
ALLOWED: dict[str, str] = {
    "errors": "",
    "config.common": "errors",
    "config.librdkafka": "config.common",
    "config.sections": "config.common config.librdkafka",
    "config": "config.common config.librdkafka config.sections",
    "common": "errors config.common config",
    "api.values": "errors common",
    "api": "errors common api.values",
    "state": "errors common api.values api",
    "messages": "errors common api.values api",
    "state.kinds": "errors api.values api state messages",
    "state.types": "errors common api.values",
    "bound": "errors common api.values api state state.kinds state.types messages",
    "ports": "common api messages",
    "telemetry": "common",
    "health": "errors common ports telemetry",
    "kafka.common": "errors config common ports telemetry",
    "kafka.admin": "errors config common ports telemetry health kafka.common",
    "snapshot.format": "errors common api state state.types messages",
    "kafka.clients": (
        "errors config.common config common messages bound ports telemetry health kafka.common kafka.admin"
    ),
    "kafka.feeds": "errors config common messages ports telemetry kafka.common kafka.admin",
    "snapshot.store": "errors config common ports snapshot.format",
    "kafka.tools": "errors config common api telemetry kafka.common kafka.admin kafka.clients",
    "snapshot": "errors common api.values api state state.types messages ports snapshot.format snapshot.store",
    "snapshot.restore": "errors common api state messages ports snapshot.format snapshot.store snapshot",
    "disk": "errors config.sections api.values state state.kinds ports snapshot.format snapshot.restore",
    "disk.kinds": "config api state state.kinds bound snapshot.format disk",
    "snapshot.spark.fold": "errors common state ports snapshot.format snapshot.store snapshot snapshot.restore",
    "snapshot.spark.io": (
        "errors state ports snapshot.format snapshot.store snapshot snapshot.restore snapshot.spark.fold"
    ),
    "watch": "errors common api.values ports snapshot.format snapshot.restore",
    "client": (
        "errors config common api.values api messages ports telemetry kafka.common kafka.admin kafka.clients "
        "kafka.feeds kafka.tools watch"
    ),
    "admin": (
        "errors config common api messages ports telemetry kafka.common kafka.admin snapshot.format kafka.clients "
        "kafka.feeds snapshot.store kafka.tools snapshot snapshot.restore snapshot.spark.fold snapshot.spark.io"
    ),
    "balancer": "errors config common api ports telemetry health",
    "worker.common": (
        "errors config.sections config common api.values api messages bound ports telemetry health snapshot.format "
        "snapshot.store disk disk.kinds snapshot.restore"
    ),
    "worker.replicas": (
        "errors common api state bound ports telemetry snapshot.format snapshot.restore disk disk.kinds worker.common"
    ),
    "worker.handler": ("errors config common api state state.kinds messages bound snapshot.format worker.common"),
    "worker.failures": "errors common api messages bound ports telemetry snapshot.format worker.common worker.handler",
    "worker.inputs": "errors common api ports snapshot.format snapshot.restore worker.common",
    "worker.transaction": (
        "errors config.sections common api state messages bound ports telemetry snapshot.format worker.common "
        "worker.handler worker.failures worker.inputs"
    ),
    "worker.calls": (
        "errors common api.values api messages telemetry health snapshot.format worker.common worker.handler "
        "worker.transaction"
    ),
    "worker.participants": (
        "errors common api messages bound ports telemetry health snapshot.format worker.common worker.handler "
        "worker.failures worker.transaction worker.calls"
    ),
    "worker.sinks": (
        "errors config.sections common api state messages bound ports telemetry snapshot.format worker.common "
        "worker.handler worker.failures worker.inputs worker.transaction"
    ),
    "worker.full_snapshots": (
        "errors config.sections common state ports telemetry snapshot.format snapshot.store snapshot "
        "snapshot.restore disk worker.common worker.transaction"
    ),
    "worker.recovery": (
        "errors api state messages bound ports telemetry snapshot.format snapshot.restore disk worker.common "
        "worker.replicas worker.handler worker.failures worker.inputs"
    ),
    "worker": (
        "errors api state bound ports telemetry health snapshot.format disk worker.common worker.replicas "
        "worker.handler worker.failures worker.inputs worker.transaction worker.calls "
        "worker.participants worker.sinks worker.full_snapshots worker.recovery"
    ),
    "runtime": (
        "errors config common api state bound ports telemetry health kafka.admin snapshot.format kafka.clients "
        "kafka.feeds snapshot.store snapshot.restore disk disk.kinds watch client admin balancer worker.common "
        "worker.replicas worker.sinks worker.full_snapshots worker"
    ),
    "service": (
        "errors config common api bound ports telemetry kafka.common kafka.admin kafka.clients snapshot client admin "
        "balancer runtime"
    ),
    "asgi": "errors watch client service",
    "service_lookup": "errors service",
    "__init__": "errors common api.values api health watch client service",
    "snapshot.inspect": (
        "errors common api.values api state bound messages ports snapshot.format snapshot snapshot.restore"
    ),
    "snapshot.spark.export": (
        "errors common api.values api state bound ports telemetry snapshot.format snapshot snapshot.restore "
        "snapshot.spark.fold snapshot.spark.io snapshot.inspect"
    ),
    "admin.state": (
        "errors config common api state state.kinds state.types messages bound ports telemetry kafka.admin "
        "snapshot.format kafka.clients snapshot.store kafka.tools snapshot snapshot.restore snapshot.spark.fold "
        "snapshot.spark.io admin worker.handler snapshot.inspect snapshot.spark.export"
    ),
    "admin.inputs": (
        "errors config common api state state.kinds messages bound kafka.admin snapshot.format kafka.tools snapshot "
        "admin admin.state"
    ),
    "snapshot.backup": "errors common api ports snapshot.format snapshot.store",
    "admin.backup": (
        "errors config common api state bound ports kafka.admin snapshot.format kafka.clients snapshot.store "
        "kafka.tools snapshot snapshot.restore admin snapshot.inspect admin.state snapshot.backup"
    ),
    "admin.repair": (
        "errors config common api state state.kinds messages bound ports kafka.admin snapshot.format kafka.clients "
        "kafka.tools snapshot admin worker.common worker.handler worker.failures worker.inputs worker.recovery "
        "snapshot.inspect admin.state"
    ),
    "kafka": "",
    "kafka.survey": "errors config common ports kafka.common kafka.admin",
    "ops.explain": "",
    "ops.remote": "errors config ports",
    "ops.generate": "errors common api.values bound service",
    "admin.inspection": (
        "errors config common api state messages bound ports health kafka.admin snapshot.format kafka.clients "
        "snapshot.store snapshot snapshot.restore disk disk.kinds admin worker.handler worker.failures "
        "worker.inputs snapshot.inspect"
    ),
    "rehearsal": (
        "errors config common api.values api state messages bound ports health snapshot.format kafka.clients "
        "snapshot snapshot.restore worker.handler worker.failures worker.inputs snapshot.inspect snapshot.backup "
        "admin.inspection"
    ),
    "shadow": (
        "errors config api messages health ports snapshot.format snapshot.inspect snapshot.restore worker.failures "
        "worker.handler worker.inputs admin.inspection rehearsal"
    ),
    "rebuild": (
        "errors config common api state state.kinds state.types messages ports kafka.admin snapshot.format kafka.tools "
        "snapshot snapshot.restore admin worker.handler worker.failures snapshot.inspect admin.state rehearsal shadow"
    ),
    "spread": (
        "errors config common api state snapshot.format snapshot snapshot.spark.io service_lookup admin.state "
        "admin.inspection rehearsal shadow rebuild"
    ),
    "spark": (
        "errors config common api.values api state messages bound ports snapshot.format snapshot.restore "
        "snapshot.spark.fold snapshot.spark.io admin service service_lookup snapshot.inspect snapshot.spark.export "
        "admin.state snapshot.backup admin.inspection"
    ),
    "snapshot.spark": "",
    "testing.memory": (
        "errors common api.values api messages bound ports snapshot.format snapshot snapshot.restore disk "
        "worker.common worker.calls admin.state"
    ),
    "testing.kafka": "errors api ports testing.memory",
    "testing.kafka.clients": "errors config common api messages bound ports testing.memory testing.kafka",
    "testing.simulation": (
        "errors config common api.values api state messages bound ports telemetry health snapshot.format "
        "snapshot.store snapshot snapshot.restore disk disk.kinds balancer worker.common worker.replicas worker.calls "
        "worker.participants worker.sinks worker testing.memory testing.kafka testing.kafka.clients"
    ),
    "dev": "errors kafka.common testing.simulation",
    "ops.reports": (
        "errors config.common config.librdkafka config common bound ports telemetry kafka.admin snapshot.format "
        "kafka.clients kafka.tools snapshot.restore admin worker.sinks service kafka.survey ops.remote dev"
    ),
    "ops.doctor": (
        "errors config.common config common api bound disk ports health kafka.admin snapshot.format kafka.clients "
        "snapshot.restore admin worker.sinks snapshot.inspect kafka.survey ops.remote ops.reports"
    ),
    "ops.http.console": (
        "errors config api state state.kinds admin worker.replicas service ops.explain ops.remote ops.doctor"
    ),
    "ops.http": (
        "errors config.sections common state bound ports telemetry kafka.admin snapshot.format disk watch client "
        "worker.replicas service __init__ ops.remote ops.http.console"
    ),
    "ops": "ops.http",
    "ops.process": "errors config.sections common telemetry service shadow ops.remote ops.doctor ops.http",
    "ops.supervisor": ("errors config common health telemetry client service __init__ ops.remote ops.http ops.process"),
    "ops.cli.common": (
        "errors config.common config common bound snapshot.spark.io service service_lookup "
        "snapshot.inspect dev ops.reports ops.process"
    ),
    "ops.cli.inspect": (
        "errors config.common config common api.values api messages bound ports kafka.admin kafka.clients admin "
        "service __init__ snapshot.inspect kafka.survey ops.explain ops.remote ops.generate admin.inspection "
        "ops.reports ops.doctor ops.process ops.cli.common"
    ),
    "ops.cli.service": (
        "errors config common api state.kinds messages bound telemetry health admin service ops.remote ops.generate "
        "dev admin.inspection ops.http ops.process ops.supervisor ops.cli.common"
    ),
    "ops.cli.release": (
        "errors config.common config common admin service admin.inspection rehearsal shadow spread ops.http "
        "ops.process ops.cli.common"
    ),
    "ops.cli.snapshots": "errors common snapshot.inspect admin.inspection ops.cli.common",
    "ops.cli.state": (
        "errors config common messages bound snapshot snapshot.spark.io admin service "
        "snapshot.spark.export "
        "admin.state admin.backup admin.repair admin.inspection admin.inputs ops.reports ops.process ops.cli.common "
        "ops.cli.service ops.cli.release ops.cli.snapshots rehearsal rebuild spread"
    ),
    "ops.cli.topics": "errors config common api messages bound admin ops.remote ops.reports ops.cli.common",
    "ops.cli": "errors common ports ops.reports ops.process telemetry ops.cli.common",
    "__main__": "ops.cli",
    "testing": (
        "errors config.sections config common api.values api state state.kinds messages bound ports telemetry "
        "snapshot.format snapshot.store snapshot snapshot.restore disk.kinds worker.common worker.replicas "
        "worker.handler worker.failures worker.inputs worker.calls worker.sinks worker.recovery worker runtime "
        "snapshot.inspect snapshot.backup worker.full_snapshots admin.state testing.memory testing.simulation"
    ),
}
#: cycles between modules, and why each is there
CYCLES: dict[frozenset[str], str] = {}
#: cycles between folders, and why each is there
FOLDER_CYCLES: dict[frozenset[str], str] = {}
#: who may import which library
ONLY_IN = {
    "confluent_kafka": ("kafka", "api.values.schema"),
    "pyspark": ("snapshot.spark", "spark"),
    "pyarrow": ("snapshot.spark", "spark"),
    "typer": ("ops.cli",),
    "rich": ("ops.cli",),
    "prometheus_client": ("telemetry.registry", "ops"),
    "pytest": ("dev.pytest_plugin",),
    "lmdb": ("disk",),
    "obstore": ("snapshot.store",),
    "psycopg": ("worker",),
}
#: files in a folder, without __init__.py; folders that only hold folders have fewer
SIZES = range(3, 13)
#: folders of another size, and why
OTHER_SIZES: dict[str, str] = {}
#: class names that two modules have, and why
TWICE: dict[str, str] = {
    "DeadLetters": "to be renamed",
    "OutputRecord": "to be renamed",
    "Session": "windows of a handler, and a database's session that only sinks see",
    "SideInputs": "to be renamed",
}


@dataclass(frozen=True)
class Import:
    """Module `importer` says, at `line`, that it needs `target`; both without the leading `statehold.`."""

    importer: str
    target: str
    line: int


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
                # `from statehold import config` names a module, not a thing in statehold
                deeper = f"{base}.{alias.name}"
                yield Import(module, deeper if deeper in known else base, node.lineno)


def everything(root: Path) -> list[Import]:
    """All imports of all modules."""
    found = list(modules(root))
    known = frozenset(name for name, _ in found)
    return [each for name, path in found for each in imports_of(name, path, known)]


def folder_of(module: str, packages: frozenset[str]) -> str:
    """The row of the table that a module belongs to."""
    inner = module.removeprefix("statehold").removeprefix(".")
    if module in packages:
        return inner or "__init__"
    return inner.rpartition(".")[0] or inner


def packages_of(root: Path) -> frozenset[str]:
    return frozenset(name for name, path in modules(root) if path.name == "__init__.py")


def within(module: str, package: str) -> bool:
    """Whether `module` is `package` or lies in it."""
    return module == package or module.startswith(f"{package}.")


def complaint(found: Import, packages: frozenset[str]) -> str | None:
    """Say what is wrong with an import, None when it is allowed."""
    inner = found.importer.removeprefix("statehold.")
    owners = ONLY_IN.get(found.target.split(".")[0])
    if owners and not any(within(inner, owner) for owner in owners):
        return f"only {', '.join(owners)} may import it"
    if not within(found.target, "statehold"):
        return None
    importer, target = folder_of(found.importer, packages), folder_of(found.target, packages)
    if importer == target or target in ALLOWED[importer].split():
        return None
    return f"{importer} may not import {target}"


def test_imports_go_where_the_table_allows(root: Path) -> None:
    packages = packages_of(root)
    wrong = [
        f"{e.importer}:{e.line} imports {e.target}: {why}" for e in everything(root) if (why := complaint(e, packages))
    ]
    assert wrong == []


def test_the_table_knows_every_folder_and_allows_nothing_that_is_not_used(root: Path) -> None:
    packages = packages_of(root)
    used: dict[str, set[str]] = {folder_of(name, packages): set() for name, _ in modules(root)}
    for each in everything(root):
        if within(each.target, "statehold"):
            used[folder_of(each.importer, packages)].add(folder_of(each.target, packages))
    exact = {folder: others - {folder} for folder, others in used.items()}
    assert {folder: set(others.split()) for folder, others in ALLOWED.items()} == exact


def test_the_table_points_down_but_for_what_is_named() -> None:
    assert set(cycles({folder: set(others.split()) for folder, others in ALLOWED.items()})) == set(FOLDER_CYCLES)


def test_the_rooms_point_down() -> None:
    """A room is the first part of a folder's name: also `admin` and `admin.state` count as one."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for folder, others in ALLOWED.items():
        rooms[room_of(folder)] |= {room_of(each) for each in others.split()} - {room_of(folder)}
    assert cycles(rooms) == []


def room_of(folder: str) -> str:
    return folder.partition(".")[0]


def test_no_module_is_in_a_cycle_but_those_that_are_named(root: Path) -> None:
    graph: dict[str, set[str]] = {name: set() for name, _ in modules(root)}
    for each in everything(root):
        if within(each.target, "statehold") and each.target != each.importer:
            graph[each.importer].add(each.target)
    assert set(cycles(graph)) == set(CYCLES)


def cycles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """The sets of nodes that reach each other, of two nodes and more."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        left = [start]
        while left:
            for found in graph.get(left.pop(), set()) - seen:
                seen.add(found)
                left.append(found)
        reach[start] = seen
    groups = {frozenset(b for b in reach[a] if a in reach.get(b, set())) for a in graph}
    return [group for group in groups if len(group) > 1]


def test_folders_have_a_readable_size(root: Path) -> None:
    sizes = Counter(path.parent.relative_to(root) for _, path in modules(root) if path.name != "__init__.py")
    odd = {str(folder) for folder, count in sizes.items() if count not in SIZES}
    assert odd == set(OTHER_SIZES)


def test_class_names_are_unique(root: Path) -> None:
    homes = defaultdict(list)
    for name, path in modules(root):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {name for name, where in homes.items() if len(where) > 1} == set(TWICE)


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("statehold.worker.partition", "statehold.balancer.flow_control"),
        ("statehold.balancer.manager", "statehold.worker.partition"),
        ("statehold.snapshot.format.frame", "statehold.worker.partition"),
        ("statehold.worker.transaction.transaction", "statehold.kafka.clients.producer"),
        ("statehold.config.settings", "statehold.state.state"),
        ("statehold.errors", "statehold.config.settings"),
        ("statehold.service", "statehold.ops.cli.entry"),
        ("statehold.worker.partition", "confluent_kafka"),
        ("statehold.service", "confluent_kafka.admin"),
        ("statehold.snapshot.format.frame", "pyspark.sql"),
        ("statehold.service", "typer"),
        ("statehold.worker.partition", "statehold"),
    ],
)
def test_a_wrong_import_is_seen(root: Path, importer: str, target: str) -> None:
    assert complaint(Import(importer, target, 1), packages_of(root)) is not None


def test_a_cycle_is_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [frozenset("abc")]


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
