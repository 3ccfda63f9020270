"""The other system of a durable call: it takes 50 ms, answers at random, and logs each request and answer.

The log is the oracle of `benchmarks.restate`: it shares no code with what is measured. A request that comes again gets
the points that it had before, as an idempotent system answers.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

#: seconds that it takes for an answer
LATENCY = float(os.environ.get("BENCH_LATENCY", "0.05"))
_PATIENCE = 60.0


class Scores:
    """A client with one connection; used by one event loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, list[asyncio.Future[int]]] = {}
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def score(self, payment: int) -> int:
        """Return the points of a payment."""
        async with self._opening:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
                self._reader = asyncio.create_task(self._read(reader))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(payment, []).append(answer)
        self._writer.write(b"%d\n" % payment)
        return await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            payment, points = map(int, line.split())
            self._waiting[payment].pop(0).set_result(points)


@dataclass
class Log:
    """What the log of a scorer says: the points of each answered request, and how often each was asked."""

    path: Path
    points: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    _read: int = 0

    @property
    def repeated(self) -> int:
        """Requests beyond the first of each."""
        return sum(self.asked.values()) - len(self.asked)

    def update(self) -> None:
        """Read what has been added; the last line may be incomplete."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        added = added[: added.rfind(b"\n") + 1]
        self._read += len(added)
        for line in added.splitlines():
            word, payment, *points = line.split()
            if word == b"ask":
                self.asked[int(payment)] = self.asked.get(int(payment), 0) + 1
            else:
                self.points[int(payment)] = int(points[0])


@contextmanager
def scoring(port: int, path: Path) -> Iterator[Log]:
    """Run a scorer on this port, which logs to this file."""
    root = Path(__file__).parents[1]
    scorer = subprocess.Popen([sys.executable, "-m", "benchmarks.scorer", str(port), str(path)], cwd=root)
    try:
        until = time.monotonic() + _PATIENCE
        while not path.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        yield Log(path)
    finally:
        scorer.kill()
        scorer.wait()


async def _serve(port: int, path: str) -> None:
    rng, points, loop = random.Random(7), dict[int, int](), asyncio.get_running_loop()
    with Path(path).open("w", buffering=1 << 16) as log:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            def answer(id: int) -> None:
                log.write(f"answer {id} {points[id]}\n")
                if not writer.is_closing():
                    writer.write(b"%d %d\n" % (id, points[id]))

            with suppress(ConnectionError):  # its process was killed
                async for line in reader:
                    payment = int(line)
                    points.setdefault(payment, rng.randrange(1000))
                    log.write(f"ask {payment}\n")
                    loop.call_later(LATENCY, answer, payment)

        async def flush() -> None:
            while True:
                await asyncio.sleep(0.2)
                log.flush()

        server = await asyncio.start_server(connected, "127.0.0.1", port, limit=1 << 20)
        waits: list[Awaitable[None]] = [server.serve_forever(), flush()]
        await asyncio.gather(*waits)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
