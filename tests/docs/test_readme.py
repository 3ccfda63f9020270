"""README: its Python runs, its quick start runs on a real broker, and it stays one page."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from tests.docs.shell import Command, Shell
from tests.docs.test_pages import run

from statehold.dev.ports import free_ports

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
#: the installation, and the commands of the quick start
SHELL = re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
#: what the last command prints
PRINTED = re.findall(r"`(\{.*?\})`", README.read_text(encoding="utf-8"))


def test_it_is_one_page() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 125


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("totals", "README.md", BLOCKS, monkeypatch) == 1


@pytest.mark.kafka
def test_the_quick_start_runs_as_shown(tmp_path: Path) -> None:
    quick_start(tmp_path, Path(sys.executable).parent)


def quick_start(tmp_path: Path, programs: Path) -> None:
    """Do what the quick start says, with the programs of an environment; the last command's output is compared."""
    port = free_ports(1)[0]
    (tmp_path / "totals.py").write_text(BLOCKS[0], encoding="utf-8")
    shell = Shell(
        tmp_path,
        {"127.0.0.1:9092": f"127.0.0.1:{port}", "statehold dev up": f"statehold dev up --port {port}"},
        PATH=f"{programs}:{os.environ['PATH']}",
        XDG_STATE_HOME=str(tmp_path / "state"),
        XDG_RUNTIME_DIR=str(tmp_path),
        STATEHOLD_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}",
    )
    try:
        commands = SHELL[1].splitlines()
        assert (len(commands), len(PRINTED)) == (5, 2)
        for command in commands[:-1]:
            shell.run(shell.here(command))  # the page leaves out what these print
        shell.do(Command(commands[-1], "\n".join(PRINTED)))
    finally:
        shell.run("statehold dev down --delete")
        shell.end()
