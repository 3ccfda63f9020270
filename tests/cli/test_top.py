"""`statehold top` on a terminal of its own, while one instance is killed and the other takes over."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest
from tests.cli.commands import Commands

pytestmark = pytest.mark.kafka
WAIT_SECONDS = 120.0


class Screen:
    """A process on a pseudo-terminal of 40 lines, and what stands on its screen."""

    def __init__(self, commands: Commands, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        environment = commands.environment | {"TERM": "xterm-256color", "LINES": "40", "COLUMNS": "160"}
        self.process = subprocess.Popen(
            commands.command(*arguments),
            cwd=commands.directory,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                self.text += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                return

    @property
    def frames(self) -> list[str]:
        """Each drawing of the screen without its colours; the last may be half of one."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-GI-Zal-z]", "", self.text)
        return plain.split("\x1b[H")

    def rows(self) -> dict[int, list[str]]:
        """Partition -> the words of its line on the last whole screen."""
        for frame in reversed(self.frames[:-1]):
            lines = [line.split() for line in frame.splitlines()]
            found = {int(words[0]): words for words in lines if words and words[0].isdecimal() and len(words) > 3}
            if found:
                return found
        return {}

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        os.close(self._master)


@pytest.mark.long
def test_a_takeover_is_seen(on_kafka: Commands) -> None:
    on_kafka.create_topics(2)
    first, second = (
        on_kafka.start("--json", "--set", f"service.instance={name}", "--set", "group.heartbeat_interval=0.5")
        for name in ("one", "two")
    )
    screen = Screen(on_kafka, "top", "--name", on_kafka.name, "--input", f"{on_kafka.name}.in", "--interval", "0.3")
    try:
        # One each, both live.
        _await(screen, lambda rows: sorted((r[1], r[2]) for r in rows.values()) == [("live", "one"), ("live", "two")])
        assert on_kafka.name in screen.frames[-2]
        partition = next(p for p, words in screen.rows().items() if words[2] == "one")
        before = int(screen.rows()[partition][3])
        on_kafka.feed("a", partition)
        _await(screen, lambda rows: int(rows[partition][3]) > before)  # the position moves

        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)

        _await(screen, lambda rows: all((r[1], r[2]) == ("live", "two") for r in rows.values()) and len(rows) == 2)
        screen.press("q")
        assert screen.process.wait(60) == 0, screen.text[-2000:]
        assert screen.text.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))  # the terminal is given back
    finally:
        screen.end()
    assert second.stop() == 0


def _await(screen: Screen, condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + WAIT_SECONDS
    while not (screen.rows() and condition(screen.rows())):
        assert time.monotonic() < deadline, f"{len(screen.frames)} frames, the last of them:\n{screen.frames[-2]}"
        assert screen.process.poll() is None, screen.text[-3000:]
        time.sleep(0.1)


@pytest.mark.slow
def test_without_a_terminal_top_prints_once(on_kafka: Commands, tmp_path: Path) -> None:
    on_kafka.create_topics(1)

    done = on_kafka.run("top", "app:service")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{on_kafka.name} reads {on_kafka.name}.in" in done.stdout
    assert "nobody" in done.stdout
