"""The door of this room: rebuilds the states of all partitions next to the running service. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from statehold.admin.state.spool import Spool
from statehold.admin.state.stopped_service import StoppedService
from statehold.api.handler import HandlerFactory
from statehold.config.settings import Settings
from statehold.errors import StateRefused, ToolRefused, UsageError
from statehold.ports import Clock
from statehold.rebuild.adoption import adoption_of
from statehold.rebuild.beginning import BEGINNING, StartingState, missing_input, require_input, starting_state
from statehold.rebuild.differences import compare, unanswered
from statehold.rebuild.partition import NewRelease, PartitionOutOfMemory, RebuiltPartition
from statehold.rebuild.report import RebuildReport, RebuiltState
from statehold.rehearsal.rehearse import rehearsable, topics_of
from statehold.shadow.source import ShadowReaders, ShadowSource
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import PastState
from statehold.snapshot.restore.discovery import require_commit_record
from statehold.snapshot.state_replacement import Adoption
from statehold.state import digest
from statehold.state.state import State
from statehold.worker.handler.time_slices import is_inside

#: seconds of work that may be left when the service stops, and between two lines about the progress
_NEAR: Final = 5.0
_EVERY: Final = 5.0
#: seconds between two looks at the group, and between two lines that ask for a stop
_LOOK: Final = 1.0
_ASK: Final = 15.0

#: gets a line about the progress
Tell = Callable[[str], object]
#: gets what was found about a partition, before the state is replaced
Show = Callable[[RebuiltState], object]


class RebuildOptions(NamedTuple):
    """Where a rebuild begins, and what it shows."""

    #: `beginning`, or a point as the user wrote it
    since: str = BEGINNING
    #: examples of each table
    examples: int = 3
    #: of the states of several partitions, while it is another one's turn; None: that of the system
    spool_dir: Path | None = None
    #: whether states wait in a spool; each executor has one
    spools: bool = True


class Rebuild:
    """The partitions of one service. Used by one thread; `close` it at the end."""

    def __init__(
        self,
        source: ShadowSource,
        factory: HandlerFactory,
        options: RebuildOptions,
        settings: Settings | None = None,
        tell: Tell = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        """:raises UsageError: past records cannot be given to the handler. :raises OSError: the spool's directory."""
        kind, self.factory = rehearsable(factory), factory
        self._source, self._options, self._tell, self._clock = source, options, tell, clock
        self.partitions, self.since, names = source.partitions, options.since, source.place(0).names
        if names.rekeys:
            raise UsageError(
                f"{kind.__name__} sends to itself by another key, and {', '.join(names.rekeys)} has what the former "
                f"code sent, so the new code would not handle what it sends itself. Nothing was changed. Next: start a "
                f"new service with the new code, which handles the input from its beginning"
            )
        self._readers = ShadowReaders(source, len(names.inputs))
        self._code = NewRelease(factory, kind, settings or Settings(), topics_of(source, kind, source.place(0)))
        self._spool = Spool(self.partitions, options.spool_dir) if options.spools and self.partitions > 1 else None
        self._made: dict[int, RebuiltPartition] = {}
        self._told = clock()

    def close(self) -> None:
        self._readers.close()
        if self._spool is not None:
            self._spool.close()

    def require_input(self) -> None:
        """Look at all partitions before the first one is begun, if that needs no state.

        :raises RetentionGap: one of them lacks records; the text has all.
        """
        if self.since != BEGINNING:
            return
        places = [self._source.place(each) for each in range(self.partitions)]
        missing = []
        for place in places:
            self.last_commit(place)
            missing += missing_input(self._readers.inputs[0], place, self._start(place))
        require_input(places[0], missing, BEGINNING)

    def shown(self, show: Show = lambda found: None) -> RebuildReport:
        """Rebuild one partition after the other up to its last commit record, and compare."""
        self.require_input()
        report = RebuildReport(self.since, [])
        for partition in range(self.partitions):
            report.partitions.append(self.shown_one(partition))
            show(report.partitions[-1])
        return report

    def shown_one(self, partition: int) -> RebuiltState:
        """Rebuild one partition up to its last commit record, and compare."""
        with self.turn(partition, ends=True) as made:
            state, last = self.present(made), self.last_commit(made.place)
            self.finish(made, last, state)
            return made.report

    # Next to the running service

    def catch_up(self) -> None:
        """Rebuild all partitions until little is left, or the service is faster."""
        self.require_input()
        before: int | None = None
        while True:
            self._round()
            left, rate = self.behind(), self._rate()
            if left <= rate * _NEAR:
                return
            if before is not None and left >= before:
                self._tell(f"the service commits as fast as the new code handles: {left} records are left")
                return
            before = left

    def behind(self) -> int:
        """Return the number of records that the service has committed and the new code has not handled."""
        return sum(self._end(self.last_commit(made.place), made.place) - made.position for made in self._made.values())

    def await_stop(self, members: Callable[[], int], pause: Callable[[float], object] = time.sleep) -> None:
        """Follow the service until its group has no members."""
        asked = -_ASK
        while count := members():
            if self._clock() - asked >= _ASK:
                asked = self._clock()
                self._tell(
                    f"caught up: {self.behind()} records are left. Stop the service now, all of its {count} "
                    f"process(es): this command waits for that, reads the rest and replaces the state. Ctrl-C ends it, "
                    f"and nothing is changed"
                )
            pause(_LOOK)
            if self.behind() > self._rate() * _NEAR:
                self._round()

    def replacements(
        self, stopped: StoppedService, last: Sequence[CommitRecord], lineage: str, show: Show
    ) -> Iterator[tuple[Adoption, RebuiltState]]:
        """Finish each partition at its last commit record, and write its state as a full snapshot of a new generation.

        :raises ToolRefused: the service must not continue from this state.
        """
        for partition in range(self.partitions):
            with self.turn(partition, ends=True) as made:
                made.place.check(last[partition])
                self.finish(made, last[partition], self.present(made))
                show(made.report)
                yield adoption_of(stopped, made, last[partition], lineage), made.report

    def _round(self) -> None:
        for partition in range(self.partitions):
            with self.turn(partition) as made:
                made.advance(self.last_commit(made.place).n)

    # One partition

    @contextmanager
    def turn(self, partition: int, *, ends: bool = False) -> Iterator[RebuiltPartition]:
        """Have a partition in memory, at its start if this is the first time. `ends`: it is the last time."""
        made = self._made.get(partition)
        if made is None:
            place = self._source.place(partition)
            last = self.last_commit(place)
            made = RebuiltPartition.begun(
                self._code, self._readers, place, self._start(place), last, self.since, self._progress
            )
            self._made[partition] = made
        elif self._spool is not None and not made.in_memory:
            made.unpark(self._spool)
        yield made
        if ends:
            made.drop()
        elif self._spool is not None:
            made.park(self._spool)

    def resume(self, partition: int, left: PartitionOutOfMemory, fill: Callable[[State], object]) -> None:
        """Continue with a partition that another process has begun. `fill` puts its state into empty tables."""
        place = self._source.place(partition)
        self._made[partition] = RebuiltPartition.continued(self._code, self._readers, place, left, fill, self._progress)

    def finish(self, made: RebuiltPartition, last: CommitRecord, live: PastState | None) -> None:
        """Handle the rest up to the commit record `last`, and on the way compare with the service's state `live`.

        That is of an earlier transaction if no delta or full snapshot followed it. It is empty afterwards.
        """
        report = made.report
        made.require_effects(last)
        if live is not None:
            made.advance(live.n)
            report.obstacles += unanswered(live.contents.tables, made.state)
            compare(live.contents, made.state, report, self._options.examples)
            report.compared_with, report.compared_at = live.n, made.n
        made.advance(last.n)
        if live is None:
            report.obstacles += unanswered({}, made.state)
        if made.n != last.n:
            raise ToolRefused(
                f"{made.place.names.changelog}[{made.place.partition}]: read up to transaction {last.n}: the readable "
                f"transactions end with {made.n}. Nothing was changed. Next: look for open transactions with "
                f"`statehold txn list`"
            )
        report.keys, report.digest = made.state.keys, digest.show(made.state.digest)
        report.old_digest = digest.show(last.digest)
        report.obstacles += made.failures.unresolved(made.state)
        if is_inside(last.pinned):
            report.obstacles.append(
                f"transaction {last.n} has handed over a part of the rows that are due at one time, and other code may "
                f"have others: let the service go on until it has handed over all"
            )
        report.seconds = made.seconds
        report.conclude()

    def present(self, made: RebuiltPartition) -> PastState | None:
        """Return the newest stored state of the service; None if it cannot be read, which the report says."""
        try:
            return past.at(self._readers.changelog, made.place, past.LATEST)
        except (StateRefused, UsageError, frame.BadFrame) as error:
            made.report.notes.append(f"not compared, because the service's state cannot be read: {error}")
            return None

    def _start(self, place: Place) -> StartingState:
        return starting_state(self._source, self._readers.changelog, place, self._code.kind, self.since)

    def last_commit(self, place: Place) -> CommitRecord:
        """Return the last commit record.

        :raises NoCommitRecord: the service never started. :raises StateMoved, TopicReplaced: it is elsewhere.
        """
        reader, doing = self._readers.changelog, "rebuild the state"
        last = require_commit_record(reader, place.names.changelog, place.partition, doing)
        place.require_here(last)
        place.check(last)
        return last

    @staticmethod
    def _end(last: CommitRecord, place: Place) -> int:
        return last.position(place.input)

    def _rate(self) -> float:
        """Return the records per second so far."""
        seconds = sum(made.seconds for made in self._made.values())
        return sum(made.report.records for made in self._made.values()) / seconds if seconds else 0.0

    def _progress(self, made: RebuiltPartition) -> None:
        if self._clock() - self._told < _EVERY:
            return
        self._told = self._clock()
        total = self._end(self.last_commit(made.place), made.place) - made.start
        self._tell(
            f"partition {made.place.partition}: {made.position - made.start} of {total} records, "
            f"{self._rate():.0f} per second"
        )
