"""The demo: kills the service while it merges trades and prices, restarts it, and verifies every output.

`python -m examples.risk.demo` prints `demo ok` and exits with 0 only if nothing is lost, duplicated or different.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import time

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from examples.feeding import Feed
from examples.held import held_by
from examples.risk.app import Price, Risk, Trade
from examples.risk.market import LIMITS, ticks
from examples.risk.verify import verify
from examples.running import ServiceProcess, statehold, wait_until
from examples.topics import Progress
from statehold.common.names import Names
from statehold.dev import Cluster

TARGET = "examples.risk.app:service"
CONFIG = "examples/risk/risk.toml"
PARTITIONS = 2
PATIENCE = 60.0
"""Timeout of each step in seconds."""


def create_topics(servers: str) -> None:
    """Create the limits, which belong to another team, and then the service's topics."""
    limits = NewTopic("limits", 1, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([limits])["limits"].result(PATIENCE)
    statehold(servers, f"topics create {TARGET} --start-at beginning --partitions {PARTITIONS}")


def feed(servers: str, count: int, seed: int) -> int:
    """Write the limits, the trades and the prices; return how many trades and prices."""
    begin = (int(time()) - 7200) * 1000
    encode = msgspec.json.encode
    market = [(key.encode(), value, timestamp) for key, value, timestamp in ticks(count, seed=seed, begin=begin)]
    Feed(servers, "limits").send((account.encode(), b"%d" % limit) for account, limit in LIMITS.items())
    for topic, kind in (("trades", Trade), ("prices", Price)):
        Feed(servers, topic).send((key, encode(value), at) for key, value, at in market if isinstance(value, kind))
    return len(market)


def play(servers: str, process: ServiceProcess, count: int, seed: int) -> bool:
    """Run all steps in order; return whether the verifier found no difference."""
    create_topics(servers)
    fed = feed(servers, count, seed)
    print(f"fed        {fed:,} trades and prices, before the start, so their order is a merge by timestamp")
    processed = both(Progress(servers, "risk", "trades"), Progress(servers, "risk", "prices"))

    process.start()
    wait_until(lambda: processed() >= 0.4 * fed, "40 % of the records", PATIENCE, process)
    process.kill()
    done = processed()
    print(f"kill -9    at {done:,} of {fed:,} records")
    if done == fed:
        raise RuntimeError("the kill came after the last record; feed more with --ticks")

    process.start()
    wait_until(lambda: len(process.live()) == PARTITIONS, "all partitions live", PATIENCE, process)
    replayed = sum(event.fields["records"] for event in process.events() if event.name == "replayed")
    print(f"restarted  {replayed:,} records replayed in the order that the commit records hold")
    wait_until(lambda: processed() >= fed, "all records", PATIENCE, process)
    if code := process.stop(PATIENCE):
        raise RuntimeError(f"the service did not stop cleanly, exit code {code}")

    findings = verify(servers, held_by(servers, Names("risk", "trades", others=("prices",)), Risk))
    print("\n".join([*map(str, findings), *(each.first for each in findings if each.first)]))
    return all(each.ok for each in findings) and all(each.seen for each in findings[:3])


def both(trades: Progress, prices: Progress) -> Callable[[], int]:
    """Return a function that returns how many records of both inputs have committed."""
    return lambda: trades.position() + prices.position()


def main() -> int:
    """Run the demo in a temporary directory with its own broker. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.risk.demo")
    parser.add_argument("--ticks", type=int, default=10_000, help="five prices and a trade each")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="statehold-demo-") as directory, Cluster() as kafka:
        process = ServiceProcess(TARGET, kafka.bootstrap_servers, Path(directory), "risk", "--config", CONFIG)
        try:
            ok = play(kafka.bootstrap_servers, process, options.ticks, options.seed)
        except Exception as error:  # noqa: BLE001 (printed after the service's log)
            print(process.tail(), f"{type(error).__name__}: {error}", sep="\n")
            ok = False
        finally:
            process.kill()
    print("demo ok" if ok else "demo failed")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
