"""Runs a command on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path


def on_terminal(command: Sequence[str], columns: int, environment: Mapping[str, str], directory: Path) -> str:
    """Return what it has printed when it ends, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {key: value for key, value in environment.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**inherited, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    text = b""
    try:
        while piece := _read(ours):
            text += piece
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text.decode(errors="replace"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""
