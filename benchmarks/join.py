"""`script/bench join`: a stream-table and a stream-stream join by statehold, Kafka Streams and quixstreams."""

from __future__ import annotations

import argparse

from benchmarks.peers import rounds
from benchmarks.peers.joins import ENRICH, MATCH

WORKS = {work.name: work for work in (ENRICH, MATCH)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `join`."""
    rounds.arguments(parser)
    parser.add_argument("--work", default=",".join(WORKS), help="which of the joins, comma-separated")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a contender was wrong."""
    return rounds.run("join", [WORKS[name] for name in options.work.split(",")], options)
