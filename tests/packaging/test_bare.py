"""script/bare and .ci/run: what is kept, what ends, and which line is the last."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from script import bare, ci
from tests.packaging.test_scripts import stub

ROOT = Path(__file__).parents[2]


@pytest.fixture
def debootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A debootstrap that writes one file; it fails while the file `broken` exists."""
    programs = tmp_path / "bin"
    programs.mkdir()
    broken = tmp_path / "broken"
    make = 'for each; do case "$each" in /*) touch "$each/made" ;; esac; done'
    body = f"{make}; echo ran >>{tmp_path}/runs; test ! -e {broken}"
    stub(programs / "debootstrap", body)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return broken


def home_of(broken: Path) -> Path:
    home = broken.parent / "home"
    home.mkdir(exist_ok=True)
    return home


def runs(broken: Path) -> int:
    return len((broken.parent / "runs").read_text().splitlines())


def test_a_minimal_debian_is_kept_for_a_week(debootstrap: Path) -> None:
    made = bare.minimal_debian(home_of(debootstrap))
    assert (made / "made").exists()
    assert bare.minimal_debian(home_of(debootstrap)) == made
    assert runs(debootstrap) == 1

    old = time.time() - bare.KEPT - 1
    os.utime(made, (old, old))

    assert bare.minimal_debian(home_of(debootstrap)) == made
    assert runs(debootstrap) == 2


def test_what_was_half_made_is_removed(debootstrap: Path) -> None:
    home = home_of(debootstrap)
    (home / f".{bare.RELEASE}-killed" / "usr").mkdir(parents=True)
    debootstrap.touch()

    with pytest.raises(bare.Unavailable, match="debootstrap failed"):
        bare.minimal_debian(home)

    assert list(home.iterdir()) == []


def test_a_copied_setting_is_not_written_through_a_link(tmp_path: Path) -> None:
    source, target, outside = tmp_path / "source", tmp_path / "target", tmp_path / "outside"
    source.mkdir()
    target.mkdir()
    (source / "name.pem").write_text("new")
    outside.write_text("of this machine")
    (target / "name.pem").symlink_to(outside)

    bare.copy(source, target)

    assert (target / "name.pem").read_text() == "new"
    assert outside.read_text() == "of this machine"


@pytest.mark.root
@pytest.mark.slow
def test_no_process_outlives_a_killed_run(tmp_path: Path) -> None:
    try:
        bare.require_namespaces()
    except bare.Unavailable as error:
        pytest.skip(str(error))
    started = tmp_path / "started"
    command = f"sleep 12345 & setsid sleep 12345 & touch {started}; wait"
    places = "Path('/'), 'root', Path('root'), Path('tmp')"
    program = f"from pathlib import Path; from script import bare; bare.enter({places}, 'sh', '-c', '{command}')"
    run = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    await_true(started.exists)
    assert len(inside(started)) >= 1

    run.kill()
    run.wait()

    await_true(lambda: not inside(started))


def inside(started: Path) -> list[int]:
    """Return the pids of the command and of what it started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(started) in (process / "cmdline").read_text():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_closing_line_is_held_back() -> None:
    lines = io.StringIO("bootstrap\n....\n3 passed in 1 s\n")
    written: list[str] = []

    assert ci.pass_on(lines, written.append) == "3 passed in 1 s\n"
    assert written == ["bootstrap\n", "....\n"]


@pytest.mark.parametrize(
    ("runs", "reported", "others", "last", "code"),
    [
        ([(0, "=== 3 passed in 1 s ===\n")], "", 0, "=== 3 passed in 1 s ===\n", 0),
        (
            [(0, "=== 3 passed in 1 s ===\n")],
            "bare: ok: as root, 9 s: 4 passed, 1 skipped\n",
            0,
            "7 passed, 0 failed\n",
            0,
        ),
        ([(1, "1 failed, 3 passed\n"), (0, "2 passed\n")], "bare: ok: 4 passed\n", 0, "9 passed, 1 failed\n", 1),
        (
            [(0, "3 passed\n")],
            "bare: FAILED with exit code 1: script/demo as root, 9 s: killed\n",
            1,
            "3 passed, 1 failed\n",
            1,
        ),
    ],
)
def test_a_failure_anywhere_is_in_the_last_line(
    runs: list[tuple[int, str]], reported: str, others: int, last: str, code: int
) -> None:
    assert ci.verdict(runs, reported, others) == (last, code)


def test_a_fast_test_that_was_skipped_there_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ci, "SKIPPED", tmp_path / "skipped")
    assert ci.fast_here() == ["--fast", "-q"], "the minimal Debian was not made"

    lines = [
        "SKIPPED [2] tests/unit/test_x.py:42: no node\n",
        "SKIPPED [1] tests/unit/test_x.py:50: no node\n",
        "5 passed\n",
    ]
    (tmp_path / "skipped").write_text("\n".join(ci.skipped(lines)))
    assert ci.fast_here() == ["--fast", "-q", "-n", "0", "tests/unit/test_x.py"]

    (tmp_path / "skipped").write_text("")
    assert ci.fast_here() is None


def test_without_root_the_run_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert ci.in_minimal_debian("user", long=False) == ci.COULD_NOT
    assert "did not run in a minimal Debian as user: only root can make one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ends", "last", "code"),
    [((0, 0), "7 passed, 0 failed\n", 0), ((0, -9), "7 passed, 1 failed\n", 1), ((75, 75), "7 passed, 0 failed\n", 0)],
)
def test_the_checks_run_while_root_downloads_then_a_user_and_the_tests_when_both_have_ended(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ends: tuple[int, int],
    last: str,
    code: int,
) -> None:
    happened: list[str] = []
    codes = dict(zip(ci.COMMANDS, ends, strict=True))

    class Started:
        def __init__(self, who: str) -> None:
            happened.append(f"{who} begins")
            self._who = who
            (tmp_path / f"bare-{who}").write_text("bare: ok: as they are, 1 s: 2 passed\n")

        def wait(self) -> int:
            happened.append(f"{self._who} ended")
            return codes[self._who]

    def check(command: list[Path], *, check: bool) -> subprocess.CompletedProcess[str]:
        happened.append(command[0].name)
        return subprocess.CompletedProcess([], 0)

    def test(*arguments: str) -> tuple[int, str]:
        happened.append("test")
        return 0, "3 passed\n"

    for name in ("SKIPPED", "PARTS_PASSED"):
        monkeypatch.setattr(ci, name, tmp_path / name)
    monkeypatch.setattr(ci, "LOGS", tmp_path)
    monkeypatch.setattr(ci, "start_bare", Started)
    monkeypatch.setattr(ci, "run_tests", test)
    monkeypatch.setattr(ci, "fast_here", lambda: None)
    monkeypatch.setattr(subprocess, "run", check)
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))

    assert ci.main([]) == code
    assert happened == ["root begins", "check", "user begins", "root ended", "user ended", "test"]
    sys.stdout.flush()
    assert output.getvalue().decode().endswith(last)
