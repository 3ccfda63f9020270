"""Jars of Kafka and the archive of their classes: resolved by jgo, cached outside the tree, verified by checksum.

The cache is `$XDG_CACHE_HOME/statehold` or `~/.cache/statehold`. Each folder is complete or absent:

    kafka-broker-4.4.0/*.jar       the broker and its dependencies
    kafka-logging-2.25.5/*.jar     log4j, first on the class path because Kafka's packages bring no binding for it
    kafka-tools-4.1.0/*.jar        Kafka's command-line tools, for `statehold txn`
    kafka-classes-4.4.0-JAVA/*.jsa the broker's classes as that build of Java has loaded them
    kafka-format-4.4.0/            a formatted data directory without the names of its broker and cluster
    .../SHA256SUMS                 the checksum of every file of that folder
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from statehold.dev.errors import JarsDamaged, JarsUnavailable
from statehold.dev.java import build_of, find_java

DEFAULT_VERSION = "4.4.0"
LOGGING_VERSION = "2.25.5"
TOOLS_VERSION = "4.1.0"  # the newest release that publishes its tools; they also talk to older and newer brokers
TIMEOUT = 60  # seconds without an answer from the repository
_ARCHIVE = "classes.jsa"
ReportProgress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class JarBundle:
    """Jars that one folder of the cache holds; `wanted` are Maven coordinates, `group:artifact:version`."""

    kind: str
    version: str
    wanted: tuple[str, ...]
    size: str
    #: also the dependencies of `wanted`
    transitive: bool = False
    #: dependencies to leave out, `group:artifact`
    exclude: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.kind}-{self.version}"


def broker_bundle(version: str) -> JarBundle:
    """The broker. Kafka 4.4 names kafka-tools-api, the interfaces of its console tools, without publishing it."""
    wanted = (f"org.apache.kafka:kafka_2.13:{version}",)
    return JarBundle("kafka-broker", version, wanted, "45 MB", True, ("org.apache.kafka:kafka-tools-api",))


LOGGING = JarBundle(
    "kafka-logging",
    LOGGING_VERSION,
    (f"org.apache.logging.log4j:log4j-slf4j2-impl:{LOGGING_VERSION}",),
    "2 MB",
    transitive=True,
)
TOOLS = JarBundle(
    "kafka-tools",
    TOOLS_VERSION,
    (
        f"org.apache.kafka:kafka-tools:{TOOLS_VERSION}",
        f"org.apache.kafka:kafka-clients:{TOOLS_VERSION}",
        f"org.apache.kafka:kafka-server-common:{TOOLS_VERSION}",
        "net.sourceforge.argparse4j:argparse4j:0.7.0",
        "net.sf.jopt-simple:jopt-simple:5.0.4",
        "org.slf4j:slf4j-api:1.7.36",
    ),
    "11 MB",
)


def cache_root() -> Path:
    """Return the folder that environments and clones share."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache")
    return Path(base) / "statehold"


def class_path(version: str = DEFAULT_VERSION, *, report: ReportProgress = lambda _: None) -> str:
    """Return the class path of broker `version`, fetching the jars on first use.

    Blocks for a download of about 47 MB the first time, 0.1 s after that. Raises `JavaMissing`, `JarsUnavailable`
    without a network, `JarsDamaged` when a checksum differs.
    """
    find_java()  # a missing Java is reported before the download
    return f"{cached(LOGGING, report)}/*:{cached(broker_bundle(version), report)}/*"


def is_cached(version: str) -> bool:
    """Return whether the jars of this broker were fetched before."""
    return (cache_root() / broker_bundle(version).name).exists()


def class_archive(version: str) -> Path | None:
    """Return the archive of the broker's classes for this Java, None when it does not exist.

    Raises `JavaMissing`, and `JarsDamaged` when its checksum differs, because a JVM may crash on a damaged archive.
    """
    home = _archive_home(version)
    if not home.exists():
        return None
    _verify(home)
    return home / _ARCHIVE


def keep_archive(version: str, written: Path) -> None:
    """Move an archive of classes into the cache, with its checksum."""
    home = _archive_home(version)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as work:
        ready = Path(work) / "ready"
        ready.mkdir()
        written.rename(ready / _ARCHIVE)
        _publish(ready, home, {_ARCHIVE: _sha256(ready / _ARCHIVE)})


def _archive_home(version: str) -> Path:
    return cache_root() / f"kafka-classes-{version}-{build_of(find_java())}"


def kept_format(version: str) -> Path | None:
    """Return the formatted data directory of this broker, without the broker's name; None before the first format.

    Raises `JarsDamaged` when a checksum differs.
    """
    home = _format_home(version)
    if not home.exists():
        return None
    _verify(home)
    return home


def keep_format(version: str, formatted: Path) -> None:
    """Copy what the format of a data directory wrote into the cache, but for the names in `meta.properties`.

    The process may hold the cache's lock, because a broker that writes an archive of classes is formatted first.
    """
    home = _format_home(version)
    work = tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent)
    with one_at_a_time(cache_root(), "format-lock"), work as directory:
        if home.exists():  # another process was first
            return
        ready = Path(directory) / "ready"
        shutil.copytree(formatted, ready, ignore=shutil.ignore_patterns("meta.properties"))
        _publish(ready, home, {name: _sha256(ready / name) for name in _files(ready)})


def _format_home(version: str) -> Path:
    return cache_root() / f"kafka-format-{version}"


