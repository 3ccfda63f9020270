"""The notes at which record a process died: what the next owner makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from statehold.health.death_notes import DeathNote, DeathNotes, Handled, is_running, name_of, state_directory

SEVENTH = Handled("in", 7, 7, 7)
BATCH = Handled("in", 5, 5, 9)
NINTH = Handled("in", 9, 9, 9)


@pytest.mark.parametrize(
    ("note", "position", "deaths", "suspect"),
    [
        (DeathNote(), 5, 1, None),
        (DeathNote(deaths=1), 5, 1, None),
        (DeathNote(deaths=1, handling=SEVENTH), 5, 2, SEVENTH),
        (DeathNote(deaths=2, suspect=SEVENTH, handling=SEVENTH), 7, 3, SEVENTH),
        (DeathNote(deaths=2, suspect=SEVENTH), 7, 2, SEVENTH),
        (DeathNote(deaths=2, suspect=SEVENTH, handling=NINTH), 9, 1, NINTH),
        (DeathNote(deaths=2, suspect=SEVENTH), 8, 1, None),
        (DeathNote(deaths=1, handling=BATCH), 5, 2, BATCH),
        (DeathNote(deaths=2, suspect=BATCH, handling=SEVENTH), 6, 3, SEVENTH),
        (DeathNote(deaths=2, suspect=BATCH), 10, 1, None),
        (DeathNote(deaths=1, handling=SEVENTH), 8, 1, None),
    ],
)
def test_a_death_is_counted_at_its_record(note: DeathNote, position: int, deaths: int, suspect: Handled | None) -> None:
    after = note.after({"in": position}, died=True)
    assert (after.deaths, after.suspect, after.handling) == (deaths, suspect, None)


def test_without_a_death_nothing_is_counted() -> None:
    note = DeathNote(deaths=2, suspect=SEVENTH, handling=SEVENTH)
    assert note.after({"in": 7}, died=False) == DeathNote(deaths=2, suspect=SEVENTH)
    assert note.after({"in": 8}, died=False) == DeathNote()


def test_a_record_of_several_inputs_is_passed_at_its_own_topic() -> None:
    record = Handled("b", 3, 20, 20)
    assert not record.passed({"a": 90, "b": 3})
    assert record.passed({"a": 0, "b": 4})
    assert not Handled("b", 3, 20, 22).passed({"a": 10, "b": 12})
    assert Handled("b", 3, 20, 22).passed({"a": 10, "b": 13})


def refuse(path: str, error: OSError) -> None:
    raise AssertionError(f"{path}: {error}")


def notes(directory: Path, scope: str = "", failed: Callable[[str, OSError], None] = refuse) -> DeathNotes:
    return DeathNotes(directory, "service.in.0", scope, failed)


def die(directory: Path, *, handling: Handled | None = None, scope: str = "") -> None:
    """Another process opens the notes and ends."""
    code = (
        "import os, sys, msgspec; from pathlib import Path\n"
        "from statehold.health.death_notes import DeathNotes, Handled\n"
        "notes = DeathNotes(Path(sys.argv[1]), 'service.in.0', sys.argv[2], print)\n"
        "notes.open({'in': 5})\n"
        "if len(sys.argv) > 3: notes.begin(msgspec.json.decode(sys.argv[3], type=Handled))\n"
        "os._exit(0)"
    )
    given = [] if handling is None else [msgspec.json.encode(handling).decode()]
    subprocess.run([sys.executable, "-c", code, str(directory), scope, *given], check=True, timeout=60)


def test_the_next_process_knows_the_record(tmp_path: Path) -> None:
    die(tmp_path)
    die(tmp_path, handling=SEVENTH)
    found = notes(tmp_path)
    assert found.open({"in": 5})
    assert (found.deaths, found.suspect) == (2, SEVENTH)
    found.close({"in": 7})
    again = notes(tmp_path)
    assert not again.open({"in": 7}), "it gave the partition back"
    assert (again.deaths, again.suspect) == (2, SEVENTH), "but the record is still to come"
    again.close({"in": 8})
    assert not any(tmp_path.iterdir())


def test_a_clean_end_leaves_nothing(tmp_path: Path) -> None:
    one = notes(tmp_path)
    assert not one.open({"in": 5})
    one.close({"in": 9})
    assert not any(tmp_path.iterdir())


def test_the_same_process_may_take_it_again(tmp_path: Path) -> None:
    assert not notes(tmp_path).open({"in": 5})
    assert not notes(tmp_path).open({"in": 5})


def test_another_release_or_topic_begins_again(tmp_path: Path) -> None:
    die(tmp_path, handling=SEVENTH, scope="one")
    found = notes(tmp_path, "two")
    found.open({"in": 5})
    assert found.suspect is None


def test_an_end_that_is_no_death_is_not_counted(tmp_path: Path) -> None:
    one = notes(tmp_path)
    one.open({"in": 5})
    one.begin(SEVENTH)
    one.excuse()
    assert msgspec.json.decode(one.path.read_bytes(), type=DeathNote).process == ""


def test_a_file_of_the_next_owner_is_kept(tmp_path: Path) -> None:
    one = notes(tmp_path)
    one.open({"in": 5})
    die(tmp_path)
    one.close({"in": 5})
    assert notes(tmp_path).open({"in": 5})


def test_what_cannot_be_read_or_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "service.in.0.deaths").write_bytes(b"torn")
    assert not notes(tmp_path).open({"in": 5})
    (tmp_path / "file").touch()
    reported: list[str] = []
    broken = notes(tmp_path / "file", failed=lambda path, error: reported.append(path))
    assert not broken.open({"in": 5})
    broken.begin(SEVENTH)
    broken.close({"in": 5})
    assert reported


def test_a_process_is_known_by_its_start() -> None:
    own = name_of(os.getpid())
    assert is_running(own)
    if own:
        pid, started, boot = own.split("-", 2)
        assert not is_running(f"{pid}-{int(started) + 1}-{boot}")
    child = subprocess.Popen([sys.executable, "-c", ""])
    name = name_of(child.pid) or str(child.pid)
    child.wait(60)
    assert not is_running(name)


def test_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert state_directory("off") is None
    assert state_directory("/some/where") == Path("/some/where")
    assert state_directory("auto") == tmp_path / f"statehold-{os.geteuid()}"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory("auto") == tmp_path / ".local/state/statehold"
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/unit:{tmp_path}/other")
    assert state_directory("auto") == tmp_path / "unit"


def test_a_long_name_fits(tmp_path: Path) -> None:
    long = DeathNotes(tmp_path, f"{'s' * 90}.{'i' * 240}.0", "", refuse)
    assert not long.open({"in": 5})
    assert long.path.is_file()
