"""`doctor` looks at the directory of tables on disk: rights, room, file system."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statehold.config.settings import Settings
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.machine import LocalDisk
from statehold.ops.doctor.report import Level

PLENTY = 10**12


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    """One local file system, whatever this machine has."""
    path = tmp_path / "mounts"
    path.write_text("/dev/a / ext4 rw 0 0\n", encoding="utf-8")
    return path


def looked(directory: str, mounts: Path, room: int = PLENTY) -> list[tuple[str, str]]:
    settings = Settings()
    case = Case(replace(settings, state=replace(settings.state, dir=directory)), None)
    found = list(LocalDisk(mounts, lambda place: room).look(case))
    assert all(each.check == "local-disk" and each.fix for each in found)
    return [(each.level.name, each.reason) for each in found]


def test_nothing_is_said_of_a_directory_that_is_fine(tmp_path: Path, mounts: Path) -> None:
    assert looked(str(tmp_path), mounts) == []
    assert looked(str(tmp_path / "not" / "yet"), mounts) == []
    assert looked("", mounts) == []


def test_little_room(tmp_path: Path, mounts: Path) -> None:
    ((level, reason),) = looked(str(tmp_path), mounts, room=1000)
    assert level == Level.WARN.name
    assert "has room for 0 MB" in reason


def test_a_network_file_system(tmp_path: Path, mounts: Path) -> None:
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n", encoding="utf-8")
    ((level, reason),) = looked(str(tmp_path / "state"), mounts)
    assert level == Level.WARN.name
    assert reason.endswith("is on nfs4")


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mounts: Path) -> None:
    monkeypatch.setattr("os.access", lambda place, rights: False)
    ((level, reason),) = looked(str(tmp_path), mounts)
    assert level == Level.FAIL.name
    assert "cannot be written" in reason
