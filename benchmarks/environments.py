"""An environment for each contender: pinned versions, made once with uv or Maven, kept in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

STREAMS_VERSION = "4.3.1"  # the newest of Kafka Streams that is published
PINNED = {
    "loop": ("confluent-kafka==2.16.1", "msgspec==0.22.0"),
    "quix": ("quixstreams==3.28.1",),
    "pathway": ("pathway==0.33.0",),
    "restate": ("restate-sdk[serde]==1.3.0", "hypercorn==0.18.0", "uvloop==0.23.0"),
    "bytewax": ("bytewax[kafka]==0.21.1", "confluent-kafka==2.16.1"),
}
RESTATE_VERSION = "1.7.12"
STREAMS = {"kafka-streams": STREAMS_VERSION, "kafka-clients": STREAMS_VERSION}
JACKSON = "2.17.2"
SOURCES = sorted((Path(__file__).parent / "streams").glob("*.java"))


class Skipped(Exception):
    """A contender cannot run here; the text says why, in one line."""


def cache() -> Path:
    """Return the folder for environments; it outlives clones."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "statehold" / "bench"


def python_of(name: str) -> str:
    """Return the interpreter of environment `name`, made on first use. Raises `Skipped`."""
    packages = PINNED[name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = cache() / f"{name}-py{version}"
    listing = "\n".join(packages)
    if not (home / "pinned").is_file() or (home / "pinned").read_text() != listing:
        uv = shutil.which("uv") or shutil.which("uv", path=str(cache().parent / "uv" / "bin"))
        if uv is None:
            raise Skipped("uv is missing: script/bootstrap fetches it")
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(home)])
        _run([uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), *packages])
        (home / "pinned").write_text(listing)
    return str(home / "bin" / "python")


def streams_class_path() -> str:
    """Return the class path of the compiled Kafka Streams contender. Raises `Skipped` without JDK or Maven."""
    for program in ("javac", "mvn"):
        if shutil.which(program) is None:
            raise Skipped(f"{program} is missing: Kafka Streams needs a JDK and Maven")
    libraries = cache() / f"streams-{STREAMS_VERSION}"
    if not (libraries / "complete").is_file():
        _fetch(libraries)
    classes = libraries / "classes"
    compiled = classes / "Totals.class"
    newest = max(source.stat().st_mtime for source in SOURCES)
    if not compiled.is_file() or compiled.stat().st_mtime < newest:
        classes.mkdir(exist_ok=True)
        _run(["javac", "-cp", f"{libraries}/*", "-d", str(classes), *map(str, SOURCES)])
    return f"{classes}:{libraries}/*"


def restate_server() -> str:
    """Return Restate's server, which its npm package brings as a binary. Raises `Skipped` without npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise Skipped("npm is missing: it brings Restate's server")
    home = cache() / f"restate-{RESTATE_VERSION}"
    if not (home / "complete").is_file():
        home.mkdir(parents=True, exist_ok=True)
        package = f"@restatedev/restate-server@{RESTATE_VERSION}"
        _run([npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", package])
        (home / "complete").touch()
    found = sorted(home.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise Skipped("Restate's npm package has no binary for this system")
    return str(found[0])


def _fetch(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    wanted = [("org.apache.kafka", name, version) for name, version in STREAMS.items()]
    wanted += [("com.fasterxml.jackson.core", "jackson-databind", JACKSON), ("org.slf4j", "slf4j-nop", "1.7.36")]
    dependencies = "".join(
        f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version></dependency>"
        for g, a, v in wanted
    )
    pom = target / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>statehold</groupId><artifactId>bench</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    _run(["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"])
    (target / "complete").touch()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise Skipped(f"{' '.join(command[:3])} failed: {output[-1] if output else 'no output'}")
