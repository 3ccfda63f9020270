"""One partition of a shadow: it starts from the newest state, follows, and starts again when it cannot continue."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from statehold.api.handler import Handler, HandlerFactory
from statehold.config.settings import Settings
from statehold.errors import (
    InputsChanged,
    KafkaTrouble,
    NoCommitRecord,
    RestoreTimeout,
    StateholdError,
    TableTypeChanged,
    UnknownSchema,
    UnreadableValue,
    class_and_text,
)
from statehold.health import process_memory
from statehold.ports import Clock, OutOfRange
from statehold.rehearsal.fields import IgnoredFields
from statehold.rehearsal.rehearse import engine_at, takes_over, topics_of
from statehold.rehearsal.report import RehearsedPartition
from statehold.rehearsal.saved_results import ResultFiles
from statehold.rehearsal.stored_values import examine
from statehold.rehearsal.transactions import ComparedTransactions
from statehold.shadow.report import ShadowedPartition
from statehold.shadow.source import ShadowReaders, ShadowSource
from statehold.shadow.tail import StateReplaced, Tail
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import UnknownTable
from statehold.snapshot.inspect import past
from statehold.snapshot.restore.discovery import require_commit_record

#: seconds until the next start after an end, doubled each time without a transaction between, and their limit
_AGAIN, _LONGEST = 1.0, 60.0
#: the part of the time that goes into renewing what is shown: 1 of this number
_SHARE: Final = 20
#: most records that are held because they wait on a retry topic
_WAITING: Final = 100_000
#: the live service writes what the new code cannot read
_UNREADABLE: Final = (UnknownTable, UnknownSchema, TableTypeChanged, UnreadableValue, InputsChanged)


class ShadowOptions(NamedTuple):
    """The new code, and what a shadow compares."""

    factory: HandlerFactory
    kind: type[Handler[Any]]
    settings: Settings
    ignored: IgnoredFields
    #: examples of each topic and table
    examples: int


class _Following:
    """From a start to its end: the new code with its state, and where it is."""

    def __init__(self, compared: ComparedTransactions, tail: Tail, report: RehearsedPartition) -> None:
        self.compared, self.tail, self.report = compared, tail, report


class FollowedPartition:
    """Used by one thread; any thread may call `look`."""

    def __init__(
        self,
        source: ShadowSource,
        readers: ShadowReaders,
        partition: int,
        options: ShadowOptions,
        clock: Clock,
        ended: Callable[[], bool],
    ) -> None:
        self._source, self._readers, self.partition = source, readers, partition
        self._options, self._clock, self._ended = options, clock, ended
        self._began = clock()
        #: what was found before the present start
        self._past = ShadowedPartition(partition)
        self._following: _Following | None = None
        self._again_at, self._again = clock(), _AGAIN
        #: the transaction at the last end; -1: none
        self._left_at = -1
        self._fresh = -1.0
        #: a copy, replaced whole
        self.shown = copy.deepcopy(self._past)
        self._shown_at = self._show_seconds = 0.0

    @property
    def follows(self) -> bool:
        return self._following is not None

    @property
    def waits(self) -> bool:
        """Whether the outputs of its next transaction are not readable yet."""
        return self._following is not None and self._following.tail.waits

    @property
    def over(self) -> bool:
        """Whether the new code cannot take over the state."""
        return self._past.phase == "unreadable"

    def turn(self, end: int | None, asked: float) -> bool:
        """Start, or compare the next transactions. Return whether to continue at once.

        `end`: of the changelog at the time `asked`; None: unknown, if the partition does not follow.

        :raises KafkaTrouble, RestoreTimeout: Kafka does not answer; nothing was lost. :raises Cancelled: the end.
        """
        if self.over or (self._following is None and self._clock() < self._again_at):
            return False
        cause = ""
        try:
            if self._following is None:
                return self._start()
            return end is not None and self._advance(self._following, end, asked)
        except (KafkaTrouble, RestoreTimeout):
            raise
        except _UNREADABLE as error:
            self._unreadable(error)
            return False
        except OutOfRange as error:
            cause = f"retention has deleted what it needs: {error}"
        except NoCommitRecord as error:
            cause = f"the service has not started: {error}"
        except (StateReplaced, StateholdError, frame.BadFrame) as error:
            cause = str(error)
        self._leave(cause)
        return False

    def trouble(self, why: str) -> None:
        """Note that Kafka does not answer."""
        if (self._past.phase, self._past.why) != ("waiting", why):
            self._past.phase, self._past.why = "waiting", why
            self.show(fully=True)

    def look(self, *, fully: bool) -> ShadowedPartition:
        """Return what was found so far; `fully` only on its own thread."""
        if fully:
            self.show(fully=True)
        age = self._clock() - self._fresh if self._fresh >= 0 else -1.0
        return msgspec.structs.replace(self.shown, age=age)

    def show(self, *, fully: bool = False) -> None:
        """Renew what is shown. Not `fully`: less often if it takes long, because many keys differ."""
        now = self._clock()
        if not fully and now - self._shown_at < _SHARE * self._show_seconds:
            return
        self._shown_at = now
        found = copy.deepcopy(self._past)
        if (following := self._following) is not None:
            part = copy.deepcopy(following.report)
            following.compared.finish(part)
            found.add(part)
        found.seconds, found.memory = now - self._began, process_memory.used()
        found.conclude()
        self.shown, self._show_seconds = found, self._clock() - now

    # Start and end

    def _start(self) -> bool:
        source, options, readers = self._source, self._options, self._readers
        self._past.phase = "starting"
        self.show()
        source.look_again()
        place, report = source.place(self.partition), RehearsedPartition(self.partition)
        last = require_commit_record(readers.changelog, place.names.changelog, self.partition, "shadow the service")
        takes_over(place, options.kind, last, report)
        if report.unreadable:
            return self._found_unreadable(report)
        state = past.at(readers.changelog, place, past.LATEST)
        topics = topics_of(source, options.kind, place)
        engine = engine_at(state, options.factory, place, topics, options.settings, last, report)
        examine(engine.state.tables, options.ignored, report, options.examples)
        if report.unreadable:
            return self._found_unreadable(report)
        if self._past.starts:  # the values were compared at the first start
            report.compared, report.examples = [], []
        compared = ComparedTransactions(place, engine, state, report, options.ignored, options.examples, ResultFiles())
        tail = Tail(source, readers, place, options.kind, state, topics, compared.failures, self._clock)
        if self._left_at >= 0:
            passed = max(0, state.n - self._left_at)
            self._past.passed_over += passed
            self._past.note(f"started again from transaction {state.n}: {passed} were not compared")
        self._past.starts += 1
        self._past.phase, self._past.why = "following", ""
        self._following = _Following(compared, tail, report)
        self.show(fully=True)
        return True

    def _found_unreadable(self, report: RehearsedPartition) -> bool:
        self._past.add(report)
        self._past.phase, self._past.why = "unreadable", report.unreadable[0]
        self.show(fully=True)
        return False

    def _leave(self, cause: str) -> None:
        """End the present following; start again soon."""
        following, self._following = self._following, None
        past_ = self._past
        if following is not None:
            following.compared.finish(following.report)
            past_.add(following.report)
            self._left_at = following.tail.n
            past_.note(f"ended after transaction {following.tail.n}: {cause}")
            if following.report.transactions:
                self._again = _AGAIN
        past_.phase, past_.why = "waiting", cause
        self._again_at = self._clock() + self._again
        self._again = min(_LONGEST, self._again * 2)
        self._readers.close()
        self.show(fully=True)

    def _unreadable(self, error: Exception) -> None:
        self._leave("the new code cannot read what the service writes")
        self._past.unreadable = [class_and_text(error)]
        self._past.phase, self._past.why = "unreadable", self._past.unreadable[0]
        self.show(fully=True)

    # Following

    def _advance(self, following: _Following, end: int, asked: float) -> bool:
        tail, compared = following.tail, following.compared
        if self._past.phase != "following":
            self._past.phase, self._past.why = "following", ""
            self.show(fully=True)
        if tail.shrank(end):
            raise OutOfRange(f"the changelog ends at {end}, and was read up to {tail.read_to}")
        taken = tail.read(end) if tail.behind(end) else []
        for live, given in taken:
            if self._ended():
                return False
            compared.take(live, given)
            tail.handled(live.commit_record)
        if forgotten := compared.failures.forget(_WAITING):
            following.report.notes.append(f"{forgotten} records that the new code sent to a retry topic were forgotten")
        if not tail.behind(end):
            self._fresh = asked
        if taken:
            self.show()
        return bool(taken) and tail.behind(end)
