"""Runs the `console` blocks of a page in one shell, and compares each command's output with the page.

In the page `...` stands for any text; spaces and line ends count as one space, and rules of all widths are equal.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"(?:Save this as `(\S+)`[^`\n]*\n\n)?^```(python|console|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
#: commands that only read: a reader repeats one until it shows what the page shows
READS = ("statehold status", "statehold lag", "statehold cat", "statehold snapshot list", "grep ", "cat ", "python -c ")
#: what bash itself says about a job, at a moment of its own choice
_NOTICE = re.compile(r"^bash: line \d+: +\d+ (?:Killed|Terminated) .*\n", re.MULTILINE)
_SECONDS = 90.0


class Command(NamedTuple):
    """A command of a page and the output that the page shows."""

    line: str
    output: str


class File(NamedTuple):
    """A program that the reader saves."""

    name: str
    text: str


def steps(page: Path) -> list[Command | File]:
    """Return what a reader of the page does, in its order."""
    found: list[Command | File] = []
    for name, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if name:
            found.append(File(name, text))
        elif language == "console":
            for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, output = re.sub(r"\\\n> ", "", each).partition("\n")
                found.append(Command(line, output))
    return found


class Shell:
    """One bash for all pages of a tutorial, in a directory of its own; `replaced` adapts ports."""

    def __init__(self, directory: Path, replaced: dict[str, str], **environment: str) -> None:
        self._directory, self._replaced = directory, replaced
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env={**os.environ, "COLUMNS": "200", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def do(self, step: Command | File) -> None:
        """Save the file, or run the command and compare its output."""
        if isinstance(step, File):
            (self._directory / step.name).write_text(self.here(step.text))
            return
        end = time.monotonic() + _SECONDS
        wanted = self.here(step.output)
        while not self._equal(wanted, got := self.run(self.here(step.line))):
            again = step.line.startswith(READS) and time.monotonic() < end
            assert again, f"$ {step.line}\n--- the page\n{wanted}--- got\n{got}"
            time.sleep(0.2)

    def run(self, line: str) -> str:
        """Run one line; return what it printed."""
        assert self._bash.stdin
        assert self._bash.stdout
        mark = f"\x01{time.monotonic_ns()}\n"
        self._bash.stdin.write(f"{line}\nprintf '\\001{mark[1:-1]}\\n'\n".encode())
        self._bash.stdin.flush()
        end, got = time.monotonic() + 4 * _SECONDS, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._bash.stdout, selectors.EVENT_READ)
            while not got.endswith(mark.encode()):
                assert selector.select(max(0, end - time.monotonic())), f"{line} hangs: {got!r}"
                read = os.read(self._bash.stdout.fileno(), 65536)
                assert read, f"the shell ended at {line}: {got!r}"
                got += read
        return _NOTICE.sub("", got.decode(errors="replace").removesuffix(mark))

    def end(self) -> None:
        """End the jobs of the shell, then the shell."""
        with self._bash:  # closes its pipes and waits for it
            self.run("kill -9 $(jobs -p) 2>/dev/null")
            self._bash.kill()

    def here(self, text: str) -> str:
        """Return a line of the page with the ports of this run."""
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    @staticmethod
    def _equal(wanted: str, got: str) -> bool:
        wanted, got = (" ".join(re.sub("─+", "─", text).split()) for text in (wanted, got))
        parts = re.split(r" ?\.\.\. ?", wanted)
        return re.fullmatch(".*".join(map(re.escape, parts)), got) is not None
