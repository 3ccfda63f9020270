"""Find a Java that can run the broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache

from holdfast.dev.errors import JavaMissing

MINIMUM = 17  # Kafka 4 brokers are compiled for 17


def install_hint() -> str:
    """Return the one command that installs Java on this system."""
    if shutil.which("brew"):
        return "brew install openjdk@17"
    for manager, command in (
        ("apt-get", "apt-get install openjdk-17-jre-headless"),
        ("dnf", "dnf install java-17-openjdk-headless"),
        ("zypper", "zypper install java-17-openjdk-headless"),
        ("pacman", "pacman -S jre17-openjdk-headless"),
        ("apk", "apk add openjdk17-jre-headless"),
    ):
        if shutil.which(manager):
            return f"sudo {command}"
    return "install a Java 17 runtime and put `java` on PATH"


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
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
        major = parse_major(answer.stderr + answer.stdout)
        if major >= MINIMUM:
            return path
        seen.append(f"{path} is version {major or 'unknown'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissing(f"the broker needs Java {MINIMUM} or newer{found}: {install_hint()}")
