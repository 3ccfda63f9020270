"""Joins and windows of statehold, Kafka Streams and quixstreams on the same inputs, record by record.

docs/explanation/comparison.md has the differences in a table; each row is one of these scenarios. A failure after an
upgrade of a peer means that the table is to be changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks import environments
from benchmarks.load import FIRST_MS
from benchmarks.peers.joins import ENRICH, MATCH
from benchmarks.peers.windows import CANDLES
from tests.other_frameworks import scenarios
from tests.other_frameworks.contenders import Filled, fill, outputs
from tests.support.brokers import started

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long]

Outputs = dict[str, list[tuple[Any, ...]]]
#: the input is from 2023, which a broker's retention would delete
_KEPT = {"log.retention.check.interval.ms": "3600000"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    try:
        environments.python_of("quix")
        environments.streams_class_path()
    except environments.Skipped as reason:
        pytest.skip(str(reason))
    with started(lambda: Cluster(settings=_KEPT)) as cluster:
        yield cluster.bootstrap_servers


def all_three(filled: Filled, **more: Any) -> tuple[Outputs, Outputs, Outputs]:
    return outputs(filled, "statehold", **more), outputs(filled, "streams", **more), outputs(filled, "quix", **more)


def agree(found: tuple[Outputs, Outputs, Outputs], *names: str) -> None:
    ours, streams, quix = found
    for name in names:
        assert ours[name], name
        assert ours[name] == streams[name] == quix[name], name


def test_tumbling_windows(bootstrap: str) -> None:
    filled = fill(bootstrap, CANDLES, scenarios.WINDOWS)
    found = ours, streams, quix = all_three(filled)
    by_key = outputs(filled, "quix", closing="key")
    agree(found, "edges", "late", "late-unopened", "other-key")
    assert ours["same"] == streams["same"], "of one end, in the order of their keys"
    assert len(ours["same"]) == 40
    assert sorted(ours["same"]) == sorted(quix["same"]), "quixstreams has another order"
    assert by_key["other-key"] == [], "its default waits for a record of the same key"
    assert len(by_key["same"]) == 35
    assert ours["open"] == streams["open"] == quix["open"] == []
    idle = outputs(filled, "statehold", settings={"timers": {"idle": 1.0}}, rest=5.0)
    assert idle["open"] == [("a", "open/a", FIRST_MS, 1, 1, 1, 1, 1)], "an idle partition follows the clock"


def test_inner_joins_of_two_streams(bootstrap: str) -> None:
    found = ours, streams, quix = all_three(fill(bootstrap, MATCH, scenarios.INNER))
    agree(found, "same", "edges", "in-grace")
    assert len(ours["same"]) == 308
    first, second = ("a", "older/a", "f1", 1), ("a", "older/a", "f2", 1)
    assert ours["older"] == streams["older"] == [first, second]
    assert quix["older"] == [first], "a record does not join a partner that came first with a later timestamp"
    for name, late in (("late", ("a", "late/a", "f2", 1)), ("partner-over", ("a", "partner-over/a", "f2", 1))):
        other = ("b", f"{name}/b", "f1", 1)
        assert ours[name] == [other], "a record that is over joins nothing"
        assert streams[name] == quix[name] == [other, late], "they join it with what their stores still have"
    assert sorted(ours["tie"]) == sorted(streams["tie"]) == sorted(quix["tie"])
    assert [row[2:] for row in ours["tie"]] == [("f1", 1), ("f1", 2), ("f2", 1), ("f2", 2)], "orders come first"


def test_outer_joins_of_two_streams(bootstrap: str) -> None:
    filled = fill(bootstrap, MATCH, scenarios.OUTER)
    ours, streams, quix = all_three(filled, join="outer")
    left, right = ("a", "unmatched/a", "", 0), ("b", "", "f1", 0)
    assert ours["unmatched"] == [left, right], "when its time is over"
    assert streams["unmatched"] == [], "at most once per second, by the clock, and only with a further record"
    assert quix["unmatched"] == [left, right, ("c", "unmatched/c", "", 0)], "at once"
    pair = ("a", "pair-later/a", "f1", 1)
    assert ours["pair-later"] == streams["pair-later"] == [pair]
    assert quix["pair-later"] == [("a", "pair-later/a", "", 0), pair], "unmatched at first, then the pair"
    assert ours["at-the-edge"] == [("a", "at-the-edge/a", "", 0)], "70,001 ms later, not 70,000"
    assert ours["late"] == []
    assert streams["late"] == [("a", "late/a", "", 0)], "a late record is reported as unmatched"
    assert quix["late"] == [("b", "late/b", "", 0), ("a", "late/a", "", 0)]
    assert ours["open"] == streams["open"] == []
    assert quix["open"] == [("a", "open/a", "", 0)]


def test_joins_of_a_stream_and_a_table(bootstrap: str) -> None:
    found = ours, streams, quix = all_three(fill(bootstrap, ENRICH, scenarios.TABLE), join="left")
    agree(found, "same", "no-price")
    assert len(ours["same"]) == 200
    assert ours["tie"][0] == ("a", "t1", "tie/a", -1, 0), "the input that is declared first comes first"
    assert ours["older-price"] == streams["older-price"] == [("a", "t1", "older-price/a", 2, 2)], "the last to come"
    assert quix["older-price"] == [("a", "t1", "older-price/a", 1, 1)], "the newest by time"
    assert ours["older-trade"][1] == streams["older-trade"][1] == ("a", "t2", "older-trade/a", 1, 1)
    assert quix["older-trade"][1] == ("a", "t2", "older-trade/a", -1, 0), "the price at the trade's time"


def test_a_deleted_row_of_a_table_joins_nothing(bootstrap: str) -> None:
    found = all_three(fill(bootstrap, ENRICH, scenarios.DELETED), join="left")
    agree(found, "deleted")
