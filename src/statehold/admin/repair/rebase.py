"""`statehold repair rebase`: continues from an older state if the last commit record's state cannot be restored."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

from statehold.admin.initial_commit import control_position
from statehold.admin.repair.positions import as_marked
from statehold.admin.repair.repair import RepairedState
from statehold.admin.state.stopped_service import StoppedService, inputs_at, load_contents
from statehold.api.handler import Handler
from statehold.api.record import Message
from statehold.bound.reference import references
from statehold.errors import (
    DamagedIncrement,
    DigestMismatch,
    NoCommitRecord,
    RetentionGap,
    ToolRefused,
    TopicReplaced,
    TornTransaction,
    UsageError,
)
from statehold.kafka.clients.reader import KafkaReader
from statehold.messages.command import WORKERS, command_of
from statehold.messages.pinned_command import Pinned, PinnedMessage, Placed, TimeLimit, in_order
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.format.side_inputs import placed
from statehold.snapshot.inspect import salvage
from statehold.snapshot.inspect.salvage import Salvaged
from statehold.snapshot.lost_state import ways_back
from statehold.state import digest
from statehold.state.state import State
from statehold.worker.common.signals import Signals
from statehold.worker.failures.history import HandledRetry, RetryHistory, recall
from statehold.worker.failures.retry_records import handle
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import HandlingFailed
from statehold.worker.inputs.recorded_order import RecordedOrder
from statehold.worker.recovery.replay import commit, handle_again

Records = Literal["replay", "again"]

#: Errors that an older state resolves; other errors have other repairs.
_RESOLVED = (DamagedIncrement, TornTransaction, DigestMismatch, NoCommitRecord, TopicReplaced)


class Rebase:
    """Continues from an older state. The operator chooses what happens to the records up to the last commit record.

    With `replay` this tool processes them without sending outputs, and the service continues at the last commit
    record's position. Failed records are treated as their dead letters say. The digest shows whether the replay gave
    the lost state. With `again` the service processes the records again, so their outputs are duplicated.
    """

    name = "repair rebase"

    def __init__(
        self,
        records: Records,
        partitions: Sequence[int] = (),
        full: int | None = None,
        *,
        accept_difference: bool = False,
    ) -> None:
        """`partitions` are always rebased; without any, those that cannot be restored are."""
        self._records, self._chosen, self._full = records, partitions, full
        self._accept = accept_difference
        if full is not None and len(partitions) != 1:
            raise UsageError("--full names a full snapshot of one partition. Next: add --partitions P")

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        chosen = place.partition in self._chosen
        try:
            if not chosen:
                found = stopped.find(place)
                last = found.commit_record
                return RepairedState(old=last, like=last, state=found.state, inputs=inputs_at(last, place.names))
        except _RESOLVED as refusal:
            if self._chosen:
                raise
            finding = f"{type(refusal).__name__}: {refusal}"
        else:
            finding = "chosen by the operator"
        return self._rebase(stopped, place, finding)

    def nothing(self) -> str:
        return "every partition can be restored; --partitions P rebases one anyway"

    def _rebase(self, stopped: StoppedService, place: Place, finding: str) -> RepairedState:
        with closing(stopped.reader()) as reader:
            last = salvage.last_readable(reader, place)
            lineage = last.lineage if last is not None else ""
            salvaged = salvage.newest(reader, place, lineage, self._full)
            side_inputs = SideInputs.find(stopped, reader, place, salvaged, last)
        where = f"{place.input}[{place.partition}]"
        if salvaged is None:

            def starts(topic: str) -> int:
                return stopped.bounds(topic, place.partition)[0]

            raise ToolRefused(
                f"{where}: {finding}. No full snapshot is usable, and the deltas do not reach back to the first start. "
                f"Nothing was changed. Next: {ways_back(place.names, starts)}"
            )
        _require_inputs(place, last, salvaged.commit_record)
        begins = inputs_at(salvaged.commit_record, place.names)
        ends = self._last_positions(stopped, place, last, begins)
        at, end = sum(begins.values()), sum(ends.values())
        base = "the beginning" if salvaged.full < 0 else f"the full snapshot at {salvaged.full}"
        report = f"from {base} and {salvaged.deltas} deltas: transaction {salvaged.commit_record.n}, position {at}"
        control = side_inputs.control if last is None else None
        if self._records == "again" and place.names.rekeys and end > at:
            raise ToolRefused(
                f"{where}: again: what the records send to {', '.join(place.names.rekeys)} was sent before, and would "
                f"be handled twice. Nothing was changed. Next: --records replay, which sends nothing"
            )
        if self._records == "replay" and (end > at or side_inputs.commit_records or side_inputs.unknown_commands):
            if why := unrepeatable(stopped.kind):
                raise ToolRefused(
                    f"{where}: replay: {why}. Nothing was changed. Next: --records again, so that the service "
                    f"processes the records again"
                )
            state = self._replayed(stopped, as_marked(place, salvaged.commit_record), salvaged, ends, side_inputs)
            done, inputs = f"replayed up to {end}, {self._compare(where, state, last)}", ends
        else:
            state, inputs = _loaded(stopped.new_state(place.partition), place, salvaged), begins
            done = f"{end - at} offsets are processed again: their outputs are duplicated"
            if self._records == "again" and (end > at or side_inputs.commit_records):
                done += self._failed(stopped, place, salvaged, side_inputs)
            if commands := side_inputs.commands:
                control = commands[0].offset
                done += f"; {len(commands)} command(s) of {place.names.control} are executed again from {control}"
            elif side_inputs.unknown_commands:
                done += f"; later commands of {place.names.control} are not executed again"
            elif end <= at:
                done = f"no record follows it, {self._compare(where, state, last)}"
        return RepairedState(
            old=last,
            like=salvaged.commit_record,
            state=state,
            inputs=inputs,
            control=control,
            finding=finding,
            consequence=f"{report}; {done}",
        )

    def _last_positions(
        self, stopped: StoppedService, place: Place, last: CommitRecord | None, begins: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the end of the processed records of each input. Without a commit record this is the group's offset."""
        if last is not None:
            return {topic: max(last.positions.get(topic, at), at) for topic, at in begins.items()}
        return {topic: max(stopped.admin.committed(topic, place.partition) or 0, at) for topic, at in begins.items()}

    def _replayed(
        self,
        stopped: StoppedService,
        place: Place,
        salvaged: Salvaged,
        ends: Mapping[str, int],
        side_inputs: SideInputs,
    ) -> State:
        """:raises ToolRefused: a record is deleted, the handler fails, or the commands and retries are unknown."""
        engine, where = stopped.engine(place.partition), f"{place.input}[{place.partition}]"
        if side_inputs.unknown_commands:
            raise ToolRefused(
                f"{where}: replay: commands of {place.names.control} may have been executed since transaction "
                f"{salvaged.commit_record.n}, and some commit records that repeat them are unreadable. Nothing was "
                "changed. Next: --records again, which omits them; then send the commands again that still matter"
            )
        begins, end = inputs_at(salvaged.commit_record, place.names), sum(ends.values())
        start = sum(begins.values())
        _loaded(engine.state, place, salvaged)
        engine.mute(replaying=True)
        readers = [stopped.reader() for _ in place.names.inputs]
        try:
            tried = _recalled(stopped, engine, readers[0], place)
            side_inputs_of = side_inputs.side_inputs_of(place, salvaged.commit_record, end, tried)
            for piece in in_order(_records(readers, place, begins, ends, side_inputs), side_inputs_of):
                if isinstance(piece, Pinned):
                    engine.obey(PinnedMessage(place.names.control, place.partition, piece))
                elif isinstance(piece, TimeLimit):
                    engine.limit_time(piece.time)
                elif isinstance(piece, HandledRetry):
                    handle(engine, *piece)
                else:
                    handle_again(engine, piece, Signals())
                commit(engine)
        except OutOfRange as error:
            raise ToolRefused(
                f"{where}: replay the records from {start} to {end}: {error}. Nothing was changed. Next: --records "
                f"again, which continues at {start}; then `statehold repair accept-gap`, which skips deleted records"
            ) from error
        except RetentionGap as error:
            raise ToolRefused(
                f"{error}. Nothing was changed. Next: --records again, which continues at {start}; then `statehold "
                f"repair accept-gap`, which skips deleted records"
            ) from error
        except HandlingFailed as poison:
            raise ToolRefused(f"{where}@{poison.offset}: replay: {poison.error}. Nothing was changed") from poison
        finally:
            for reader in readers:
                reader.close()
        engine.mute(replaying=False)
        return engine.state

    def _failed(self, stopped: StoppedService, place: Place, salvaged: Salvaged, side_inputs: SideInputs) -> str:
        """Describe the failed records, which may fail again or succeed when the service processes them again.

        :raises ToolRefused: there are failed records, and --accept-difference is not set.
        """
        engine, reader = stopped.engine(place.partition), stopped.reader()
        try:
            tried = _recalled(stopped, engine, reader, place)
        finally:
            reader.close()
        dead_letters, begins = engine.dead_letters, inputs_at(salvaged.commit_record, place.names)
        decisions = dead_letters.decisions if dead_letters else ()
        failed = sum(topic in begins and offset >= begins[topic] for topic, offset in decisions)
        late = len(side_inputs.late(place, salvaged.commit_record, tried))
        if not failed and not late:
            return ""
        said = f"{failed} of them failed, and {late} came from a retry topic"
        if not self._accept:
            raise ToolRefused(
                f"{place.input}[{place.partition}]: process the records since transaction {salvaged.commit_record.n} "
                f"again: {said}; their changes may be applied twice or not at all. Nothing was changed. Next: "
                "--records replay, which keeps the failure decisions; or add --accept-difference"
            )
        return f"; {said}: their changes may be applied twice or not at all (`statehold dlq list`)"

    def _compare(self, where: str, state: State, last: CommitRecord | None) -> str:
        if last is None:
            return "without a commit record to compare the state with"
        if digest.to_bytes(state.digest) == last.digest:
            return "which gives the state of the last commit record"
        if not self._accept:
            raise ToolRefused(
                f"{where}: compare the state: its digest is {digest.show(state.digest)}, the last commit record has "
                f"{digest.show(last.digest)}. The commit record is forged, the handler is another version, or it "
                f"depends on more than its records. Nothing was changed. Next: add --accept-difference to continue "
                f"anyway"
            )
        return f"which gives another state than the last commit record ({digest.show(last.digest)})"


