"""Tools that read a state of two inputs on a real broker: replay, points in time, proofs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.apps import chained
from tests.support.stage import StageFactory
from tests.system.test_several_inputs import SHORT, Pair

from statehold.admin.inspection.replay_check import replay
from statehold.admin.inspection.topic_view import topic_view
from statehold.ops.cli.inspect.prove import _head, _recomputed
from statehold.snapshot.inspect import proof

pytestmark = pytest.mark.kafka


def test_tools_read_both_inputs(stages: StageFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs, so there are two full snapshots; the records of the second one come in turns."""
    pair = Pair(stages(1)).create_topics()
    settings, names = pair.stage.settings(), pair.names
    for begin in (0, 1000):
        process = pair.process("recorded", **SHORT).start()
        process.await_live(0)
        pair.produce(names.input, list(range(begin, begin + 600, 3)))
        pair.produce(pair.second, list(range(begin + 1, begin + 600, 2)))
        pair.await_all()
        assert process.stop() == 0
    with topic_view(settings, names) as view:
        replayed = replay(view, pair.service().handler, 0, None, None)
        assert (replayed.start, replayed.end, replayed.records, replayed.outputs) == (500, 1000, 500, 500)
        assert replayed.differences == []

        moment = datetime.fromtimestamp((pair.begin + 1000) / 1000, UTC).isoformat()
        assert view.point(0, moment).value == 500
        assert view.state(0, moment).position == 500

        given: dict[str, Any] = {
            **_head(view, "latest"),
            "partitions": [proof.partition(0, view.state(0, "latest"), names.inputs)],
        }
        assert given["partitions"][0]["positions"] == {names.input: 400, pair.second: 600}
        assert _recomputed(given, settings) == []
        other_ids = {**given["input_ids"], pair.second: "another"}
        (fault,) = _recomputed({**given, "input_ids": other_ids}, settings)
        assert fault.startswith(f"topic {pair.second} was deleted and created again")
        given["partitions"][0]["positions"] = {names.input: 399, pair.second: 601}
        (fault,) = _recomputed(given, settings)
        assert fault.startswith("partition 0: positions is ")

        right = chained.following
        monkeypatch.setattr(
            chained, "following", lambda link, topic, at, amount: right(link, topic, at, amount + (at == 430))
        )
        wrong = replay(view, pair.service().handler, 0, None, None)
        assert wrong.differences[0].text.startswith(f"{pair.second}[0]@430: ")
