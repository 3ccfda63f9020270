"""Every error of statehold, by what its owner must do about it.

StateholdError
├── UsageError                 the calling code is wrong: change it
│   └── MutatedInPlace         a table value was changed without put()
├── StartError                 the service cannot start: change the set-up
│   ├── TopicMissing           a topic is absent: `statehold topics create`
│   ├── TopicMismatch          a topic differs from what the service needs
│   ├── AccessRefused          the brokers refuse the login, or a right is missing
│   └── SchemaRefused          a schema registry has no such schema, or it does not fit
├── InstanceTaken              two processes have one name in the group: give each a service.instance
├── ToolRefused                a tool will not do it as things are; nothing was changed
├── PartitionError             one partition stops, the others stay live
│   ├── RecordError            this record cannot be handled: mend it or the handler, then `statehold retry`
│   │   ├── UndecodableRecord
│   │   ├── HandlerFailed
│   │   ├── OutputRefused      the broker will not take what the handler sent
│   │   ├── SinkRefused        the sink's database will not take the rows: mend it, then `statehold retry`
│   │   └── TooManyFailures    more dead letters than failure.dead_row or .dead_percent allow: an outage
│   ├── StateRefused           the state cannot be trusted: never live until an operator decides
│   │   ├── NoMark             no genesis mark: a first start is an act
│   │   ├── DamagedIncrement   the chain of marks has a hole or a foreign record
│   │   │   └── NoUsableFull   every full is lost or damaged, and the deltas alone do not hold the state
│   │   ├── TornTransaction    a transaction was ended early by a delayed request
│   │   ├── DigestMismatch     the restored state is not the one that was written
│   │   ├── NonDeterministicReplay
│   │   ├── OffsetDisagrees    group offset and mark tell different positions
│   │   ├── RetentionGap       the input no longer holds the position that is needed
│   │   ├── MixedLineages      the partitions are not all of one history
│   │   ├── TopicReplaced      a topic was deleted and made anew
│   │   ├── PartitionCountChanged
│   │   ├── StateMoved         the state goes on in another input: run the service with that one
│   │   ├── NewerFormat        a newer statehold wrote this: run that one
│   │   ├── UnknownSchema      values of a table version that this code cannot read: run the code that can
│   │   ├── SinkDisagrees      the sink's database holds another position than the state: `statehold sink init`
│   │   └── UpgradeUnfinished  the code needs a newer format: `statehold finish-upgrade`
│   ├── AccessLost             a right or the login was taken away: it goes on by itself when it is back
│   ├── HandlerStuck           the handler does not come back: mend it, restart the process
│   ├── RegistryUnreachable    a schema is needed and its registry is away: tried again every 30 s
│   ├── SinkUnreachable        the sink's database is away: tried again every 30 s, or by `statehold retry`
│   ├── RestoreTimeout         Kafka did not deliver in time: tried again every 30 s, or by `statehold retry`
│   ├── MemoryShort            the state would not fit: tried again every minute, or by `statehold retry`
│   ├── HangingTransaction     a stranger's open transaction hides the end of a topic
│   └── OwnershipError         this process is no longer the owner: never retried from memory
│       ├── Fenced
│       │   └── SinkFenced     by the epoch in the sink's database
│       └── Lost
├── StuckCall                  a call into Kafka or into a handler never came back: the process must be started anew
├── OutageTooLong              Kafka was out of reach for longer than kafka.outage allows
├── ThreadDied             something that is no Exception ended a thread: a handler that called sys.exit()
├── CompactionBusy             another compaction of this service has the lock: wait for its end
└── KafkaTrouble               what the Kafka adapter reports; the worker turns it into one of the above
    ├── TransactionAborted     abort it, roll back, redo: the partition is still ours
    ├── OutcomeUnknown         make a new producer, fence, read the last mark
    ├── ProducerFenced         another owner has fenced this producer, or its id expired
    ├── MessageRefused         a message is too large, or its topic is missing or forbidden
    └── Misconfigured          a right or a setting is missing: no retry helps
"""

from __future__ import annotations


class StateholdError(Exception):
    """Base of everything that statehold raises on purpose."""


class UsageError(StateholdError):
    """The calling code breaks a rule of the API."""


class MutatedInPlace(UsageError):
    """A table value was changed in place, so the change would be lost."""


class StartError(StateholdError):
    """The service cannot start with this set-up; raised from `Service.start`."""


class TopicMissing(StartError):
    """A topic that the service needs does not exist."""


class TopicMismatch(StartError):
    """A topic exists with other settings than the service needs."""


class AccessRefused(StartError):
    """The brokers answer, and refuse us: a wrong login, or a right that is missing."""


class SchemaRefused(StartError):
    """A schema of the service is not in its registry, or is not compatible with what is."""


class InstanceTaken(StateholdError):
    """A static member's name belongs to another process of the group."""


class ToolRefused(StateholdError):
    """A tool will not do what it was told as things are; nothing was changed, and the text says what would help."""


class PartitionError(StateholdError):
    """One partition stops. Carries its coordinates.

    `topic` and `partition` name the input partition, `position` the next offset it would have read.
    """

    def __init__(self, message: str, *, topic: str = "", partition: int = -1, position: int = -1) -> None:
        where = f"{topic}[{partition}]" if topic else ""
        if where and position >= 0:
            where = f"{where}@{position}"
        super().__init__(f"{where}: {message}" if where else message)
        self.topic = topic
        self.partition = partition
        self.position = position


