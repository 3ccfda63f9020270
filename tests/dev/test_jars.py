"""The cache of jars: complete and unchanged, or refused by name."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from statehold.dev.errors import JarsDamaged, JavaMissing
from statehold.dev.fetch import extract
from statehold.dev.jars import DEFAULT_VERSION, class_path, shipped_sums
from statehold.dev.java import find_java, parse_major


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds version 0.0.1, of one small jar."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "statehold" / "kafka-0.0.1"
    (home / "libs").mkdir(parents=True)
    (home / "libs" / "kafka.jar").write_bytes(b"classes")
    (home / "SHA256SUMS").write_text(f"{hashlib.sha256(b'classes').hexdigest()}  libs/kafka.jar\n")
    return home


def test_a_whole_cache_is_used(cached: Path) -> None:
    assert class_path("0.0.1") == f"{cached}/logging/*:{cached}/libs/*"


def test_a_changed_jar_is_named(cached: Path) -> None:
    (cached / "libs" / "kafka.jar").write_bytes(b"other classes")

    with pytest.raises(JarsDamaged, match=r"libs/kafka\.jar has another checksum than recorded; .*rm -rf"):
        class_path("0.0.1")


def test_a_missing_jar_is_named(cached: Path) -> None:
    (cached / "libs" / "kafka.jar").unlink()

    with pytest.raises(JarsDamaged, match=r"libs/kafka\.jar is missing"):
        class_path("0.0.1")


def test_the_default_version_is_pinned_jar_by_jar() -> None:
    sums = shipped_sums(DEFAULT_VERSION)

    assert f"kafka_2.13-{DEFAULT_VERSION}.jar" in sums
    assert len(sums) > 40
    assert all(len(value) == 64 for value in sums.values())


def test_only_the_needed_jars_leave_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "pyspark.tar.gz"
    names = [
        "p/deps/jars/ivy-2.5.3.jar",
        "p/deps/jars/spark-core.jar",
        "p/deps/examples/ivy-1.jar",
        "p/ivy-2.py",
    ]
    with tarfile.open(archive, "w:gz") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    target = tmp_path / "out"
    target.mkdir()

    extract(archive, target)

    assert [path.name for path in target.iterdir()] == ["ivy-2.5.3.jar"]
    assert (target / "ivy-2.5.3.jar").read_text() == names[0]


@pytest.mark.parametrize(
    ("told", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_202"', 8),
        ("command not found", 0),
    ],
)
def test_the_version_of_java_is_read(told: str, major: int) -> None:
    assert parse_major(told) == major


def test_an_old_java_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    find_java.cache_clear()
    try:
        with pytest.raises(JavaMissing, match=rf"needs Java 17 or newer \({old} is version 11\): "):
            find_java()
    finally:
        find_java.cache_clear()