def tools_class_path(*, report: ReportProgress = lambda _: None) -> str:
    """Return the class path of Kafka's command-line tools, fetching the jars on first use.

    Raises as `class_path` does.
    """
    find_java()
    return f"{cached(TOOLS, report)}/*"


def cached(bundle: JarBundle, report: ReportProgress) -> Path:
    """Return the folder of a bundle, fetched on first use, after verifying that every jar is present and unchanged."""
    home = cache_root() / bundle.name
    if not home.exists():
        with one_at_a_time(cache_root()):
            if not home.exists():
                report(f"fetching {bundle.kind} {bundle.version} ({bundle.size})")
                _install(bundle, home)
    _verify(home)
    return home


def _install(bundle: JarBundle, home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as work:
        ready = Path(work) / "ready"
        ready.mkdir()
        for jar in fetch_jars(bundle, Path(work) / "repository"):
            jar.rename(ready / jar.name)
        sums = {name: _sha256(ready / name) for name in _files(ready)}
        _compare(shipped_sums(bundle.name), sums, home)
        _publish(ready, home, sums)


def _publish(ready: Path, home: Path, sums: dict[str, str]) -> None:
    lines = [f"{value}  {name}\n" for name, value in sums.items()]
    (ready / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    ready.rename(home)


def fetch_jars(bundle: JarBundle, repository: Path) -> list[Path]:
    """Download the jars of a bundle into the folder `repository`. Raises `JarsUnavailable`."""
    from_maven = MavenDownloads(repository)
    with from_maven.failing_as(f"{bundle.kind} {bundle.version}"):
        context = from_maven.context
        excluded = [context.project(*each.split(":")) for each in bundle.exclude]
        wanted = [context.create_dependency(each, excluded) for each in bundle.wanted]
        found = wanted
        if bundle.transitive:
            roots, others = context.resolver.resolve(wanted)
            found = [*roots, *(each for each in others if each.scope in ("compile", "runtime") and not each.optional)]
        return [each.artifact.resolve() for each in found]


class MavenDownloads(logging.Handler):
    """jgo with a repository folder of its own. A warning that jgo logs, such as a wrong checksum, is a failure here."""

    def __init__(self, repository: Path) -> None:
        super().__init__(logging.WARNING)
        try:
            from jgo.config import GlobalSettings
            from jgo.constants import MAVEN_CENTRAL_URL
            from jgo.maven import MavenContext
        except ImportError:
            raise JarsUnavailable(
                "Kafka's jars are not in the cache and jgo, which fetches them, is not installed: "
                "pip install 'statehold[dev]'"
            ) from None
        mirrors = GlobalSettings.load().repositories
        remote = {"central": MAVEN_CENTRAL_URL, **mirrors}
        self.context = MavenContext(repo_cache=repository, remote_repos=remote, timeout=TIMEOUT)
        self._warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what jgo warns of."""
        self._warnings.append(record.getMessage())

    @contextmanager
    def failing_as(self, what: str) -> Iterator[None]:
        """Raise `JarsUnavailable` for each way in which a download fails."""
        jgo = logging.getLogger("jgo")
        jgo.addHandler(self)
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            raise JarsUnavailable(f"cannot fetch {what}: {_explained(error)}") from error
        finally:
            jgo.removeHandler(self)
        if self._warnings:
            raise JarsUnavailable(f"cannot fetch {what}: {'; '.join(self._warnings)[:200]}")


def _explained(error: Exception) -> str:
    """Return the cause of a failed download, and what to do."""
    reason = str(error).split(" in remote repositories")[0][:200] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            "the server's certificate is not trusted, as behind a proxy that inspects TLS. Next: set "
            "REQUESTS_CA_BUNDLE to the file with your company's certificates"
        )
    return f"check the version and the network, or name a mirror in ~/.config/jgo.conf ({reason})"


def shipped_sums(name: str) -> dict[str, str]:
    """Return jar name -> sha256 of a bundle as shipped with statehold; empty for a version that is not pinned."""
    listing = resources.files("statehold") / "deploy" / "kafka" / f"jars-{name}.sha256"
    return _parse_sums(listing.read_text(encoding="ascii")) if listing.is_file() else {}


def _verify(home: Path) -> None:
    listing = home / "SHA256SUMS"
    if not listing.is_file():
        raise JarsDamaged(f"{home} is not complete; remove it and repeat: rm -r {home}")
    _compare(_parse_sums(listing.read_text(encoding="ascii")), {n: _sha256(home / n) for n in _files(home)}, home)


def _compare(expected: dict[str, str], actual: dict[str, str], home: Path) -> None:
    """Every expected jar must be present and unchanged, and where any is expected no other may be present."""
    for name in sorted({*expected, *(actual if expected else ())}):
        if actual.get(name) != expected.get(name):
            state = "has another checksum than recorded"
            if name not in actual:
                state = "is missing"
            elif name not in expected:
                state = "is not in the list of checksums"
            raise JarsDamaged(f"{name} {state}; remove the cached files and repeat: rm -rf {home}")


def _parse_sums(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for value, name in rows}


def _files(home: Path) -> list[str]:
    found = (path for path in home.rglob("*") if path.suffix in (".jar", ".jsa", ".checkpoint"))
    return sorted(str(path.relative_to(home)) for path in found)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def one_at_a_time(root: Path, lock: str = "lock") -> Iterator[None]:
    """One process fetches; the others wait and find the jars in the cache. A process must not hold a lock twice."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
