"""The archive of the schema registry is extracted into its folder, or rejected."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests.support.registry import extract_files


def archive(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    return path


def test_files_keep_their_paths(tmp_path: Path) -> None:
    extract_files(archive(tmp_path / "good.tar.gz", "lib/a.jar", "b.jar"), tmp_path / "out")

    assert (tmp_path / "out" / "lib" / "a.jar").read_text() == "lib/a.jar"
    assert (tmp_path / "out" / "b.jar").read_text() == "b.jar"


@pytest.mark.parametrize("name", ["../outside", "/outside", "lib/../../outside"])
def test_a_path_outside_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"bad\.tar\.gz has a path outside its folder"):
        extract_files(archive(tmp_path / "bad.tar.gz", name), tmp_path / "out")

    assert not (tmp_path / "outside").exists()


def test_a_link_is_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)

    extract_files(tmp_path / "link.tar.gz", tmp_path / "out")

    assert not (tmp_path / "out" / "link").exists()
