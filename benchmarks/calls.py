"""`script/bench calls`: answered calls/s of a service, against an asyncio loop by hand that keeps no state.

Each record makes one call of 50 ms. The service keeps a total per account and commits with each answer; the loop by
hand reads the records, awaits the same function and forgets the answer. Calls that do not end show the memory of each.
Next to Restate (`benchmarks.scored`) both are killed in the middle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.calls_app import Payment, answered, score, service
from benchmarks.report import Figures, console, show
from benchmarks.scored import against_restate
from statehold.admin.topics import ServiceTopics
from statehold.config import load
from statehold.dev import Cluster

ROOT: Final = Path(__file__).resolve().parents[1]
PARTITIONS: Final = 2
PATIENCE: Final = 600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `calls`."""
    parser.add_argument("--calls", type=int, default=60_000)
    parser.add_argument("--in-flight", type=int, default=1000, help="attempts at a time, in both programs")
    parser.add_argument("--held", type=int, default=10_000, help="calls in flight whose memory is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scored", type=int, default=20_000, help="records next to Restate, which gets a fifth; 0: none"
    )
    parser.add_argument("--only-scored", action="store_true", help="without the loop by hand")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 if a total is wrong."""
    rates: dict[str, list[float]] = {"statehold": [], "by hand, no state": []}
    seconds: dict[str, list[float]] = {name: [] for name in rates}
    good, figures = True, Figures("calls")
    if options.only_scored:
        with Cluster() as kafka:
            good = against_restate(kafka.bootstrap_servers, options, figures)
        figures.write()
        return 0 if good else 1
    with Cluster() as kafka:
        fill(kafka.bootstrap_servers, options.calls)
        for number in range(options.rounds):
            for name, mode in (("statehold", "service"), ("by hand, no state", "hand")):
                found = child(kafka.bootstrap_servers, mode, number, options.calls, options.in_flight)
                rates[name].append(found["rate"])
                seconds[name].append(found["processor"] / options.calls * 1000)
                good = good and found["good"]
                console.print(f"{name}: {found['rate']:,.0f} calls/s, {seconds[name][-1]:.3f} s per 1,000")
        held = child(kafka.bootstrap_servers, "hold", 99, options.held, options.held)
        good = (not options.scored or against_restate(kafka.bootstrap_servers, options, figures)) and good
    best, plain = (statistics.median(rates[name]) for name in rates)
    for name, each in rates.items():
        figures.add(name, statistics.median(each), "calls/s", each)
        figures.add(f"{name}: processor", statistics.median(seconds[name]), "s per 1,000 calls", seconds[name])
    figures.add("statehold against by hand", best / plain, "x")
    figures.add(f"memory of {options.held} calls in flight", held["bytes"] / 1e6, "MB")
    lines = [
        (name, f"{statistics.median(rates[name]):,.0f}", f"{statistics.median(seconds[name]):.3f}") for name in rates
    ]
    show("calls of 50 ms", ("", "answered/s", "processor s per 1,000"), lines)
    console.print(
        f"{options.held} calls in flight: {held['bytes'] / 1e6:.0f} MB; totals {'right' if good else 'WRONG'}"
    )
    figures.write()
    return 0 if good else 1


def fill(servers: str, number: int) -> None:
    """Write the records of all runs."""
    settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers})
    ServiceTopics(settings, service.names, []).create("beginning", partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for each in range(number):
        payment = Payment(each, f"a{each % 2000}", each % 997)
        producer.produce(service.input, msgspec.json.encode(payment), payment.account, partition=each % PARTITIONS)
    assert producer.flush(PATIENCE) == 0


def child(servers: str, mode: str, number: int, calls: int, in_flight: int) -> dict[str, Any]:
    """Measure in a process of its own."""
    environment = {
        "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
        "STATEHOLD_SERVICE__NAMESPACE": f"round{number}.",
        "STATEHOLD_CALLS__PENDING": str(max(5000, in_flight)),
        "STATEHOLD_CALLS__IN_FLIGHT": str(in_flight),
        "PYTHONPATH": str(ROOT),
        **({"BENCH_LATENCY": "3600"} if mode == "hold" else {}),
    }
    command = [sys.executable, "-m", "benchmarks.calls", mode, str(calls), str(in_flight)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, timeout=PATIENCE
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_service(calls: int) -> dict[str, Any]:
    """Handle all records and all answers."""
    ServiceTopics(service.settings, service.names, []).create("beginning", partitions=PARTITIONS)
    service.start()
    await_(lambda: taken() > 0)
    began, processor = time.perf_counter(), time.process_time()
    await_(lambda: taken() == calls and pending() == 0)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    service.stop()
    right = sum(each % 997 for each in range(calls))
    return {"rate": calls / seconds, "processor": processor, "good": answered[0] == right}


def hold(calls: int) -> dict[str, Any]:
    """Let calls be in flight, and return what they take."""
    ServiceTopics(service.settings, service.names, []).create("beginning", partitions=PARTITIONS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    service.start()
    await_(lambda: pending() >= calls)
    time.sleep(2.0)  # until the last ones have begun
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.write(1, json.dumps({"bytes": (after - before) * 1024}).encode() + b"\n")
    os._exit(0)


def live() -> list[dict[str, Any]]:
    return [each["live"] for each in service.status()["partitions"] if each.get("live")]


def taken() -> int:
    return sum(each["records"] for each in live())


def pending() -> int:
    found = live()
    return sum(each["calls"] for each in found) if len(found) == PARTITIONS else -1


def by_hand(servers: str, calls: int, in_flight: int) -> dict[str, Any]:
    """Read, await, forget."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "hand", "enable.auto.commit": False})
    consumer.assign([TopicPartition(service.input, number, 0) for number in range(PARTITIONS)])
    decode = msgspec.json.Decoder(Payment).decode

    async def run() -> float:
        room, ended = asyncio.Semaphore(in_flight), asyncio.Event()
        left, total = calls, 0

        async def one(payment: Payment) -> None:
            nonlocal left, total
            found = await score("", payment)
            total += found
            room.release()
            left -= 1
            if not left:
                ended.set()

        tasks, read, began = set(), 0, 0.0
        while read < calls:
            messages = await asyncio.to_thread(consumer.consume, 500, 0.1)
            began = began or time.perf_counter()
            for message in messages:
                await room.acquire()
                task = asyncio.create_task(one(decode(message.value() or b"")))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            read += len(messages)
        await ended.wait()
        assert total == sum(each % 997 for each in range(calls))
        return time.perf_counter() - began

    processor = time.process_time()
    seconds = asyncio.run(run())
    return {"rate": calls / seconds, "processor": time.process_time() - processor, "good": True}


def await_(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


if __name__ == "__main__":
    mode, calls, in_flight = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if mode == "hold":
        hold(calls)
    servers = os.environ["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"]
    print(json.dumps(run_service(calls) if mode == "service" else by_hand(servers, calls, in_flight)))
