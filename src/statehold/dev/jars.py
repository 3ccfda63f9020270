"""Jars from Maven: resolved once by the Ivy inside PySpark, cached outside the tree, checked by checksum.

Layout of the cache (`$XDG_CACHE_HOME/statehold` or `~/.cache/statehold`); each folder is complete or absent:

    kafka-4.4.0/logging/*.jar      PySpark's log4j, ahead on the class path (Kafka's own packages bring no binding)
    kafka-4.4.0/libs/*.jar         the broker and what it needs
    kafka-tools-4.1.0/*.jar        Kafka's command-line tools, for `statehold txn`
    spark-kafka-4.0.0/*.jar        what Spark needs to read and write Kafka
    .../SHA256SUMS                 every jar of that folder
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from statehold.dev.errors import DevError, JarsDamaged
from statehold.dev.fetch import resolve, resolve_connector, resolve_tools

DEFAULT_VERSION = "4.4.0"
TOOLS_VERSION = "4.1.0"  # the newest whose tools are published; it talks to all brokers that statehold does
CONNECTOR_VERSION = "4.0.0"  # works with every PySpark 4.0.x
Report = Callable[[str], object]
Resolve = Callable[[str, Path, Path, Report], None]


def cache_root() -> Path:
    """Return the folder that outlives environments and clones."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache")
    return Path(base) / "statehold"


def class_path(version: str = DEFAULT_VERSION, *, report: Report = lambda _: None) -> str:
    """Return the class path of broker `version`, fetching the jars on first use.

    Blocks for a download of about 480 MB the first time (PySpark's archive), 0.1 s after that.
    Raises `JarsUnavailable` without a network, `JarsDamaged` when a checksum differs.
    """
    home = _cached("kafka", version, resolve, report)
    return f"{home}/logging/*:{home}/libs/*"


def spark_connector(version: str = CONNECTOR_VERSION, *, report: Report = lambda _: None) -> list[Path]:
    """Return the jars that let a Spark session read and write Kafka, fetching them on first use.

    For a session on this machine; a cluster's job names the same packages with `spark-submit --packages`.
    Raises as `class_path` does.
    """
    return sorted(_cached("spark-kafka", version, resolve_connector, report).glob("*.jar"))


def tools_class_path(version: str = TOOLS_VERSION, *, report: Report = lambda _: None) -> str:
    """Return the class path of Kafka's command-line tools, fetching the jars on first use.

    Raises as `class_path` does.
    """
    return f"{_cached('kafka-tools', version, resolve_tools, report)}/*"


def _cached(kind: str, version: str, fetch: Resolve, report: Report) -> Path:
    """Return the folder with those jars, all of them there and unchanged."""
    home = cache_root() / f"{kind}-{version}"
    if not home.exists():
        with one_at_a_time(cache_root()):
            if not home.exists():
                _install(home, shipped_sums(version, kind), lambda to, work: fetch(version, to, work, report))
    _verify(home)
    return home


def _install(home: Path, expected: dict[str, str], fetch: Callable[[Path, Path], None]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    try:
        ready = work / "ready"
        ready.mkdir()
        fetch(ready, work)
        sums = {name: _sha256(ready / name) for name in _jars(ready)}
        _compare(expected, {Path(name).name: value for name, value in sums.items()}, home)
        lines = [f"{value}  {name}\n" for name, value in sums.items()]
        (ready / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
        ready.rename(home)
    finally:
        shutil.rmtree(work)


def shipped_sums(version: str, kind: str = "kafka") -> dict[str, str]:
    """Return jar name -> sha256 as shipped with statehold; empty for a version that nobody has pinned yet."""
    name = f"jars-{version}.sha256" if kind == "kafka" else f"jars-{kind}-{version}.sha256"
    listing = resources.files("statehold") / "deploy" / "kafka" / name
    return _parse_sums(listing.read_text(encoding="ascii")) if listing.is_file() else {}


def _verify(home: Path) -> None:
    listing = home / "SHA256SUMS"
    if not listing.is_file():
        raise JarsDamaged(f"{home} is not complete; remove it and repeat: rm -r {home}")
    _compare(_parse_sums(listing.read_text(encoding="ascii")), {n: _sha256(home / n) for n in _jars(home)}, home)


def _compare(expected: dict[str, str], actual: dict[str, str], home: Path) -> None:
    """Every expected jar must be there, unchanged."""
    for name, value in expected.items():
        if actual.get(name) != value:
            state = "is missing" if name not in actual else "has another checksum than recorded"
            raise JarsDamaged(f"{name} {state}; remove the cached jars and repeat: rm -rf {home}")


def _parse_sums(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for value, name in rows}


def _jars(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*.jar"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """One process fetches, the others wait and find it done."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Fill the cache and say what is done: called by script/bootstrap."""

    def say(line: str) -> None:
        sys.stderr.write(f"bootstrap: {line}\n")

    try:
        class_path(report=say)
        spark_connector(report=say)
        tools_class_path(report=say)
    except DevError as error:
        sys.exit(f"bootstrap: {error}")
