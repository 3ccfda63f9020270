"""Run a handler without Kafka on the worker's code: engine, transactions, commit records, snapshots, restore."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

import msgspec

from statehold.admin.state.split_merge import SplitMerge, TablesFunction
from statehold.api.handler import Handler, HandlerFactory
from statehold.api.output import Headers, Output
from statehold.api.record import Message
from statehold.api.reference import Reference
from statehold.api.sink import Sink
from statehold.api.table import Dedupe, Table
from statehold.api.values import serde
from statehold.bound.attributes import sinks_of, tables_and_outputs
from statehold.bound.inputs import plain_inputs, value_types
from statehold.bound.output import origin_of
from statehold.bound.reference import references
from statehold.bound.rekey import rekeys_of, with_rekeys
from statehold.bound.topics import class_of, replies_of
from statehold.common.class_body import class_attributes
from statehold.common.names import Names
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import RecordError, UsageError
from statehold.messages import command
from statehold.messages.command import new_id
from statehold.messages.dead_letter import ADD, DISCARD, REPLAY, AddRequest, DeadLetter, waiting
from statehold.messages.request import answer_in, headers_of, no_answer, read_reply
from statehold.runtime.feature_checks import check_combinations, check_storage
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.store.base import StoreTrouble
from statehold.state.kinds.replies import RepliesTable
from statehold.testing.backup import BackupPartition, Beginning, write
from statehold.testing.golden import compare, text_of
from statehold.testing.lane import Lane
from statehold.testing.memory.calls import DriverCalls, OpenCall
from statehold.testing.memory.keys import key_encoders
from statehold.testing.memory.replacement import migrate_states
from statehold.testing.recorded import Recorded
from statehold.testing.replay import Replay
from statehold.testing.rerun import Past, Seen
from statehold.testing.stepped import EffectCall
from statehold.testing.wiring import Wiring
from statehold.worker.full_snapshots.stages import Writing

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_TICKS = 50
_TRANSACTION = 100
_MANUAL = 1_000_000
_FULL_TICKS = 1000
#: seconds until a tick looks again whether a store has written the chunks
_STORE = 1.0


class OutputRecord(NamedTuple, Generic[V]):
    """One committed output. `partition` is -1 where the key decides; `timestamp` is in milliseconds since 1970."""

    value: V
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    partition: int
    timestamp: int


class Driver(Wiring):
    """Feeds a handler and shows its results.

        driver = Driver(Clearing)
        driver.feed(Trade(...), key="ann")
        assert driver.outputs(Clearing.fills) == [Fill(...)]
        assert driver.table(Clearing.positions)["ann"] == Position(...)
        driver.crash()
        driver.restore()

    Everything happens on the calling thread, and time passes only in `advance`, so a test gives the same result each
    time. Development mode is on: a table value that is changed in place raises MutatedInPlace at the commit. Errors are
    those of the service, raised from `feed` (a record that cannot be handled) or from whatever commits.

    :param handler: the Handler class, or a function without arguments that makes one.
    :param delta_interval: "commit", seconds, or "off": as `snapshot.delta_interval`.
    :param batch: records that are handed to the handler at once; fewer at a commit.
    :param autocommit: commit every 100 records, and before `outputs`, `table`, `effects`, `replay` and `stop`. Without
        it only `commit` and `advance` do, as time does in the service.
    :param run_effects: call the functions given to `Handler.effect`; otherwise they are only noted in `effects`.
    :param run_calls: call the functions of the handler's `Call`s; otherwise `answer` and `fail` end them.
    :param output_partitions: what a `partitioner` of an Output gets.
    :param settings: the whole tree, instead of `delta_interval`, development mode and short transactions.
    """

    def __init__(
        self,
        handler: HandlerFactory,
        *,
        delta_interval: float | Literal["commit", "off"] = "commit",
        batch: int = 1,
        partitions: int = 1,
        autocommit: bool = True,
        run_effects: bool = False,
        run_calls: bool = False,
        settings: Settings | None = None,
        input: str = "input",
        inputs: Sequence[str] = (),
        output_partitions: int = 1,
    ) -> None:
        kind = class_of(handler)
        values = settings or Settings(
            service=ServiceSettings(mode="development"),
            snapshot=SnapshotSettings(delta_interval=delta_interval),
            commit=CommitSettings(max_records=max(_TRANSACTION, batch) if autocommit else _MANUAL, early=autocommit),
        )
        topics = list(inputs) or plain_inputs(kind) or [input]
        names = with_rekeys(Names(kind.__name__.lower(), topics[0], others=tuple(topics[1:])), kind)
        super().__init__(handler, values, names, partitions)
        check_combinations(kind, values.snapshot.delta_interval, topics)
        check_storage(kind, values)
        self._batch, self._autocommit = batch, autocommit
        self._encoders, self._key_encoders = _encoders(kind, names), key_encoders(handler, names)
        self._run_effects, self._run_calls, self._output_partitions = run_effects, run_calls, output_partitions

    # Feeding

    def feed(
        self,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int = 0,
        *,
        input: str = "",
    ) -> int:
        """Write a record to the input and return its offset. The handler gets it once `batch` records are there.

        `input` names one of several inputs. With `batch=1` their records are handled in the order of feeding; of a
        larger batch, and of what is fed after a `crash`, `inputs.order` decides.
        Bytes are taken as they are, anything else is encoded as the input's type, also in a key. `timestamp` is in
        milliseconds since 1970; by default the driver's clock.

        :raises RecordError: the record cannot be decoded or handled. It stays in the input: `withdraw` takes it out,
            `restore` tries it again.
        """
        lane = self._lane(partition)
        lane.live()
        topic = self._input(input)
        data = value if value is None or isinstance(value, bytes) else self._encoders[topic](value)
        moment = int(self.clock.wall() * 1000) if timestamp is None else timestamp
        offset = self.broker.log(topic, partition).append(data, self._key_encoders[topic](key), headers, moment)
        lane.deliver(flush=False)
        return offset

    @overload
    def ask(
        self, value: Any, key: Any, *, id: str = "", reply: None = None, partition: int = 0, timestamp: int = 0
    ) -> Any: ...

    @overload
    def ask(
        self, value: Any, key: Any, *, id: str = "", reply: type[V], partition: int = 0, timestamp: int = 0
    ) -> V: ...

    def ask(
        self,
        value: Any,
        key: Any,
        *,
        id: str = "",
        reply: Any = None,
        partition: int = 0,
        timestamp: int = 0,
    ) -> Any:
        """Ask the handler, as `Client.ask` does: feed a request, commit it, and return its answer.

        `id` is by default a new one. `reply` is the type of the answer, by default the declared one.

        :raises RequestFailed, RequestConflict: there is no answer. :raises NoAnswerInTime: the handler has not answered
            yet; ask again with the same id once it has.
        :raises RecordError: the record cannot be handled, and the partition has failed.
        """
        replies = self._replies()
        request, address = id or new_id(), new_id().encode()
        offset = self.feed(
            value, key, headers_of(request, address), timestamp or None, partition, input=self.names.input
        )
        self.commit()
        where: Any = {"id": request, "topic": self.names.input, "partition": partition, "offset": offset}
        for message in self.broker.log(self.names.replies, 0).committed():
            found = read_reply(message)
            if found is not None and found.address == address and message.partition() == partition:
                return answer_in(found, serde.for_messages(reply or replies.reply_type, self.names.replies), where)
        raise no_answer(0.0, where)

    def _replies(self) -> RepliesTable[Any]:
        found = replies_of(self._kind)
        if found is None:
            raise UsageError(
                f"{self._kind.__name__} answers no requests. Next: declare replies = Replies(TYPE, keep=1)"
            )
        return found

    def feed_all(self, values: Iterable[Any], key: Any = None, partition: int = 0, *, input: str = "") -> None:
        """Feed several values with one key, or none."""
        for value in values:
            self.feed(value, key, partition=partition, input=input)

    def command(
        self,
        name: str,
        value: bytes | None = None,
        partition: int = 0,
        id: str = "",
        *,
        via_control_topic: bool = False,
    ) -> int:
        """Feed a command to `on_command`, as `statehold command` does, and return its offset.

        With `via_control_topic` it is not part of the input: the next commit handles it after its last record, or the
        next second in which nothing else is to do. The command `take` takes a full, over the next seconds of the
        driver's time.

        :raises UsageError: with `via_control_topic` its value takes more than a quarter of `kafka.message_max_bytes`.
        """
        header = command.header(name, id, "driver")
        if not via_control_topic:
            return self.feed(value, headers=[header], partition=partition, input=self.names.input)
        most = self.settings.kafka.message_max_bytes // 4
        if value is not None and len(value) > most:
            raise UsageError(
                f"command {name!r}: a value of {len(value)} bytes, the control topic's limit is {most}, a quarter of "
                f"kafka.message_max_bytes. Next: send less, or leave out via_control_topic"
            )
        self._lane(partition).live()
        log = self.broker.log(self.names.control, partition)
        return log.append(value, None, [header], int(self.clock.wall() * 1000))

    def publish(self, reference: Reference[K, V] | str, key: K, value: V | None) -> None:
        """Write reference data; None deletes the key. The next transaction sees it.

        `reference` is the declaration, such as `Book.prices`, or the topic or attribute by name.
        """
        found = self._named("reference", Reference, references(self._kind), reference, lambda each: each.topic)
        data = None if value is None else serde.for_messages(found.value_type, found.topic).encode(value)
        blob = key if isinstance(key, bytes) else str(key).encode()
        self.broker.log(found.topic, 0).append(data, blob, None, int(self.clock.wall() * 1000))
        self._references.turn()

    def dead_letters(self, partition: int = 0) -> list[DeadLetter]:
        """Return the dead letters of a partition that are neither replayed nor discarded.

        See docs/how-to/write/dead-letters.md.
        """
        self._settle()
        return waiting(self._recorded(partition).dead_letters())

    def release(
        self, key: Any = None, partition: int = 0, *, discard: bool = False, why: str = "", input: str = ""
    ) -> int:
        """Replay or discard all dead letters, or those of a key, as `statehold dlq` does. Return their number.

        The partition does it at the next commit, or in the next idle second. `input` names one of several inputs: only
        its dead letters, and the key is of its type. Without it the key is of the type of the first input. Bytes are
        taken as they are.
        """
        topic = self._input(input) if input else ""
        wanted = self._key_encoders[topic or self.names.input](key)
        what, log = DISCARD if discard else REPLAY, self.broker.log(self.names.control, partition)
        asked = [
            dead_letter
            for dead_letter in self.dead_letters(partition)
            if (wanted is None or dead_letter.key == wanted) and topic in ("", dead_letter.topic)
        ]
        for dead_letter in asked:
            value = dead_letter.request(what, why)
            log.append(value, None, [command.header(what, "", "driver")], int(self.clock.wall() * 1000))
        return len(asked)

    def dead_letter(
        self, offset: int, partition: int = 0, *, overtake: bool = False, why: str = "", input: str = ""
    ) -> None:
        """Dead-letter the record at which the partition has failed, as `statehold dlq add` does.

        `input` names one of several inputs. `restore` retries the partition and then does it.
        """
        topic, inputs = self._input(input), self.names.inputs
        position = sum(self.broker.offsets[each, partition] for each in inputs)
        request = AddRequest(offset, position, overtake, why, topic if len(inputs) > 1 else "")
        value = msgspec.msgpack.encode(request)
        log = self.broker.log(self.names.control, partition)
        log.append(value, None, [command.header(ADD, command.new_id(), "driver")], int(self.clock.wall() * 1000))

    def commit(self) -> None:
        """Handle and commit what was fed; nothing when there is nothing. Raises what the service would fail with.

        Also what the handler sends to itself by a `Rekey`, until nothing is left.
        """
        for lane in self._started():
            lane.commit()
        while unread := [lane for lane in self._own() if lane.unread]:
            for lane in unread:
                lane.commit()

    def advance(self, seconds: float) -> None:
        """Let time pass: due commits, deltas and full snapshots happen, and failed effects are retried."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self.clock.advance(min(left, max(0.1, seconds / _TICKS)))
            for lane in self._lanes.values():
                lane.tick()
        for effects in self._inline.values():
            effects.retry()
        if self._run_calls:
            self._run_due_calls()

    # Looking

    @overload
    def outputs(self, output: Output[V, Any]) -> list[V]: ...

    @overload
    def outputs(self, output: str) -> list[Any]: ...

    def outputs(self, output: Output[Any, Any] | str) -> list[Any]:
        """Return the committed values of an output, in the order of sending.

        `output` is the declaration, such as `Book.fills`, or the topic or attribute by name.
        """
        return [record.value for record in self.sent(output)]

    @overload
    def sent(self, output: Output[V, Any]) -> list[OutputRecord[V]]: ...

    @overload
    def sent(self, output: str) -> list[OutputRecord[Any]]: ...

    def sent(self, output: Output[Any, Any] | str) -> list[OutputRecord[Any]]:
        """Return what `outputs` returns, with key, headers, partition and timestamp."""
        found = self._named("output", Output, tables_and_outputs(self._kind)[1], output, lambda each: each.topic)
        self._settle()
        decode: Callable[[Any], Any] = serde.for_messages(found.value_type, found.topic).decode
        return [
            OutputRecord(
                decode(message.value()),
                message.key(),
                self._headers(message),
                message.partition(),
                message.timestamp()[1],
            )
            for message in self.broker.log(found.topic, 0).committed()
        ]

    @overload
    def table(self, table: Table[K, V], partition: int = 0) -> Mapping[K, V]: ...

    @overload
    def table(self, table: Dedupe[K], partition: int = 0) -> Mapping[K, int]: ...

    @overload
    def table(self, table: str, partition: int = 0) -> Mapping[Any, Any]: ...

    def table(self, table: Table[Any, Any] | Dedupe[Any] | str, partition: int = 0) -> Mapping[Any, Any]:
        """Return a copy of a table as the handler sees it, or as last committed if the partition has failed.

        `table` is the declaration, such as `Book.totals`, or the attribute by name.
        """
        self._settle()
        tables = {table.attribute: table for table in self._lane(partition).engine().state.tables.values()}
        found = self._named("table", (Table, Dedupe), tables, table, lambda each: each.name)
        return dict(found.items())

    @overload
    def rows(self, sink: Sink[V]) -> list[V]: ...

    @overload
    def rows(self, sink: str) -> list[Any]: ...

    def rows(self, sink: Sink[Any] | str) -> list[Any]:
        """Return the committed rows of a sink's table, in the order of their keys.

        `sink` is the declaration, or the table or attribute by name.
        """
        self._settle()
        found = self._named("sink", Sink, sinks_of(self._kind), sink, lambda each: each.table)
        rows = self.database.tables.get(found.table, {})
        return [found.value_type(**rows[key]) for key in sorted(rows)]

    @property
    def effects(self) -> list[EffectCall]:
        """Return the side effects that ran. An effect that runs again after a crash has the same key."""
        self._settle()
        return list(self._effects)

    def handler(self, partition: int = 0) -> Handler[Any]:
        """Return the handler instance of a partition."""
        return self._lane(partition).engine().handler

    def position(self, partition: int = 0) -> int:
        """The next input offset, as committed; with several inputs the sum of theirs."""
        return self.commit_record(partition).position(self.names.input)

    def commit_record(self, partition: int = 0) -> CommitRecord:
        """Return the last commit record of a running partition."""
        self._settle()
        return self._lane(partition).live().record

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the log events of the service: name and fields of each."""
        return self._log.events

    # Failures and releases

    def crash(self) -> None:
        """Simulate kill -9: memory is lost; the next owner's fence aborts the open transaction."""
        for lane in self._lanes.values():
            lane.crash()

    def restore(self) -> None:
        """Let new owners take over: fence, restore from the logs, replay, compare the digest, go live, read on.

        :raises StateRefused: the records on the topics contradict each other.
        """
        for lane in self._lanes.values():
            lane.start()

    def stand_by(self) -> dict[int, int]:
        """Let standby replicas (`group.standbys`) follow the commits. Return the transaction of each, by partition.

        The next `restore` takes them over: it reads what came after them, and no full snapshot.
        """
        self._settle()
        for _ in range(self._partitions + 1):
            self.standbys.turn()
        return {partition: copy.commit_record.n for partition, copy in self.standbys.copies().items()}

    def stop(self) -> None:
        """Stop cleanly (SIGTERM): commit, take a full snapshot, leave. `restore` starts again."""
        self._settle()
        for lane in self._lanes.values():
            lane.stop(self.settings.service.stop_timeout)

    def upgrade(
        self,
        handler: HandlerFactory,
        *,
        crash: bool = False,
        migrate: TablesFunction | None = None,
        drop: Collection[str] = (),
    ) -> None:
        """Continue with another release of the handler, over the same topics and state, as a rolling restart does.

        The release before stops cleanly, or by kill -9 with `crash`. If the new one raises, nothing has changed, and
        `upgrade` back to the release before continues.

        Every stored value is read once, so an upcaster meets all that is stored.

        `migrate`: the function that `statehold state migrate --handlers` runs between the two releases. It gets the
        handlers of both, for each partition, and splits or merges tables. `drop`: the tables of its option `--drop`.

        :raises StateRefused: the new release cannot read the state, or would read other values.
        :raises UsageError: it reads other inputs, or `migrate` is wrong.
        """
        if migrate is None and drop:
            raise UsageError("drop is for a migration by a function; without one declare the table as Retired")
        if migrate is not None and crash:
            raise UsageError("the service is stopped cleanly before `statehold state migrate`; leave out crash")
        kind, own = class_of(handler), self.names.rekeys
        plain = [topic for topic in self.names.inputs if topic not in own]
        check_combinations(kind, self.settings.snapshot.delta_interval, plain)
        check_storage(kind, self.settings)
        if {self.names.full(each.suffix) for each in rekeys_of(kind).values()} != set(own):
            raise UsageError(
                f"{kind.__name__} and the release before declare different Rekeys. Next: `statehold state inputs` adds "
                f"or removes one of a stopped service"
            )
        encoders, key_encoders_ = _encoders(kind, self.names), key_encoders(handler, self.names)
        for partition in range(self._partitions if migrate is not None else 0):
            self._lane(partition)  # all partitions have one state generation
        self._end_lanes(crash=crash)
        if migrate is not None:
            places = {partition: self._place(partition) for partition in range(self._partitions)}
            work = SplitMerge(migrate, handler, self.names, drop)
            migrate_states(self.broker, places, work, self.settings.snapshot.chunk_bytes)
        self._encoders, self._key_encoders = encoders, key_encoders_
        self._change_code(handler)
        self.restore()
        for lane in self._lanes.values():
            for table in lane.engine().state.tables.values():
                for key, data in table.stored.items():
                    table.decoded(key, data)

    def _end_lanes(self, *, crash: bool) -> None:
        if not crash:
            self._settle()
        for lane in self._lanes.values():
            if lane.running and crash:
                lane.crash()
            elif lane.running:
                lane.stop(self.settings.service.stop_timeout)

    def fail_effects(self, error: Exception | None, name: str = "") -> None:
        """Make effects of this function's name (by default all) raise `error` from now on; None ends that.

        `advance` retries pending effects, as the service does after a wait.
        """
        if error is None:
            self._failing.pop(name, None)
        else:
            self._failing[name] = error

    @property
    def pending_effects(self) -> list[EffectCall]:
        """Return the side effects of committed records that are not done, in their order."""
        self._settle()
        return [each for effects in self._inline.values() for each in effects.pending_calls()]

    # Durable calls

    @property
    def calls(self) -> list[OpenCall]:
        """Return the attempts of durable calls in progress: those of committed records, in their order.

        A call that failed is missing until its wait is over (`advance`); of one key there is only the first one if the
        `Call` has `per_key_order`.
        """
        self._settle()
        return [each for calls in self._calls.values() for each in calls.open()]

    def answer(self, call: OpenCall, result: Any) -> None:
        """Let the other system answer a call. The next commit gives the answer to the handler, with autocommit at once.

        :raises CallRejected: the result is not of the declared type. Also raises what the handler's method raises.
        """
        self._end_call(call, lambda calls: calls.answer(call, result))

    def fail(self, call: OpenCall, error: Exception) -> None:
        """Let an attempt raise. The next one follows after its wait, unless it was the last."""
        self._end_call(call, lambda calls: calls.fail(call, error))

    def lose(self, call: OpenCall) -> None:
        """Let the answer of an attempt get lost: its time is over, whatever the other system has done."""
        self.fail(call, TimeoutError("the answer was lost"))

    def _end_call(self, call: OpenCall, end: Callable[[DriverCalls], None]) -> None:
        found = next((calls for calls in self._calls.values() if calls.has(call)), None)
        if found is None:
            raise UsageError(f"{call.id} is not pending: it was answered, or cancelled, or its owner has changed")
        end(found)
        self._settle()

    def _run_due_calls(self) -> None:
        for calls in self._calls.values():
            calls.run()
        self._settle()

    def withdraw(self, partition: int = 0) -> None:
        """Remove the failed record from the input, as if its producer had aborted it, and continue after it."""
        lane = self._lane(partition)
        cause = lane.worker.cause
        if not isinstance(cause, RecordError):
            raise UsageError(f"partition {partition} has not failed because of a record")
        self.broker.log(cause.topic, partition).abort_record(cause.position)
        lane.start()

    def rebalance(self) -> None:
        """Rebalance the group unnoticed: the broker rejects the next commit once; it is rolled back and repeated."""
        self.broker.generation += 1

    def take_full(self, partition: int = 0) -> FullRef | None:
        """Take a full snapshot and let a commit record refer to it; None if it was abandoned."""
        self.commit()
        lane = self._lane(partition)
        live = lane.live()
        before = live.full_snapshots.refs
        live.full_snapshots.ask()
        for _ in range(_FULL_TICKS):
            lane.tick()
            if not live.full_snapshots.active and not live.full_snapshots.pending:
                break
            if isinstance(stage := live.full_snapshots.stage, Writing):
                with suppress(StoreTrouble):  # the next tick abandons the full snapshot
                    stage.sink.acknowledged(_STORE)  # a store writes on a thread of its own
            self.clock.advance(0.5)
        return live.full_snapshots.refs[0] if live.full_snapshots.refs != before else None

    def replay(self, batches: int | Sequence[int] | None = None, partition: int = 0) -> None:
        """Handle the whole input again, cut into other batches, and compare tables, outputs and effects (rule M4).

        Commands of the control topic are handled where commit records have pinned them, truncated commit records too.
        Once it is handled in a process with another hash seed, where sets of text have another order; not if that
        process cannot import the handler, such as a class in the body of a function.

        :param batches: one size, or sizes that are used in turn; by default several are tried.
        :raises BatchesMatter: something differs: it depends on how the input is cut, or on more than the input.
        """
        self.commit()
        recorded, last = self._recorded(partition), self.commit_record(partition)
        every = [output.topic for output in tables_and_outputs(self._kind)[1].values()]
        sent = {topic: [self.broker.log(topic, 0)] for topic in every}
        for topic in self.names.rekeys:
            sent[topic] = [self.broker.log(topic, to) for to in range(self._partitions)]
        pinned = recorded.side_inputs()
        past = Past(
            self._factory,
            self.names,
            partition,
            self._output_partitions,
            list(sent),
            recorded.messages(last),
            pinned,
            recorded.decisions(),
            self._beginnings.get(partition),
            recorded.see if any(isinstance(each.command, Seen) for each in pinned) else None,
            self._partitions,
        )
        tables = self._lane(partition).engine().state.tables
        replay = Replay(past, last.digest, tables, origin=self.settings.output.origin)
        replay.expect(sent, self._effects)
        if self._partitions == 1:
            replay.expect_rows(self.database.tables)
        several: list[int | Sequence[int]] = [1, 2, 3, (1, 5, 2), max(1, len(past.messages))]
        chosen = several if batches is None else [batches]
        for sizes in chosen:
            replay.run([sizes] if isinstance(sizes, int) else list(sizes))
        replay.run_with_another_hash_seed()

    def fuzz_crashes(
        self,
        inputs: Iterable[Any],
        *,
        check: Callable[[Any], None] | None = None,
        most: int = 500,
        upgrade: HandlerFactory | None = None,
    ) -> int:
        """Try a crash, a takeover and an abort at every step of these inputs, with two processes in a simulated Kafka.

        This driver's own partitions stay as they are. `check`, `most`, the inputs and `upgrade`, the next release to
        which both processes change meanwhile, are those of `statehold.testing.simulation.fuzz_crashes`.

        :returns: the number of runs.
        :raises AssertionError: a run differs from the undisturbed one. The text is its timeline, with the schedule to
            repeat it.
        """
        from statehold.testing.simulation.fuzz import fuzz_crashes

        return fuzz_crashes(self._factory, inputs, check=check, most=most, upgrade=upgrade).schedules

    # Backups and golden files

    def load(self, backup: str | Path, at: str = "latest", partition: int = 0) -> int:
        """Start a partition with a state of a backup (`statehold snapshot backup`), and return its position.

        It comes before anything else of that partition. The backup may be of another service, if the tables are the
        same; its inputs are this handler's inputs, in the same order.

        :param at: `latest`, an input position such as `1200`, a transaction such as `n:17`, or `full:1234`.
        :raises UsageError: the partition has started, or the backup has other inputs or not this point.
        :raises DigestMismatch, TornTransaction, DamagedIncrement, NoCommitRecord: as a restore.
        """
        if partition in self._lanes:
            raise UsageError(f"partition {partition} has started. Next: call load() before the first feed()")
        saved = self._saved(backup, partition)
        self._beginnings[partition] = beginning = saved.state(at)
        self._lane(partition)
        return sum(beginning.positions)

    def save(self, directory: str | Path, *, with_input: bool = False) -> None:
        """Write a backup of the committed states into a new directory, for `load`, also in a later release.

        :param with_input: also the records of the inputs, for `feed_backup`.
        :raises UsageError: the directory is not empty.
        """
        self.commit()
        records = {partition: self.commit_record(partition) for partition in range(self._partitions)}
        write(Path(directory), self.names, self.broker, records, with_input=with_input)

    def feed_backup(self, backup: str | Path, until: int | None = None, partition: int = 0) -> int:
        """Feed the records of a backup's inputs that follow those in the driver, and return how many there were.

        The records of several inputs come in the order of their timestamps.

        :param until: only up to this time, in milliseconds since 1970.
        :raises UsageError: the backup has no input (`--with-input`), or other inputs.
        :raises RecordError: as `feed`.
        """
        self._lane(partition)
        logs = {number: self.broker.log(topic, partition) for number, topic in enumerate(self.names.inputs)}
        ends, fed = {number: log.end for number, log in logs.items()}, 0
        for number, message in self._saved(backup, partition).records(ends, until):
            log = logs[number]
            log.end = max(log.end, message.offset() or 0)  # offsets have gaps, such as those of markers
            headers, time = message.headers() or None, message.timestamp()[1]
            self.feed(message.value(), message.key(), headers, time, partition, input=self.names.inputs[number])
            fed += 1
        return fed

    def golden(self, path: str | Path, partition: int = 0) -> None:
        """Compare the tables of a partition with a file: a line for each key, as JSON. A missing file is written.

        :raises AssertionError: they differ (the text is the difference), or the file did not exist.
        """
        self._settle()
        tables = self._lane(partition).engine().state.tables.values()
        compare(text_of(table for table in tables if "." not in table.name), Path(path))

    def _saved(self, backup: str | Path, partition: int) -> BackupPartition:
        saved = BackupPartition(Path(backup), partition)
        if len(saved.inputs) != len(self.names.inputs):
            raise UsageError(f"{backup} has the inputs {', '.join(saved.inputs)}, not {', '.join(self.names.inputs)}")
        return saved

    # Inside

    def _input(self, name: str) -> str:
        """Return the input of this name, or the only one. :raises UsageError:"""
        inputs, own = self.names.inputs, self.names.rekeys
        if name in inputs or (not name and len(inputs) == 1 + len(own)):
            return name or inputs[0]
        raise UsageError(f"input={name!r}: {self._kind.__name__} reads {', '.join(inputs)}. Next: name one of them")

    def _headers(self, message: Message) -> tuple[tuple[str, Any], ...]:
        """Return the headers with which the handler has sent a record."""
        origin = origin_of(message.headers()) if self.settings.output.origin else None
        return tuple(message.headers() or ()) if origin is None else origin.headers

    def _recorded(self, partition: int) -> Recorded:
        return Recorded(self._kind, self.names, self.broker, partition)

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            if not 0 <= partition < self._partitions:
                raise UsageError(f"partition {partition}: the driver has {self._partitions}, see Driver(partitions=)")
            logs = [self.broker.log(topic, partition) for topic in self.names.inputs]
            lane = self._lanes[partition] = Lane(self._tools, self.clock, logs, self._batch)
            self._write_initial_record(partition, self._beginnings.get(partition, Beginning()))
            lane.start()
        return lane

    def _named(self, what: str, kinds: Any, found: Mapping[str, T], wanted: object, outside: Callable[[T], str]) -> T:
        """Find by declaration, by attribute, or by the name outside. Raises UsageError."""
        if not isinstance(wanted, str):
            wanted = next(
                (name for name, each in class_attributes(self._kind, kinds).items() if each is wanted), wanted
            )
        # a renamed table may be stored under the name of another attribute
        if isinstance(wanted, str) and wanted in found:
            return found[wanted]
        for each in found.values():
            if outside(each) == wanted:
                return each
        known = ", ".join(sorted({outside(each) for each in found.values()})) or "none"
        if isinstance(wanted, str):
            raise UsageError(f"no {what} {wanted!r}; there are: {known}")
        raise UsageError(f"this {type(wanted).__name__} is not of {self._kind.__name__}; there are: {known}")

    def _settle(self) -> None:
        if not self._autocommit:
            return
        for lane in self._started():
            self._settle_lane(lane)
        while unread := [lane for lane in self._own() if lane.unread]:
            for lane in unread:
                self._settle_lane(lane)

    def _started(self) -> list[Lane]:
        """Return the partitions that have started: all of them, if they may send to each other."""
        if self.names.rekeys and self._lanes:
            for partition in range(self._partitions):
                self._lane(partition)
        return list(self._lanes.values())

    def _own(self) -> list[Lane]:
        """Return the running partitions of a handler that sends to itself by a `Rekey`."""
        return [lane for lane in self._lanes.values() if lane.running] if self.names.rekeys else []

    def _settle_lane(self, lane: Lane) -> None:
        if lane.running:
            lane.commit()
            while lane.answered:
                lane.tick()  # an idle partition takes answers at once
                lane.commit()


def _encoders(kind: type[Handler[Any]], names: Names) -> dict[str, Callable[[Any], bytes]]:
    return {topic: serde.for_messages(value, topic).encode for topic, value in value_types(kind, names).items()}
