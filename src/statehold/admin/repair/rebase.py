"""`statehold repair rebase`: go on from an older state, where the one of the last mark cannot be brought back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from statehold.admin.initial_commit import control_position
from statehold.admin.repair.positions import as_marked
from statehold.admin.repair.repair import Mended
from statehold.admin.state.stopped_service import StoppedService
from statehold.errors import (
    DamagedIncrement,
    DigestMismatch,
    NoMark,
    ToolRefused,
    TopicReplaced,
    TornTransaction,
    UsageError,
)
from statehold.handler import Handler
from statehold.kafka.clients.reader import KafkaReader
from statehold.messages.command import TICK, command_of
from statehold.messages.pinned_command import Pinned, PinnedMessage, Placed, in_order
from statehold.ports import OutOfRange
from statehold.reference import references
from statehold.snapshot.format import digest
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Mark
from statehold.snapshot.inspect import salvage
from statehold.snapshot.inspect.salvage import Salvaged
from statehold.snapshot.state import State
from statehold.table import Changes
from statehold.worker.common.signals import Signals
from statehold.worker.failures.history import Late, Tried, recall
from statehold.worker.handler.record_failure import Poisoned
from statehold.worker.participants.retry_topics import handle
from statehold.worker.recovery.replay_batch import commit, handle_again

Records = Literal["replay", "again"]

#: what an older state helps against; other refusals have other remedies
_MENDS = (DamagedIncrement, TornTransaction, DigestMismatch, NoMark, TopicReplaced)


class Rebase:
    """The records between the older state and the last mark were answered already: what becomes of them is a choice.

    `replay` handles them here, sends nothing, and goes on at the last mark's position; what became of those that failed
    is told by their letters, and the digest tells whether it is the state that was lost. `again` has the service handle
    them once more: their outputs come twice.
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
        """`partitions` are rebased whether they need it or not; without any, those that cannot be restored are."""
        self._records, self._chosen, self._full = records, partitions, full
        self._accept = accept_difference
        if full is not None and len(partitions) != 1:
            raise UsageError("--full names a full of one partition: say which, --partitions P")

    def mend(self, stopped: StoppedService, place: Place) -> Mended:
        chosen = place.partition in self._chosen
        try:
            if not chosen:
                found = stopped.find(place)
                position = found.mark.positions[place.input]
                return Mended(old=found.mark, like=found.mark, state=found.state, position=position)
        except _MENDS as refusal:
            if self._chosen:
                raise
            finding = f"{type(refusal).__name__}: {refusal}"
        else:
            finding = "chosen by the operator"
        return self._rebase(stopped, place, finding)

    def nothing(self) -> str:
        return "every partition can be restored; --partitions rebases one all the same"

    def _rebase(self, stopped: StoppedService, place: Place, finding: str) -> Mended:
        reader = stopped.reader()
        try:
            last = salvage.last_readable(reader, place)
            lineage = last.lineage if last is not None else ""
            salvaged = salvage.newest(reader, place, lineage, self._full)
            since = Since.find(stopped, reader, place, salvaged, last)
        finally:
            reader.close()
        where = f"{place.input}[{place.partition}]"
        if last is not None and last.topic_ids.get(place.input, "") not in ("", place.topic_ids[place.input]):
            raise ToolRefused(f"{where}: the input was made anew: that is for `statehold repair accept-gap`")
        if salvaged is None:
            raise ToolRefused(
                f"{where}: {finding}. No full is whole, and the deltas do not begin at the beginning: nothing to go on "
                f"from. `statehold snapshot restore` from a backup, or begin anew. Nothing was changed"
            )
        at = salvaged.position(place)
        end = self._last_position(stopped, place, last, at)
        base = "the beginning" if salvaged.full < 0 else f"the full at {salvaged.full}"
        told = f"from {base} and {salvaged.deltas} deltas: transaction {salvaged.mark.n}, position {at}"
        control = since.control if last is None else None
        if self._records == "replay" and (end > at or since.marks or since.untold):
            if why := unrepeatable(stopped.kind):
                raise ToolRefused(f"{where}: {why}: --records again has the service handle them. Nothing was changed")
            state = self._replayed(stopped, as_marked(place, salvaged.mark), salvaged, at, end, since)
            done, position = f"replayed up to {end}, {self._compare(where, state, last)}", end
        else:
            state, position = state_of(stopped, place, salvaged), at
            done = f"{end - at} offsets are handled again: their outputs come twice"
            if self._records == "again" and (end > at or since.marks):
                done += self._failed(stopped, place, salvaged, since)
            if commands := since.commands:
                control = commands[0].offset
                done += f"; {len(commands)} command(s) of {place.names.control} are handled again from {control} on"
            elif since.untold:
                done += f"; commands of {place.names.control} that were handled since are not handled again"
            elif end <= at:
                done = f"nothing comes after it, {self._compare(where, state, last)}"
        return Mended(
            old=last,
            like=salvaged.mark,
            state=state,
            position=position,
            control=control,
            finding=finding,
            consequence=f"{told}; {done}",
        )

    def _last_position(self, stopped: StoppedService, place: Place, last: Mark | None, at: int) -> int:
        """Up to where records were answered: what the group has committed tells it where no mark is left."""
        marked = last.positions.get(place.input, at) if last is not None else at
        committed = stopped.admin.committed(place.input, place.partition)
        return max(marked, at, committed if committed is not None and last is None else 0)

    def _replayed(
        self, stopped: StoppedService, place: Place, salvaged: Salvaged, start: int, end: int, since: Since
    ) -> State:
        """:raises ToolRefused: a record is gone, the handler refuses it, or what came beside the input is not known."""
        engine, where = stopped.engine(place.partition), f"{place.input}[{place.partition}]"
        if since.untold:
            raise ToolRefused(
                f"{where}: commands of {place.names.control} may have been handled since transaction "
                f"{salvaged.mark.n}, and not all marks that repeat them can be read, so no replay gives the same "
                f"state. --records again goes on without them: send again what still matters. Nothing was changed"
            )
        _fill(place, engine.state, salvaged)
        engine.mute(replaying=True)
        reader = stopped.reader()
        try:
            tried = recall(engine, reader, place.names, place.partition)
            beside = since.beside(place, salvaged.mark, end, tried)
            for piece in in_order(reader.read(place.input, place.partition, start, end, 500), beside):
                if isinstance(piece, Pinned):
                    engine.obey(PinnedMessage(place.names.control, place.partition, piece))
                elif isinstance(piece, Late):
                    handle(engine, *piece)
                else:
                    handle_again(engine, piece, Signals())
                commit(engine)
        except OutOfRange as error:
            raise ToolRefused(
                f"{where}: the records from {start} to {end} are to be replayed and not all there ({error}): --records "
                f"again goes on at {start}, and `statehold repair accept-gap` behind what is gone. Nothing was changed"
            ) from error
        except Poisoned as poison:
            raise ToolRefused(f"{where}@{poison.offset}: the replay failed: {poison.error}") from poison
        finally:
            reader.close()
        engine.mute(replaying=False)
        return engine.state

    def _failed(self, stopped: StoppedService, place: Place, salvaged: Salvaged, since: Since) -> str:
        """What is to be said of records that failed; handled again they may fail again, or not.

        :raises ToolRefused: there are some, and the operator has not said that this may be.
        """
        engine, reader = stopped.engine(place.partition), stopped.reader()
        try:
            tried = recall(engine, reader, place.names, place.partition)
        finally:
            reader.close()
        letters, at = engine.letters, salvaged.position(place)
        failed = sum(topic == place.input and offset >= at for topic, offset in letters.verdicts) if letters else 0
        late = len(since.late(place, salvaged.mark, tried))
        if not failed and not late:
            return ""
        said = f"{failed} of them failed, and {late} came back from a retry topic"
        if not self._accept:
            raise ToolRefused(
                f"{place.input}[{place.partition}]: since transaction {salvaged.mark.n} {said}: handled again, they "
                f"may count twice or not at all. --records replay keeps what was decided; --accept-difference goes on "
                f"all the same. Nothing was changed"
            )
        return f"; {said}: they may count twice or not at all (`statehold dlq list`)"

    def _compare(self, where: str, state: State, last: Mark | None) -> str:
        if last is None:
            return "with no mark left to compare the state with"
        if digest.to_bytes(state.digest) == last.digest:
            return "which gives the state that the last mark says"
        if not self._accept:
            raise ToolRefused(
                f"{where}: the digest would be {digest.show(state.digest)}, the last mark says "
                f"{digest.show(last.digest)}: that mark is forged, or the handler depends on more than its records, or "
                f"is another version. --accept-difference goes on all the same. Nothing was changed"
            )
        return f"which gives another state than the last mark says ({digest.show(last.digest)})"


