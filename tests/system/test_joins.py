"""A join of two inputs on a real broker, whose process is killed and stopped again and again."""

from __future__ import annotations

import random
from functools import partial

import pytest
from tests.support import verify
from tests.support.apps.joined import ask, bid
from tests.support.apps.tally import Event
from tests.support.joins import Ask, Bid, BruteForce
from tests.support.processes import Process, await_true
from tests.support.stage import StageFactory
from tests.system.test_several_inputs import GAPS, Pair

pytestmark = pytest.mark.kafka


class JoinedProcess(Process):
    command = ("-m", "tests.support.apps.joined")


@pytest.mark.long
def test_killed_while_two_inputs_are_joined(stages: StageFactory) -> None:
    """Each pair, unmatched record and late record comes out once, as a comparison of all pairs says."""
    # Ticks would come between the records, and their place is not in the outputs.
    settings = {**GAPS, "STATEHOLD_TIMERS__IDLE": "3600"}
    pair, source, gaps = Pair(stages(1)).create_topics(**settings), random.Random(5), 0
    environment = pair.stage.environment(PROBE_SECOND=pair.second, **settings)
    process = JoinedProcess("joined", pair.stage.directory, environment)
    pair.stage.processes["joined"] = process
    fed: dict[int, tuple[Bid | Ask | None, int]] = {}
    for number in range(4):
        process.start().await_live(0)
        gaps += sum(each["records"] for each in process.events("replayed"))
        reached = pair.handled()
        for topic in source.sample(pair.names.inputs, 2):
            # Four seconds of records; some are up to five seconds older than the newest.
            newest = sorted(source.randrange(4000) for _ in range(250))
            times = [number * 4000 + time - source.choice([0, 0, 0, 300, 1500, 5000]) for time in newest]
            for offset, moment in enumerate(times, pair.feeders[topic].fed):
                made = bid if topic == pair.names.input else ask
                value = made(offset, Event(0, (offset % 250) % 97))  # as `Pair.produce` numbers them
                fed[value.id] = value, pair.begin + moment
            pair.produce(topic, times)
        await_true(partial(pair.has_handled, reached + 300), "300 more records committed")
        if number % 2:
            assert process.stop() == 0  # with a full snapshot, so the next owner restores rows and their indexes
        else:
            process.kill()  # with a gap, which the next owner replays
    process.start().await_live(0)
    pair.await_all()
    assert process.stop() == 0
    assert gaps > 0, "nothing was replayed, so nothing was shown"
    (lines,) = verify.read_all(pair.stage.servers, pair.stage.output).values()
    said = [row.value.decode() for row in lines]
    order = [int(line.split()[1]) for line in said if line.startswith("record")]
    assert sorted(order) == sorted(fed)
    expected = BruteForce([fed[number] for number in order]).said()
    assert said == expected
    for kind in ("inner late", "left left", "outer right", "inner 1"):
        assert any(line.startswith(kind) for line in said), f"no line {kind!r}, so less was shown"
