"""`doctor` looks at the directory of tables on disk: rights, room, file system, what a scrub has found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statehold.config.settings import Settings
from statehold.disk.usage import ScrubNote, write_scrub_note
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.machine import LocalDisk, LocalScrub
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


def scrubs(directory: Path, now: float) -> list[str]:
    settings = Settings()
    case = Case(replace(settings, state=replace(settings.state, dir=str(directory))), None, wall=lambda: now)
    found = list(LocalScrub().look(case))
    assert all(each.check == "local-scrub" and each.level is Level.WARN and each.fix for each in found)
    return [f"{each.about}: {each.reason}" for each in found]


def test_files_that_differed_and_files_that_no_scrub_has_read_for_long(tmp_path: Path) -> None:
    base = tmp_path / "ledger.payments.0"
    (base / "0").mkdir(parents=True)
    data = base / "0" / "data.mdb"
    data.touch()
    written, day = data.stat().st_mtime, 86_400.0
    assert scrubs(tmp_path, written) == []
    write_scrub_note(base, ScrubNote(written - day, 9, "equal"))
    assert scrubs(tmp_path, written) == []
    differs = ScrubNote(written, 4, "differs", written, "a row differs from its checksum")
    write_scrub_note(base, differs)
    assert scrubs(tmp_path, written + 3600) == [
        "ledger.payments.0: its files differed 1.0 h ago: a row differs from its checksum"
    ]
    write_scrub_note(base, ScrubNote(written + day, 9, "equal").after(differs))
    assert len(scrubs(tmp_path, written + 2 * day)) == 1
    assert scrubs(tmp_path, written + 31 * day) == []
    write_scrub_note(base, ScrubNote(written - 8 * day, 9, "equal"))
    assert scrubs(tmp_path, written) == [
        "ledger.payments.0: its files were written 8 days after the last pass over them"
    ]
    (base / "scrub").write_bytes(b"{")
    assert scrubs(tmp_path, written) == []