def _require_inputs(place: Place, last: CommitRecord | None, salvaged: CommitRecord) -> None:
    """:raises ToolRefused: the salvaged state was built from other inputs, or from an earlier topic of a name."""
    built = salvaged.inputs or (place.input,)
    if built != place.names.inputs:
        raise ToolRefused(
            f"{place.names.snapshot}[{place.partition}]: continue from the state: it was built from "
            f"{', '.join(built)}, this code reads {', '.join(place.names.inputs)}. Nothing was changed. Next: run the "
            f"command with the code of the former inputs"
        )
    known = last.topic_ids if last is not None else {}
    for topic in place.names.inputs:
        if known.get(topic, "") not in ("", place.topic_ids[topic]):
            raise ToolRefused(
                f"{topic}[{place.partition}]: the input was deleted and created again. Nothing was changed. Next: run "
                f"`statehold repair accept-gap`"
            )


def _records(
    readers: Sequence[Reader],
    place: Place,
    begins: Mapping[str, int],
    ends: Mapping[str, int],
    side_inputs: SideInputs,
) -> Iterator[Sequence[Message]]:
    """Yield the records since the salvaged state in the order in which the service processed them.

    :raises ToolRefused: a commit record that has the order of several inputs is unreadable.
    """
    if not place.names.others:
        return readers[0].read(place.input, place.partition, begins[place.input], ends[place.input], 500)
    if side_inputs.commit_records is None and begins != ends:
        raise ToolRefused(
            f"{place.input}[{place.partition}]: replay: the commit records have the order in which the records of "
            f"{', '.join(place.names.inputs)} were processed, and some of them are unreadable. Nothing was changed. "
            "Next: --records again, so that the service processes the records again"
        )
    order = RecordedOrder(readers, place, begins, ends)
    return order.batches(commit_record.runs for commit_record in side_inputs.commit_records or ())