def unrepeatable(kind: type[Handler[Any]]) -> str:
    """Why records cannot be handled here as they were, or ''."""
    found = references(kind)
    if not found:
        return ""
    return f"{kind.__name__} reads reference data, and what the records saw of {', '.join(found)} is not kept"


class Since(NamedTuple):
    """What came beside the input after the salvaged state."""

    #: of the transactions since, where all can be read; the last one is None where no mark is left
    marks: Sequence[Mark] | None
    last: Mark | None
    #: next offset of the control topic by the last mark, or its end where no mark is left
    control: int
    #: commands were handled since, and nobody can tell which
    untold: bool

    @classmethod
    def find(
        cls, stopped: StoppedService, reader: KafkaReader, place: Place, salvaged: Salvaged | None, last: Mark | None
    ) -> Since:
        topic = place.names.control
        if last is None:
            control = control_position(stopped.admin, place.names, place.partition).get(topic, 0)
        else:
            control = last.positions.get(topic, 0)
        if salvaged is None:
            return cls(None, last, control, untold=False)
        marks = None if last is None else salvage.marks_since(reader, place, salvaged.mark.n, last)
        return cls(marks, last, control, marks is None and control > salvaged.mark.positions.get(topic, 0))

    @property
    def commands(self) -> list[Pinned]:
        """Users' commands of the control topic, in their order; a tick is none."""
        pinned = (each for mark in self.marks or () for each in mark.pinned)
        return [each for each in pinned if (found := command_of(PinnedMessage("", 0, each))) and found.name != TICK]

    def late(self, place: Place, before: Mark, tried: Tried) -> list[Late]:
        """Records of retry topics that were handled; where no mark is left, all that may have been."""
        after = dict.fromkeys(tried.topics, sys.maxsize) if self.last is None else self.last.positions
        return list(tried.between(before.positions, after))

    def beside(self, place: Place, before: Mark, end: int, tried: Tried) -> list[Placed[Pinned | Late]]:
        """What a replay hands over beside the input's records; at their end where no mark tells the place.

        :raises ToolRefused: which of them were handled is not known.
        """
        if self.marks is None:
            found = self.late(place, before, tried)
            if found and self.last is None:
                raise ToolRefused(
                    f"{place.input}[{place.partition}]: records wait on {found[0].topic}, and no mark is left to tell "
                    f"which of them were handled, so no replay gives the same state. Nothing was changed"
                )
            return [Placed(end, each) for each in found]
        placed: list[Placed[Pinned | Late]] = []
        for mark in self.marks:
            pieces: list[Pinned | Late] = [*mark.pinned, *tried.between(before.positions, mark.positions)]
            placed += [Placed(mark.positions[place.input], each) for each in pieces]
            before = mark
        return placed


def state_of(stopped: StoppedService, place: Place, salvaged: Salvaged) -> State:
    """As the service's own code holds it."""
    state = stopped.new_state(place.partition)
    _fill(place, state, salvaged)
    return state


def _fill(place: Place, state: State, salvaged: Salvaged) -> None:
    """:raises ToolRefused: this code declares other tables."""
    for name, held in salvaged.contents.tables.items():
        if held and name not in state.tables:
            raise ToolRefused(
                f"{place.input}[{place.partition}] holds table {name!r}, which this code does not declare"
            )
        if held:
            state.load(Changes(name, list(held), list(held.values())))
    state.loaded()
    if digest.to_bytes(state.digest) != salvaged.mark.digest:
        raise ToolRefused(
            f"{place.input}[{place.partition}]: digest {digest.show(state.digest)} was loaded, its writer recorded "
            f"{digest.show(salvaged.mark.digest)}. Nothing was changed"
        )
