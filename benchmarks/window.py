"""`script/bench window`: windows, sessions and deduplication by statehold and two peers."""

from __future__ import annotations

import argparse

from benchmarks.peers import rounds
from benchmarks.peers.windows import CANDLES, HOPS, ONCE, VISITS

WORKS = {work.name: work for work in (CANDLES, HOPS, VISITS, ONCE)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `window`."""
    rounds.arguments(parser)
    parser.add_argument("--work", default=CANDLES.name, help=f"comma-separated: {','.join(WORKS)}")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a contender was wrong."""
    return rounds.run("window", [WORKS[name] for name in options.work.split(",")], options)