def _recalled(stopped: StoppedService, engine: Engine, reader: Reader, place: Place) -> RetryHistory:
    dead = stopped.admin.describe([place.names.dead])[place.names.dead] is not None
    return recall(engine, reader, place.names, place.partition, dead=dead)


def unrepeatable(kind: type[Handler[Any]]) -> str:
    """Return why a replay cannot give the same result; '' if it can."""
    found = references(kind)
    if not found:
        return ""
    return f"{kind.__name__} reads reference data, but the values of {', '.join(found)} at that time are not stored"


class SideInputs(NamedTuple):
    """Commands and retries that the service processed after the salvaged state."""

    #: Commit records since then; None if one is unreadable.
    commit_records: Sequence[CommitRecord] | None
    #: The last commit record, if there is one.
    last: CommitRecord | None
    #: Next offset of the control topic in the last commit record, or the topic's end without one.
    control: int
    #: True if commands were executed since, but it is unknown which.
    unknown_commands: bool

    @classmethod
    def find(
        cls,
        stopped: StoppedService,
        reader: KafkaReader,
        place: Place,
        salvaged: Salvaged | None,
        last: CommitRecord | None,
    ) -> SideInputs:
        topic = place.names.control
        if last is None:
            control = control_position(stopped.admin, place.names, place.partition)
        else:
            control = last.positions.get(topic, 0)
        if salvaged is None:
            return cls(None, last, control, unknown_commands=False)
        commit_records = (
            None if last is None else salvage.commit_records_since(reader, place, salvaged.commit_record.n, last)
        )
        return cls(
            commit_records,
            last,
            control,
            commit_records is None and control > salvaged.commit_record.positions.get(topic, 0),
        )

    @property
    def commands(self) -> list[Pinned]:
        """Return the user's commands of the control topic, in order, without the workers' own entries."""
        pinned = [each for commit_record in self.commit_records or () for each in commit_record.pinned]
        named = [(command_of(PinnedMessage("", 0, each)), each) for each in pinned]
        return [each for command, each in named if command is not None and command.name not in WORKERS]

    def late(self, place: Place, before: CommitRecord, tried: RetryHistory) -> list[HandledRetry]:
        """Return the processed records of retry topics; without a commit record, all that may have been processed."""
        after = dict.fromkeys(tried.topics, sys.maxsize) if self.last is None else self.last.positions
        return list(tried.between(before.positions, after))

    def side_inputs_of(
        self, place: Place, before: CommitRecord, end: int, tried: RetryHistory
    ) -> list[Placed[Pinned | HandledRetry | TimeLimit]]:
        """Return commands, retries and time limits with their places in the replay; without commit records, at its end.

        :raises ToolRefused: it is unknown which retries were processed.
        """
        if self.commit_records is None:
            found = self.late(place, before, tried)
            if found and self.last is None:
                raise ToolRefused(
                    f"{place.input}[{place.partition}]: replay: {found[0].topic} holds records, and no commit record "
                    f"shows which of them were processed. Nothing was changed"
                )
            return [Placed(end, each) for each in found]
        found_all: list[Placed[Pinned | HandledRetry | TimeLimit]] = []
        for commit_record in self.commit_records:
            pieces: list[Pinned | HandledRetry] = [
                *commit_record.pinned,
                *tried.between(before.positions, commit_record.positions),
            ]
            found_all += placed(commit_record, place.input, pieces)
            before = commit_record
        return found_all


def _loaded(state: State, place: Place, salvaged: Salvaged) -> State:
    recorded = salvaged.commit_record.digest
    return load_contents(state, salvaged.contents, recorded, f"{place.input}[{place.partition}]")
