"""`script/bench reads`: committed values that a client reads a second, in the owner's process and from another one.

The service of `benchmarks.ask`, with four partitions and 2,000 accounts. Reads of other processes go over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.ask import ACCOUNTS, PARTITIONS
from benchmarks.ask_app import Booked, Payment, Payments, service
from benchmarks.report import Figures, console, show
from statehold import Client
from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.config import load
from statehold.dev import Cluster
from statehold.ops.http.server import OpsServer

ROOT: Final = Path(__file__).resolve().parents[1]
#: reads at a time
_AT_A_TIME: Final = 32
_PATIENCE: Final = 120.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `reads`."""
    parser.add_argument("--local", type=int, default=60_000, help="reads in the owner's process")
    parser.add_argument("--remote", type=int, default=10_000, help="reads from another process")
    parser.add_argument("--rounds", type=int, default=3)


def main(options: argparse.Namespace) -> int:
    """Run it, and show the medians."""
    found: dict[str, list[float]] = {}
    with Cluster() as kafka:
        for number in range(options.rounds):
            environment = os.environ | {
                "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
                "STATEHOLD_OPS__STATE": "on",
                "STATEHOLD_OPS__TOKEN": "a-token-of-this-benchmark",
                "BENCH_INPUT": f"read-{number}",
                "STATEHOLD_SERVICE__NAMESPACE": f"reads{number}.",
                "PYTHONPATH": str(ROOT),
            }
            command = [sys.executable, "-m", "benchmarks.reads"]
            owner = [*command, "own", str(options.local)]
            with subprocess.Popen(owner, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as running:
                try:
                    assert running.stdout is not None
                    line = next(each for each in running.stdout if each.startswith(b"{"))
                    other = [*command, "read", str(options.remote)]
                    text = subprocess.run(other, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
                finally:
                    running.kill()
            for name, rate in {**json.loads(line), **json.loads(text.splitlines()[-1])}.items():
                found.setdefault(name, []).append(rate)
    figures = Figures("reads")
    for name, rates in found.items():
        figures.add(name, statistics.median(rates), "reads/s", rates)
    rows = [[name, f"{statistics.median(rates):,.0f}"] for name, rates in found.items()]
    show("reads of committed values", ["", "reads/s"], rows)
    console.print(f"load {os.getloadavg()[0]:.1f}")
    figures.write()
    return 0


async def _rate(client: Client, reads: int, at_a_time: int) -> float:
    numbers = iter(range(reads))

    async def reader() -> None:
        for number in numbers:
            key = f"a{number % ACCOUNTS}"
            assert await client.get("balances", key, value=Booked, timeout=_PATIENCE) == Booked(1, 1)

    began = time.perf_counter()
    await asyncio.gather(*(reader() for _ in range(at_a_time)))
    return reads / (time.perf_counter() - began)


async def _rates(client: Client, where: str, reads: int) -> dict[str, float]:
    await _rate(client, ACCOUNTS, _AT_A_TIME)  # warm
    return {
        f"{where}, one after the other": await _rate(client, reads, 1),
        f"{where}, {_AT_A_TIME} at a time": await _rate(client, reads, _AT_A_TIME),
    }


async def _own(client: Client, reads: int) -> dict[str, float]:
    keys = [f"a{number}" for number in range(ACCOUNTS)]
    asked = [client.ask(Payment(key, 1), key=key, reply=Booked, timeout=_PATIENCE) for key in keys]
    await asyncio.gather(*asked)
    return await _rates(client, "local", reads)


def own(reads: int) -> None:
    """Run the service, read its tables, then serve until it is killed."""
    topics = ServiceTopics(service.settings, service.names, output_topics(Payments, service.names))
    topics.create("beginning", partitions=PARTITIONS)
    with OpsServer(service), service, service.client() as client:
        while len([each for each in service.status()["partitions"] if each.get("live")]) < PARTITIONS:
            time.sleep(0.05)
        print(json.dumps(asyncio.run(_own(client, reads))), flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1] == "own":
        own(int(sys.argv[2]))
    else:
        with Client(service.name, load(), input=service.input) as other:
            print(json.dumps(asyncio.run(_rates(other, "remote", int(sys.argv[2])))))
