"""`script/bench ask`: request and reply of a stateful service, alone and under load, against Restate.

A service in one process, its askers in another, the broker on the same cores. Each request adds an amount to one of
2,000 accounts and gets the new balance. At the end each account must have every amount once, and each answer must be
another balance of its account. Restate does the same over its HTTP ingress, without idempotency keys.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.ask_app import Booked, Payment, Payments, service
from benchmarks.contender import cpu_seconds
from benchmarks.environments import Skipped
from benchmarks.report import Figures, console, show
from benchmarks.restate import Setup, processor, running
from statehold import Client
from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.config import load
from statehold.dev import Cluster

ROOT: Final = Path(__file__).resolve().parents[1]
PARTITIONS: Final = 4
ACCOUNTS: Final = 2000
PATIENCE: Final = 300.0
#: asks once: number of the request -> (account, balance, number of the payment)
Ask = Callable[[int], Awaitable[tuple[str, int, int]]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `ask`."""
    parser.add_argument("--alone", type=int, default=300, help="requests one after the other")
    parser.add_argument("--requests", type=int, default=30_000, help="requests under load; Restate gets a tenth")
    parser.add_argument("--in-flight", type=int, default=300, help="requests at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-restate", action="store_true")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 if an answer or a total is wrong."""
    found: dict[str, list[dict[str, Any]]] = {}
    with Cluster() as kafka:
        servers = kafka.bootstrap_servers
        contenders: dict[str, Callable[[], dict[str, Any]]] = {
            "statehold": lambda: _statehold(servers, options),
        }
        if not options.no_restate:
            contenders["Restate"] = lambda: _restate(servers, options)
        for _ in range(options.rounds):
            for name, run in contenders.items():
                try:
                    one = run()
                except Skipped as reason:
                    console.print(f"{name} skipped: {reason}")
                    continue
                found.setdefault(name, []).append(one)
                console.print(
                    f"{name}: alone p50 {one['alone_p50']:.1f} ms, p99 {one['alone_p99']:.1f} ms; "
                    f"{one['rate']:,.0f} answers/s, p99 {one['p99']:.0f} ms, {one['processor']:.2f} s per 1,000"
                )
    return _report(found)


def _report(found: dict[str, list[dict[str, Any]]]) -> int:
    figures, rows = Figures("ask"), []
    median = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    units = {
        "alone_p50": "ms",
        "alone_p99": "ms",
        "rate": "answers/s",
        "p50": "ms",
        "p99": "ms",
        "processor": "s/1,000",
    }
    for name, values in median.items():
        rows.append([name, *(f"{values[key]:,.2f}" for key in units)])
        for key, unit in units.items():
            figures.add(f"{name}.{key}", values[key], unit, [run[key] for run in found[name]])
    show("request and reply", ["", "alone p50 ms", "p99 ms", "answers/s", "p50 ms", "p99 ms", "CPU s per 1,000"], rows)
    if "Restate" in median:
        ratio = median["statehold"]["rate"] / median["Restate"]["rate"]
        figures.add("statehold/Restate", ratio, "ratio")
        console.print(f"statehold / Restate: {ratio:.1f}")
    console.print(f"load {os.getloadavg()[0]:.1f}")
    figures.write()
    good = all(run["good"] for runs in found.values() for run in runs)
    console.print("each answer once, totals right" if good else "[red]WRONG[/red]")
    return 0 if good else 1


def _statehold(servers: str, options: argparse.Namespace) -> dict[str, Any]:
    environment = os.environ | {
        "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
        "BENCH_INPUT": f"asked-{time.time_ns()}",
        "STATEHOLD_SERVICE__NAMESPACE": f"ask{time.time_ns()}.",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "benchmarks.ask"]
    server = subprocess.Popen([*command, "serve"], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert any(line == b"ready\n" for line in server.stdout), "the service did not start"
        return _client([*command, "statehold"], environment, options, lambda: cpu_seconds(server.pid))
    finally:
        server.kill()
        server.wait()


def _restate(servers: str, options: argparse.Namespace) -> dict[str, Any]:
    with running(Setup(), servers) as restate:
        less = argparse.Namespace(**vars(options) | {"requests": options.requests // 10})
        command = [sys.executable, "-m", "benchmarks.ask", str(restate.ingress)]
        return _client(command, os.environ | {"PYTHONPATH": str(ROOT)}, less, lambda: processor(restate.pids()))


def _client(
    command: list[str], environment: dict[str, str], options: argparse.Namespace, used: Callable[[], float]
) -> dict[str, Any]:
    numbers = [str(each) for each in (options.alone, options.requests, options.in_flight)]
    client = subprocess.Popen([*command, *numbers], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == b"loaded\n"  # the processor time counts from here
        before = used()
        text, _ = client.communicate(timeout=PATIENCE)
        spent = used() - before
    finally:
        client.kill()
        client.wait()
    found: dict[str, Any] = json.loads(text)
    found["processor"] = (spent + found.pop("client")) / options.requests * 1000
    return found


def serve() -> None:
    """Run the service until it is killed."""
    topics = ServiceTopics(service.settings, service.names, output_topics(Payments, service.names))
    topics.create("beginning", partitions=PARTITIONS)
    with service:
        while len([each for each in service.status()["partitions"] if each.get("live")]) < PARTITIONS:
            time.sleep(0.05)
        print("ready", flush=True)
        while True:
            time.sleep(60)


async def measure(ask: Ask, alone: int, requests: int, in_flight: int) -> dict[str, Any]:
    """Ask one after the other, then `in_flight` at a time; check the answers."""
    answers = [await ask(each) for each in range(ACCOUNTS, ACCOUNTS + 64)]  # warm
    seconds = []
    for each in range(alone):
        began = time.perf_counter()
        answers.append(await ask(each))
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)  # the partition is idle again
    numbers, late = iter(range(requests)), list[float]()

    async def asker() -> None:
        for each in numbers:
            began = time.perf_counter()
            answers.append(await ask(each))
            late.append(time.perf_counter() - began)

    print("loaded", flush=True)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(asker() for _ in range(in_flight)))
    took, used = time.perf_counter() - began, time.process_time() - used
    seconds.sort()
    late.sort()
    return {
        "alone_p50": seconds[len(seconds) // 2] * 1000,
        "alone_p99": seconds[len(seconds) * 99 // 100] * 1000,
        "rate": requests / took,
        "p50": late[len(late) // 2] * 1000,
        "p99": late[len(late) * 99 // 100] * 1000,
        "client": used,
        "good": _right(answers),
    }


def _right(answers: list[tuple[str, int, int]]) -> bool:
    """Return whether each account has answered its payments 1 to N, each once; each payment is of 1."""
    numbers: dict[str, list[int]] = {}
    for account, balance, number in answers:
        if balance != number:
            return False
        numbers.setdefault(account, []).append(number)
    return all(sorted(each) == list(range(1, len(each) + 1)) for each in numbers.values())


async def ask_statehold(alone: int, requests: int, in_flight: int) -> dict[str, Any]:
    """Ask with a `Client`."""
    async with Client(service.name, load(), input=service.input, value=Payment) as client:

        async def ask(each: int) -> tuple[str, int, int]:
            account = f"a{each % ACCOUNTS}"
            booked = await client.ask(Payment(account, 1), key=account, reply=Booked, timeout=PATIENCE)
            return account, booked.balance, booked.number

        return await measure(ask, alone, requests, in_flight)


async def ask_restate(port: int, alone: int, requests: int, in_flight: int) -> dict[str, Any]:
    """Ask over HTTP/1.1 with kept connections and as little code as possible."""
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(each: int) -> tuple[str, int, int]:
        account = f"a{each % ACCOUNTS}"
        reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        body = b'{"amount":1}'
        writer.write(
            b"POST /Account/%s/book HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (account.encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        found = json.loads(await reader.readexactly(length))
        free.append((reader, writer))
        return account, found["balance"], found["number"]

    return await measure(ask, alone, requests, in_flight)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        counts = [int(each) for each in sys.argv[2:]]
        work = ask_statehold(*counts) if sys.argv[1] == "statehold" else ask_restate(int(sys.argv[1]), *counts)
        print(json.dumps(asyncio.run(work)))
