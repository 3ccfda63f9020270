"""`script/bench window`: tumbling windows with grace by statehold, Kafka Streams and quixstreams."""

from __future__ import annotations

import argparse

from benchmarks.peers import rounds
from benchmarks.peers.windows import CANDLES


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `window`."""
    rounds.arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a contender was wrong."""
    return rounds.run("window", [CANDLES], options)
