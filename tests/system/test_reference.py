"""Reference data under SIGKILL: a replay computes what the outputs say was seen live; versions never go back."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.support import verify
from tests.support.apps.priced import Priced
from tests.support.apps.tally import Event
from tests.support.local_service import Local
from tests.support.processes import Process
from tests.support.stage import Stage, StageFactory

from statehold.errors import TopicMismatch, TopicMissing

pytestmark = [pytest.mark.kafka, pytest.mark.long]

ENVIRONMENT = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "30", "STATEHOLD_COMMIT__MAX_RECORDS": "200"}


class PricedProcess(Process):
    command = ("-m", "tests.support.apps.priced")


def create(stage: Stage, rates: str, **settings: str) -> None:
    (future,) = stage.admin.create_topics([NewTopic(rates, 2, config=settings)]).values()
    future.result(30)


def publish(stage: Stage, rates: str, rate: int) -> None:
    producer = Producer({"bootstrap.servers": stage.servers})
    producer.produce(rates, b"%d" % rate, b"rate")
    assert producer.flush(60) == 0


def test_killed_between_deltas_while_the_rates_change(stages: StageFactory) -> None:
    stage = stages(2).create_topics(STATEHOLD_SNAPSHOT__DELTA_INTERVAL="30")
    rates = f"rates-{stage.names.input}"
    create(stage, rates, **{"cleanup.policy": "compact"})
    publish(stage, rates, 1)
    process = PricedProcess("priced", stage.directory, stage.environment(**ENVIRONMENT, PROBE_RATES=rates))
    stage.processes["priced"] = process
    gaps = 0
    for rate in range(2, 5):
        process.start().await_live(0, 1, seconds=120)
        gaps += sum(event["records"] for event in process.events("replayed"))
        stage.feed(2000)
        stage.await_all()
        publish(stage, rates, rate)
        with stage.load(per_second=1000):  # the new rate is seen, in the midst of it
            stage.await_progress()
            stage.await_progress()
            process.kill()
        publish(stage, rates, 100 * rate)  # the replay must not see this one, live must
    process.start().await_live(0, 1, seconds=120)
    gaps += sum(event["records"] for event in process.events("replayed"))
    stage.await_all()
    assert gaps > 0, "nothing was replayed, so nothing was shown"
    assert process.stop() == 0
    check(stage)


def check(stage: Stage) -> None:
    """Each record answered once, each total the sum of amounts at the rates that the answers name, in order."""
    events = {
        (partition, row.offset): (msgspec.json.decode(row.value or b"", type=Event), row.key)
        for partition, rows in verify.read_all(stage.servers, stage.names.input).items()
        for row in rows
    }
    found = verify.read_all(stage.servers, stage.output).values()
    answers = [msgspec.json.decode(row.value or b"", type=Priced) for rows in found for row in rows]
    assert sorted((each.partition, each.offset) for each in answers) == sorted(events)
    totals: dict[str, int] = defaultdict(int)
    newest: dict[int, int] = defaultdict(int)
    for answer in sorted(answers, key=lambda each: (each.partition, each.offset)):
        event, key = events[answer.partition, answer.offset]
        totals[key] += event.amount * answer.rate
        assert answer.total == totals[key], (answer, key)
        assert ORDER.index(answer.rate) >= newest[answer.partition], "an older version after a newer one"
        newest[answer.partition] = ORDER.index(answer.rate)
    assert len({each.rate for each in answers}) > 2


ORDER = [1, 2, 200, 3, 300, 4, 400]


def test_a_topic_that_is_missing_or_not_compacted_is_rejected_at_the_start(stages: StageFactory) -> None:
    from tests.support.apps.priced import priced

    stage = stages(1).create_topics()
    for settings, error in ({}, TopicMissing), ({"cleanup.policy": "delete"}, TopicMismatch):
        rates = f"rates-{error.__name__.lower()}-{stage.names.input}"
        if settings:
            create(stage, rates, **settings)
        local = Local(stage)
        local.service.handler = priced(stage.output, rates)
        with pytest.raises(error, match="reference topic"):
            local.service.start()
