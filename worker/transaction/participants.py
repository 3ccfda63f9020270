"""The interface of a feature to a transaction: a participant, called in one fixed order (`worker.takeover.ORDER`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import msgspec

from statehold.api.record import Message
from statehold.bound.reference import Version
from statehold.common.names import Names
from statehold.messages.call_outcome import CallJob
from statehold.messages.command import Command
from statehold.messages.pinned_command import Pinned
from statehold.messages.request import RequestNews
from statehold.snapshot.format.records import CommitRecord, Effect, FullRef
from statehold.state.partition_table import Changes
from statehold.state.state import Frozen
from statehold.worker.handler.record_failure import HandlingFailed


class SideInputs(NamedTuple):
    """Inputs of a transaction besides the input topic. Sink databases store the order of the fields."""

    commands: tuple[Command, ...] = ()
    pinned: tuple[Pinned, ...] = ()
    #: next offset of the control topic; 0: nothing was ever read there
    next: int = 0
    #: the last command that pauses or resumes the partition
    switch: Command | None = None
    #: next offset of each retry topic
    retries: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def unchanged(cls, before: CommitRecord, names: Names) -> SideInputs:
        """Keep the positions of the other topics."""
        retries = {topic: at for topic, at in before.positions.items() if names.is_for_retries(topic)}
        return cls(next=before.positions.get(names.control, 0), retries=retries)


NO_SIDE_INPUTS: Final = SideInputs()


class SideWork(msgspec.Struct):
    """The end of an open transaction, where side inputs are handled: after its last record, at `position`."""

    #: the commit record before this transaction
    before: CommitRecord
    position: int
    #: the transaction has handled no record
    idle: bool
    #: sends the outputs of the last handled entry, which this message is
    #: :raises RecordFailed: the broker rejects one, or the entry has written what the last commit could not store
    send: Callable[[Message], None]
    done: SideInputs
    #: at most one entry may be handled
    alone: bool = False
    #: no further entry may be handled
    closed: bool = False
    #: some of what is due before the next record was handed over: what would advance event time waits for the rest
    inside: bool = False


class CommitDraft(msgspec.Struct):
    """The next commit record in preparation: each participant sets its own fields."""

    #: the commit record before it
    before: CommitRecord
    #: the partition's position after it (`CommitRecord.position`), the next offset of each input, and the order of its
    #: records (`CommitRecord.runs`)
    position: int
    positions: Mapping[str, int]
    runs: bytes
    frozen: Frozen
    side: SideInputs
    #: input records of the transaction, and seconds in the handler
    records: int
    seconds: float
    #: commands of the input, in their order, then of the control topic
    commands: tuple[Command, ...]
    #: see `CommitRecord.time_limit`
    time_limit: int = 0
    #: the record must carry a delta, because a replay could not repeat the transaction
    force_delta: bool = False
    delta: tuple[Changes, ...] | None = None
    full_snapshots: tuple[FullRef, ...] = ()
    #: side effects that are pending after this transaction, and those that it requested
    effects: tuple[Effect, ...] = ()
    new_effects: tuple[Effect, ...] = ()
    #: durable calls that this transaction requested, and the ids of what it cancelled
    new_calls: Sequence[CallJob] = ()
    cancelled_calls: Sequence[str] = ()
    #: see `CommitRecord.reach`; None: as in the record before
    reach: int | None = None
    #: see `CommitRecord.pace`
    pace: int = 0
    #: see `CommitRecord.reference`
    reference: Mapping[str, Version] = msgspec.field(default_factory=dict)
    #: what the transaction did with requests; None: nothing
    requests: RequestNews | None = None
    #: runs on the commit's thread just before Kafka commits; raises ParticipantFailed
    before_commit: Callable[[], None] | None = None


class ParticipantFailed(Exception):
    """`before_commit` of this participant failed: the transaction is rolled back, then the participant recovers."""

    def __init__(self, participant: Participant, error: Exception) -> None:
        super().__init__(str(error))
        self.participant, self.error = participant, error


class Participant:
    """One feature of a live partition. Its thread calls every verb; a verb that a class does not define costs nothing.

    A verb may raise PartitionError: the partition fails.
    """

    #: the verbs that this class defines, or a base class of it
    defined: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        verbs = {name: verb for name, verb in vars(Participant).items() if callable(verb) and name[0] != "_"}
        cls.defined = frozenset(name for name, verb in verbs.items() if getattr(cls, name) is not verb)

    def opened(self, record: CommitRecord) -> None:
        """The partition goes live with this commit record."""

    def began(self) -> None:
        """The next transaction begins: before its first record or side input."""

    def blocks(self) -> bool:
        """Whether no further record may be handled now."""
        return False

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        """Whether a commit without records would do something; `record` is the last one, `now` in monotonic seconds."""
        return False

    def side_inputs(self, work: SideWork) -> None:
        """Handle entries of other topics and add them to `work.done`. :raises HandlingFailed:"""

    def handled(self, message: Message) -> None:
        """After a record that was handled alone in order to find the one to blame. :raises RecordUnknown:"""

    def contribute(self, draft: CommitDraft) -> None:
        """Set fields of the next commit record; the transaction's writes are frozen."""

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        """The transaction with this commit record has committed, and memory has followed."""

    def rolled_back(self) -> None:
        """Everything that was not committed is forgotten."""

    def failed(self, error: Exception, draft: CommitDraft) -> HandlingFailed | None:
        """`before_commit` raised ParticipantFailed; return the failure of the record to blame, if it is known."""
        return None

    def recover(self, record: CommitRecord) -> None:
        """After `failed` and the rollback: be ready for the next transaction."""

    def finish(self, record: CommitRecord, wait: float) -> bool:
        """Before a drain ends: wait at most `wait` seconds; return whether one more commit would do something."""
        return False

    def close(self) -> None:
        """The live phase has ended; nothing is committed here."""


