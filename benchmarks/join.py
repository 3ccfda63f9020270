"""`script/bench join`: stream-table, inner and outer stream-stream joins by statehold and two peers."""

from __future__ import annotations

import argparse

from benchmarks.peers import rounds
from benchmarks.peers.joins import ENRICH, MATCH, PAIRS

WORKS = {work.name: work for work in (ENRICH, MATCH, PAIRS)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `join`."""
    rounds.arguments(parser)
    parser.add_argument("--work", default=f"{ENRICH.name},{MATCH.name}", help=f"comma-separated: {','.join(WORKS)}")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a contender was wrong."""
    return rounds.run("join", [WORKS[name] for name in options.work.split(",")], options)
