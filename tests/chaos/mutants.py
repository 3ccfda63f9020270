"""statehold broken on purpose, one way at a time: the harness must notice each. In tests only."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any


def install(name: str) -> None:
    """Break this process; nothing for an empty name."""
    if name:
        MUTANTS[name]()


def no_fence() -> None:
    """Random transactional ids, and offsets sent without the group's word: nothing shuts an older owner out."""
    from statehold.common.names import Names
    from statehold.kafka.clients.producer import KafkaTransactions

    ids, stranger = Names.transactional_id, _stranger()

    def random_id(self: Names, partition: int) -> str:
        return f"{ids(self, partition)}.{uuid.uuid4().hex[:8]}"

    send_offsets = KafkaTransactions.send_offsets

    def unchecked(self: KafkaTransactions, positions: Any, membership: Any) -> None:
        send_offsets(self, positions, stranger())

    Names.transactional_id = random_id  # type: ignore[method-assign]
    KafkaTransactions.send_offsets = unchecked  # type: ignore[method-assign]


def _stranger() -> Callable[[], Any]:
    """Group metadata of a client that is no member: the broker then checks no generation."""
    from confluent_kafka import Consumer

    made: dict[str, Any] = {}

    def metadata() -> Any:
        import json
        import sys
        from pathlib import Path

        if not made:
            job = json.loads(Path(sys.argv[1]).read_text())
            made["client"] = Consumer({"bootstrap.servers": job["bootstrap"], "group.id": job["service"]})
            made["metadata"] = made["client"].consumer_group_metadata()
        return made["metadata"]

    return metadata


def commit_record_before_fence() -> None:
    """The last mark is read first, as far as it is committed; then the fence."""
    from statehold.kafka.clients.reader import KafkaReader
    from statehold.worker.recovery.recovery import Recovery

    fence, restore, bounds = Recovery.fence, Recovery.restore, KafkaReader.bounds
    behind = Recovery._offset_behind

    def early(self: Any, ascertain: Any) -> Any:
        KafkaReader.bounds = _stable_bounds  # type: ignore[method-assign]
        Recovery._offset_behind = lambda *_: False  # type: ignore[method-assign]
        try:
            self._early = restore(self)
        finally:
            KafkaReader.bounds = bounds  # type: ignore[method-assign]
            Recovery._offset_behind = behind  # type: ignore[method-assign]
        return fence(self, ascertain)

    def late(self: Any) -> Any:
        return self._early

    # The partition makes a new Recovery between fence and restore: it takes the early state along.
    made = Recovery.__init__
    kept: dict[int, Any] = {}

    def init(self: Any, tools: Any, signals: Any) -> None:
        made(self, tools, signals)
        if id(signals) in kept:
            self._early = kept[id(signals)]

    def keeping(self: Any, ascertain: Any) -> Any:
        fenced = early(self, ascertain)
        kept[id(self._signals)] = self._early
        return fenced

    Recovery.__init__ = init  # type: ignore[method-assign]
    Recovery.fence = keeping  # type: ignore[method-assign]
    Recovery.restore = late  # type: ignore[method-assign]