class Participants:
    """The participants of one live partition, by verb and in their order."""

    def __init__(self, order: tuple[type[Participant], ...]) -> None:
        self._order = order
        self.members: tuple[Participant, ...] = ()
        self._index()

    def join(self, *members: Participant) -> None:
        """Add features that the handler uses from now on, each at its place in the order, others last."""
        everyone, order = (*self.members, *members), self._order
        known = [each for kind in order for each in everyone if type(each) is kind]
        self.members = (*known, *[each for each in everyone if type(each) not in order])
        self._index()

    def blocked(self) -> bool:
        """No further record may be handled now."""
        return any(blocks() for blocks in self.on_blocks)

    def want_commit(self, record: CommitRecord, now: float) -> bool:
        return any(wants(record, now) for wants in self.on_wants_commit)

    def finish(self, record: CommitRecord, wait: float) -> bool:
        wanted = [verb(record, wait) for verb in self.on_finish]  # each gets its time
        return any(wanted)

    def close(self) -> None:
        """Close each, the last one first, whatever another raises."""
        try:
            with ExitStack() as last_first:
                for verb in self.on_close:
                    last_first.callback(verb)
        finally:  # because a participant that references this object forms a cycle, which keeps a dropped state
            self.members = ()
            self._index()

    def _index(self) -> None:
        members = self.members
        self.on_opened = [m.opened for m in members if "opened" in m.defined]
        self.on_began = [m.began for m in members if "began" in m.defined]
        self.on_blocks = [m.blocks for m in members if "blocks" in m.defined]
        self.on_wants_commit = [m.wants_commit for m in members if "wants_commit" in m.defined]
        self.on_handled = [m.handled for m in members if "handled" in m.defined]
        self.on_side_inputs = [m.side_inputs for m in members if "side_inputs" in m.defined]
        self.on_contribute = [m.contribute for m in members if "contribute" in m.defined]
        self.on_committed = [m.committed for m in members if "committed" in m.defined]
        self.on_rolled_back = [m.rolled_back for m in members if "rolled_back" in m.defined]
        self.on_finish = [m.finish for m in members if "finish" in m.defined]
        self.on_close = [m.close for m in members if "close" in m.defined]
