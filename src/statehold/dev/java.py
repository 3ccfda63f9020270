"""Find a Java that can run the broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache

from statehold.dev.errors import JavaMissing

MINIMUM = 17  # Kafka 4 brokers are compiled for 17


def apt_package() -> str:
    """Return the runtime that this Debian or Ubuntu has: releases carry one or the other."""
    for package in ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless"):
        told = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
        if told.returncode == 0:
            return package
    return "openjdk-17-jre-headless"


def install_hint() -> str:
    """Return the one command that installs Java on this system."""
    if shutil.which("apt-get"):
        return f"sudo apt-get install {apt_package()}"
    for manager, command in (
        ("brew", "brew install openjdk@17"),
        ("dnf", "sudo dnf install java-21-openjdk-headless"),
        ("zypper", "sudo zypper install java-17-openjdk-headless"),
        ("pacman", "sudo pacman -S jre21-openjdk-headless"),
        ("apk", "sudo apk add openjdk17-jre-headless"),
    ):
        if shutil.which(manager):
            return command
    return "install a Java 17 runtime and put `java` on PATH, or name its folder in JAVA_HOME"


def parse_major(version_output: str) -> int:
    """Return the major version in the output of `java -version`; 0 when there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', version_output)
    return int(found[1]) if found else 0


def _candidates() -> list[str]:
    home = os.environ.get("JAVA_HOME")
    from_home = [os.path.join(home, "bin", "java")] if home else []
    return [path for path in [*from_home, shutil.which("java") or ""] if path and os.access(path, os.X_OK)]


@cache
def find_java() -> str:
    """Return the path of a `java` of version 17 or newer; JAVA_HOME comes before PATH.

    Raises `JavaMissing`, naming the command that installs one.
    """
    seen = []
    for path in _candidates():
        answer = subprocess.run([path, "-XX:-UsePerfData", "-version"], capture_output=True, text=True, check=False)
        major = parse_major(answer.stderr + answer.stdout)
        if major >= MINIMUM:
            return path
        seen.append(f"{path} is version {major or 'unknown'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissing(f"the broker needs Java {MINIMUM} or newer{found}: {install_hint()}")