class RecordError(PartitionError):
    """One record cannot be handled; `position` is its offset. Nothing of it was kept and nothing was skipped."""


class UndecodableRecord(RecordError):
    """The value could not be decoded into the handler's type."""


class HandlerFailed(RecordError):
    """The handler raised; the cause is chained."""


class OutputRefused(RecordError):
    """An output or a table value of this record is not accepted by the broker."""


class SinkRefused(RecordError):
    """The database of the sinks will not take the rows of some record, or its tables are not as declared."""


class TooManyFailures(RecordError):
    """So many records fail that it is no matter of records: none of them is buried any more."""


class StateRefused(PartitionError):
    """The state on the topics cannot be trusted as it is; the message names the command that repairs it."""


class NoMark(StateRefused):
    """The increment topic holds no mark, so there is no state and no start position."""


class DamagedIncrement(StateRefused):
    """The chain of marks has a hole, or a record of another service, partition or format."""


class NoUsableFull(DamagedIncrement):
    """No full can be a base, and the deltas do not reach back to an empty state."""


class TornTransaction(StateRefused):
    """A header without its footer, or a footer without its header."""


class DigestMismatch(StateRefused):
    """The restored state's digest is not the one its writer recorded."""


class NonDeterministicReplay(StateRefused):
    """Replaying the gap gave another state than the previous owner had."""


class OffsetDisagrees(StateRefused):
    """The group's committed offset and the last mark disagree by more than one transaction."""


class RetentionGap(StateRefused):
    """The input no longer holds the position from which the partition must read."""


class MixedLineages(StateRefused):
    """Another partition goes on from another adopt record: only some of them were restored, migrated or moved."""


class TopicReplaced(StateRefused):
    """A topic id differs from the one in the mark: the topic was deleted and created again."""


class StateMoved(StateRefused):
    """The state goes on in another input topic: this one is closed."""


class PartitionCountChanged(StateRefused):
    """The input has another number of partitions than the state was built with."""


class NewerFormat(StateRefused):
    """The topics hold records of a format that this version does not read: a newer one wrote them."""


class UnknownSchema(StateRefused):
    """A table holds values of a version that this code cannot read: a newer one, or one without an upcaster."""


class UpgradeUnfinished(StateRefused):
    """The code needs a format that the partition is not written in yet, for the sake of an older statehold."""


class AccessLost(PartitionError):
    """The brokers refuse what the partition has to do; the text names the right and the line that grants it."""


class SinkDisagrees(StateRefused):
    """The database of the sinks holds no position, or one that does not follow from the last mark."""


class SinkUnreachable(PartitionError):
    """The database of the sinks did not answer within `sink.outage`."""


class HandlerStuck(PartitionError):
    """The handler has been inside one record or hook for longer than `failure.handler_stuck`."""


class RegistryUnreachable(PartitionError):
    """A value needs a schema and the registry gives no answer: no fault of the record."""


class RestoreTimeout(PartitionError):
    """The restore did not get its data within `restore.deadline`."""


class MemoryShort(PartitionError):
    """The partition's state would take more memory than this process may have."""


class HangingTransaction(PartitionError):
    """The last stable offset stays below the end of a topic: somebody's transaction is open."""


class OwnershipError(PartitionError):
    """This process does not own the partition any more."""


class Fenced(OwnershipError):
    """A newer owner fenced this one; what it had not committed is thrown away."""


class SinkFenced(Fenced):
    """A newer owner has taken an epoch in the database of the sinks; this one commits nothing there any more."""


class Lost(OwnershipError):
    """The group gave the partition away without asking; nothing may be committed for it."""


class StuckCall(StateholdError):
    """A call that must come back did not; the thread that made it is lost. `partition` is -1 when it was for all."""

    def __init__(self, message: str, *, partition: int = -1) -> None:
        super().__init__(f"partition {partition}: {message}" if partition >= 0 else message)
        self.partition = partition


class OutageTooLong(StateholdError):
    """Kafka was out of reach for longer than `kafka.outage` allows; nothing is lost, a supervisor starts it again."""


class ThreadDied(StateholdError):
    """A thread was ended by SystemExit or the like: no stop of the process; the cause is chained."""


def of_thread(error: BaseException) -> Exception:
    """What a dead thread's error is outside it."""
    if isinstance(error, Exception):
        return error
    died = ThreadDied(f"{type(error).__name__}: {error} ended a thread")
    died.__cause__ = error
    return died


class CompactionBusy(StateholdError):
    """Another compaction of this service is at work."""


class KafkaTrouble(StateholdError):
    """A Kafka call failed; the subclass says what the caller must do."""


class TransactionAborted(KafkaTrouble):
    """The transaction cannot commit; aborting it is safe and the partition may still be ours.

    `stale` tells that the group's generation has moved: fetch the group metadata anew before trying again.
    """

    def __init__(self, message: str, *, stale: bool = False) -> None:
        super().__init__(message)
        self.stale = stale


class OutcomeUnknown(KafkaTrouble):
    """Whether the transaction committed is not known; the producer must not be used again."""


class ProducerFenced(KafkaTrouble):
    """The producer's epoch or id is no longer valid; it must not be used again."""


class MessageRefused(KafkaTrouble):
    """The client or the broker refused a message as it is."""


class Misconfigured(KafkaTrouble):
    """A right, a feature or a setting is missing; repeating the call cannot help."""