def _stable_bounds(self: Any, topic: str, partition: int) -> tuple[int, int]:
    from confluent_kafka import IsolationLevel, TopicPartition

    from statehold.kafka.admin.futures import EARLIEST, LATEST

    ends = []
    for spec in (EARLIEST, LATEST):
        place = TopicPartition(topic, partition)
        asked = self._admin.client.list_offsets({place: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        ends.append(asked[place].result(10).offset)
    return ends[0], ends[1]


def commit_on_lost() -> None:
    """A partition that the group took away is drained as if it had been revoked."""
    import time

    from statehold.worker.partition import PartitionWorker

    def drain(self: PartitionWorker) -> None:
        self.revoke(time.monotonic() + 10, final=False)

    PartitionWorker.lose = drain  # type: ignore[method-assign]


def no_rollback() -> None:
    """After an abort the tables keep what the aborted transaction wrote."""
    from statehold.worker.handler.engine import Engine

    def forget_all_but_tables(self: Engine) -> None:
        self.outputs.clear()
        self.effects.forget()
        self.take_commands()
        self._handling.record = None

    Engine.rollback = forget_all_but_tables  # type: ignore[method-assign]


def no_suspicion() -> None:
    """A producer whose commit request may still be under way is used again."""
    from statehold.kafka.common.producer_suspicion import Suspicion

    def ignore(self: Suspicion, reason: str) -> None:
        return

    Suspicion.suspect = ignore  # type: ignore[method-assign]


def effects_in_replay() -> None:
    """Side effects of a replay are pending like any other."""
    from statehold.worker.handler.effect_recorder import EffectRecorder

    note = EffectRecorder.note

    def loud(self: EffectRecorder, function: Any, args: tuple[Any, ...], keywords: Any) -> None:
        replaying, self._handler.replaying = self._handler.replaying, False
        note(self, function, args, keywords)
        self._handler.replaying = replaying

    EffectRecorder.note = loud  # type: ignore[method-assign]


def reset_to_earliest() -> None:
    """Where the input's position is gone, reading continues where the topic begins now."""
    from statehold.config import client

    consumer = client.consumer

    def lenient(*args: Any, **kwargs: Any) -> Any:
        return {**consumer(*args, **kwargs), "auto.offset.reset": "earliest"}

    client.consumer = lenient


def no_record_follows() -> None:
    """Later records of a key that has a dead letter are handled."""
    from statehold.worker.handler.dead_letters import DeadLetterBook

    takes = DeadLetterBook.takes

    def judged_only(self: DeadLetterBook, message: Any, *, command: bool) -> bool:
        return (
            takes(self, message, command=command) and (message.topic() or "", message.offset() or 0) in self.decisions
        )

    DeadLetterBook.takes = judged_only  # type: ignore[method-assign]


def undecided() -> None:
    """The decision about a failed record is in no delta: a replay meets the record, and decides again."""
    from statehold.worker.full_snapshots.deltas import SnapshotPolicy

    due = SnapshotPolicy.delta_due

    def only_in_time(self: SnapshotPolicy, now: float) -> bool:
        self.force_delta = False
        return due(self, now)

    SnapshotPolicy.delta_due = only_in_time  # type: ignore[method-assign]


def retries_forgotten() -> None:
    """The commit record has no positions of the retry topics: the next owner reads them again."""
    from statehold.worker.transaction.pipeline import TransactionPipeline

    side_inputs = TransactionPipeline._side_inputs

    def without_retries(self: TransactionPipeline) -> Any:
        return side_inputs(self)._replace(retries={})

    TransactionPipeline._side_inputs = without_retries  # type: ignore[method-assign]


def failed_skipped() -> None:
    """A record that parks its partition, or stops its service, is passed over when it comes again."""
    from tests.chaos.failing import Parks, Stops

    from statehold.worker.handler.engine import Engine
    from statehold.worker.handler.record_failure import HandlingFailed

    run, failed = Engine.run, set[tuple[int, int]]()

    def forgetful(self: Engine, messages: Any, *, one_by_one: bool = False) -> int:
        kept = [each for each in messages if (each.partition(), each.offset()) not in failed]
        try:
            handled = run(self, kept, one_by_one=one_by_one) if kept else 0
        except HandlingFailed as poison:
            if isinstance(poison.error.__cause__, Parks | Stops):
                failed.add((messages[0].partition(), poison.offset))
            raise
        return handled + len(messages) - len(kept)

    Engine.run = forgetful  # type: ignore[method-assign]


def runs_not_recorded() -> None:
    """The commit record does not keep the order of its records; a replay merges them by time again."""
    from statehold.api.record import MergedMessage
    from statehold.worker.inputs.recorded_order import RecordedOrder
    from statehold.worker.transaction.record_buffer import RecordBuffer

    reach = RecordBuffer.reach

    def without_runs(self: RecordBuffer, *args: Any) -> Any:
        return reach(self, *args)[0], b""

    def by_time(self: RecordedOrder, recorded: Any) -> Any:
        heads = [next(records, None) for records in self._records]
        while any(head is not None for head in heads):
            times = [(head.timestamp()[1], i) for i, head in enumerate(heads) if head is not None]
            index = min(times)[1]
            message: Any = heads[index]
            at = self._position - self._positions[index] + message.offset()
            self._positions[index], self._position = message.offset() + 1, at + 1
            heads[index] = next(self._records[index], None)
            yield [MergedMessage(message, index, at)]

    RecordBuffer.reach = without_runs  # type: ignore[method-assign, assignment]
    RecordedOrder.batches = by_time  # type: ignore[method-assign]


def input_skipped() -> None:
    """An input whose next record is not known is not waited for, though the broker may have one."""
    from statehold.worker.inputs.merge import Merge

    Merge.waits = lambda *_: 0.0  # type: ignore[method-assign]


def ties_by_chance() -> None:
    """Which of two records with equal times comes first is drawn."""
    import random

    from statehold.worker.inputs.merge import Merge

    add = Merge.add

    def with_chance(self: Merge, index: int, messages: Any) -> None:
        add(self, index, messages)
        ranks: Any = self._queues[index].ranks
        for place in range(len(ranks) - len(messages), len(ranks)):
            ranks[place] += random.random() / 2

    Merge.add = with_chance  # type: ignore[method-assign, assignment]


def hop_uncommitted() -> None:
    """A partition reads what its own service sends to it before the sender has committed."""
    from statehold.kafka.feeds.input_feed import InputFeed

    config = InputFeed._config

    def uncommitted(self: InputFeed) -> dict[str, Any]:
        read = {"isolation.level": "read_uncommitted"} if self.topic.endswith(".rekey") else {}
        return {**config(self), **read}

    InputFeed._config = uncommitted  # type: ignore[method-assign]


def id_forgotten() -> None:
    """An owner knows only the ids that it has handled itself: those of its predecessor take effect again."""
    from statehold.api.output import StoredReply
    from statehold.messages.request import value_hash
    from statehold.worker.handler.request_book import RequestBook

    take, known = RequestBook._take, set[tuple[int, Any]]()

    def forgetful(self: RequestBook, call: Any, record: Any) -> None:
        asked, mine = record.asked, (id(self), record.request)
        if asked is None or mine in known or asked.request not in self.replies:
            known.add(mine)
            take(self, call, record)
        else:
            known.add(mine)
            row = StoredReply(value_hash(record.message.value()), record.offset, waiting=(asked.address,))
            self.replies.keep(asked.request, row)
            call(record)

    RequestBook._take = forgetful  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "no-fence": no_fence,
    "mark-before-fence": commit_record_before_fence,
    "commit-on-lost": commit_on_lost,
    "no-rollback": no_rollback,
    "no-suspicion": no_suspicion,
    "effects-in-replay": effects_in_replay,
    "reset-to-earliest": reset_to_earliest,
    "no-record-follows": no_record_follows,
    "undecided": undecided,
    "retries-forgotten": retries_forgotten,
    "failed-skipped": failed_skipped,
    "runs-not-recorded": runs_not_recorded,
    "input-skipped": input_skipped,
    "ties-by-chance": ties_by_chance,
    "hop-uncommitted": hop_uncommitted,
    "id-forgotten": id_forgotten,
}
