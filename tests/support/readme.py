"""The README's programs and commands, and its quick start in an environment."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.support.shell import Command, Shell

from statehold.dev.ports import free_ports

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
#: the installation, and the commands of the quick start
SHELL = re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
#: what the last command prints
PRINTED = re.findall(r"`(\{.*?\})`", README.read_text(encoding="utf-8"))


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
