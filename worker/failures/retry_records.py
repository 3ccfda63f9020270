"""Handle a record of a retry topic, live or in a replay, and find records that the code no longer reads."""

from __future__ import annotations

from statehold.bound.policies import retry_topics
from statehold.errors import StateholdError
from statehold.messages.retry_record import Retried
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.handler.engine import Engine


def log_unread_retries(tools: Tools, engine: Engine, reader: Reader, record: CommitRecord) -> None:
    """Log records that wait for a delay that the code no longer has; they stay on their topic."""
    place, kind = tools.place, type(engine.handler)
    read = retry_topics(kind, place.names)
    for topic, position in record.positions.items():
        if not place.names.is_for_retries(topic) or topic in read:
            continue
        try:
            start, end = reader.bounds(topic, place.partition)
            waits = any(reader.read(topic, place.partition, max(start, position), end))
        except (StateholdError, OutOfRange) as error:  # because an unused topic must not fail the partition
            tools.log.warning("kafka_retry", doing=f"check whether records wait on {topic}", cause=str(error))
            continue
        if waits:
            delay = topic.removeprefix(place.names.retries)
            tools.log.error(
                "retries_unread",
                topic=topic,
                offset=position,
                cause=f"records wait there for a delay that {kind.__name__}.on_failure no longer has, so they are not "
                f"read. Nothing is lost. Next: add retry_later({delay}) again until `statehold lag` counts no records",
            )


def handle(engine: Engine, topic: str, retried: Retried) -> None:
    """Carry out the record's decision, or hand it to the handler again. :raises HandlingFailed: it fails again."""
    dead_letters = engine.dead_letters
    assert dead_letters is not None
    decision = dead_letters.decisions.get((topic, retried.at))
    if decision is not None:
        dead_letters.carry_out(decision, retried.message)
        return
    dead_letters.handled()
    engine.handle_again(retried.message)
