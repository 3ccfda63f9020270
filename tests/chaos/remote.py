"""The other system of calls: a real HTTP server in a process of its own, which faults make late, wrong, hang or die.

`python -m tests.chaos.remote PORT DIRECTORY` serves. A file `mode` in the directory says how it misbehaves; each
answer is a line of the file `answered`, written before it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
from tests.chaos.workers import ROOT
from tests.chaos.workload import Trade

#: seconds for an answer, and for one that is late: longer than the callers wait
_SOON: Final = 0.01
_LATE: Final = 3.0
#: seconds that a caller waits
TIMEOUT: Final = 2.0

MODES: Final = {
    "late": "answers after its callers have ceased to wait",
    "twice": "handles requests and breaks the connection, so that they come again",
    "503": "answers 503",
    "half": "ends in the middle of its answers",
}


class Remote:
    """The server's process; used by the harness."""

    def __init__(self, port: int, directory: Path) -> None:
        self.port, self._directory = port, directory
        directory.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """If it does not run."""
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "tests.chaos.remote", str(self.port), str(self._directory)]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)

    def misbehave(self, mode: str) -> None:
        """From now on, or no more with an empty mode."""
        (self._directory / "mode").write_text(mode)

    def heal(self) -> None:
        """It runs, is awake and answers."""
        self.misbehave("")
        self.signal(signal.SIGCONT)
        self.start()

    def answered(self) -> list[tuple[str, int]]:
        """Return the trade and the amount of each answer, also of those that never arrived."""
        file = self._directory / "answered"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(trade, int(amount)) for trade, amount in map(str.split, lines)]


async def ask(port: int, trade: Trade) -> int:
    """Return what the server says of a trade. :raises OSError: it does not say it."""
    body = msgspec.json.encode(trade)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if b" 200 " not in head or not text.endswith(b";"):
        raise ConnectionError(f"no answer: {head[:40]!r}")
    return int(text[:-1])


def amount(trade: Trade) -> int:
    """The server's work, in its own words."""
    value = trade.quantity * trade.price
    return -value if trade.side == "SELL" else value


async def _serve(port: int, directory: Path) -> None:
    decode = msgspec.json.Decoder(Trade).decode
    file = os.open(directory / "answered", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    mode = directory / "mode"

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            trade = decode(await reader.readexactly(length))
            how = mode.read_text() if mode.exists() else ""
            await asyncio.sleep(_LATE if how == "late" else _SOON)
            text = b"%d;" % amount(trade)
            if how != "503":
                os.write(file, f"{trade.id} {text[:-1].decode()}\n".encode())
            if how != "twice":
                status = b"503 Unavailable" if how == "503" else b"200 OK"
                writer.write(b"HTTP/1.1 %s\r\n\r\n%s" % (status, text[:-1] if how == "half" else text))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
