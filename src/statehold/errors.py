"""Every error of statehold, grouped by the action that it needs.

StateholdError
├── UsageError                 the calling code breaks a rule of the API: change the code
│   ├── MutatedInPlace         a table value was changed without put()
│   ├── RekeyLoop              a record has come by more sends of a Rekey than rekey.max_hops allows
│   └── UnstorableValue        a table's key or value could not be read back
├── StartError                 the service cannot start: change its configuration
│   ├── TopicMissing           a topic does not exist: `statehold topics create`
│   ├── TopicMismatch          a topic has other settings than the service needs
│   ├── AccessRefused          the brokers reject the login, or an ACL is missing
│   └── SchemaRefused          the schema is not registered, or is incompatible
├── InstanceTaken              two processes have the same static member name: set service.instance
├── ToolRefused                a tool's precondition does not hold; nothing was changed
├── PartitionError             one partition stops, the others stay live
│   ├── RecordError            one record fails: fix it or the handler, then `statehold retry`
│   │   ├── UndecodableRecord
│   │   ├── TimestampAhead     its timestamp is further ahead of the clock than time.max_ahead allows
│   │   ├── HandlerFailed
│   │   ├── OutputRefused      the broker rejects an output of the handler
│   │   ├── SinkRefused        the sink's database rejects the rows: fix it, then `statehold retry`
│   │   └── TooManyFailures    more dead letters than failure.dead_row or .dead_percent allow: an outage
│   ├── StateRefused           the state cannot be trusted: not live until an operator decides
│   │   ├── NoCommitRecord             no commit record: the first start is explicit
│   │   ├── DamagedIncrement   the chain of commit records has a gap or a foreign record
│   │   │   └── NoUsableFull   every full snapshot is lost or damaged, and the deltas do not suffice
│   │   ├── TornTransaction    a delayed request ended a transaction early
│   │   ├── DigestMismatch     the restored state differs from the written one
│   │   ├── NonDeterministicReplay
│   │   ├── OffsetDisagrees    group offset and commit record have different positions
│   │   ├── RetentionGap       the input no longer holds the next record
│   │   ├── MixedLineages      the partitions have different state generations
│   │   ├── TopicReplaced      a topic was deleted and created again
│   │   ├── PartitionCountChanged
│   │   ├── StateMoved         the state moved to another input: run the service with that one
│   │   ├── NewerFormat        a newer release wrote the records: run that release
│   │   ├── UnknownSchema      this code cannot read a table's version: run newer code or add an upcaster
│   │   ├── TableTypeChanged   the code declares other types for a table's keys or values than the state has
│   │   ├── UnknownEffect      this code cannot call a pending effect: bring its function back, or name another
│   │   ├── UnreadableValue    a stored value is not of the table's type: run the code that wrote it, or upcast
│   │   ├── SinkDisagrees      the sink's database has another position than the state: `statehold sink init`
│   │   └── UpgradeUnfinished  the code needs a newer format: `statehold finish-upgrade`
│   ├── AccessLost             an ACL or the login was revoked: resumes by itself once it is restored
│   ├── HandlerStuck           a handler call does not return: fix the handler, restart the process
│   ├── RegistryUnreachable    the schema registry does not answer: retried every 30 s
│   ├── SinkUnreachable        the sink's database does not answer: retried every 30 s, or by `statehold retry`
│   ├── RestoreTimeout         Kafka did not deliver in time: retried every 30 s, or by `statehold retry`
│   ├── MemoryShort            the state would not fit into memory: retried every minute, or by `statehold retry`
│   ├── LocalStoreFailed       the files of tables on disk fail: retried every 10 s, or by `statehold retry`
│   ├── HangingTransaction     another producer's open transaction hides the end of a topic
│   └── OwnershipError         this process is no longer the owner: never retried from memory
│       ├── Fenced
│       │   └── SinkFenced     by the epoch in the sink's database
│       └── Lost
├── StuckCall                  a call into Kafka or a handler never returned: restart the process
├── OutageTooLong              Kafka did not answer for longer than kafka.outage allows
├── ThreadDied                 SystemExit or the like ended a thread, for example a handler that called sys.exit()
├── CallRejected               a function of a `Call` raises it: the call fails without further attempts
├── CallDelayed                a function of a `Call` raises it: the next attempt comes later
├── NotAnswered                a request of a `Client` has no answer
│   ├── RequestFailed          the service's handler failed at it; the text says what became of the record
│   ├── RequestConflict        the id and key belong to a request with another value
│   ├── PartitionStopped       its partition has failed or is paused; it takes effect when the partition continues
│   └── NoAnswerInTime         it may take effect later: ask again with the same id
├── TooManyRequests            too many requests of a `Client` wait for their answers: nothing was sent
├── StateUnavailable           a `Client` could not read the state within its time, or its partition is stopped
├── ChangesLost                a watch cannot continue without a gap: read the table again, then watch
├── CompactionBusy             another compaction of this service holds the lock: wait for its end
└── KafkaTrouble               an error of the Kafka adapter; the worker turns it into one of the above
    ├── TransactionAborted     abort, roll back, redo: this process still owns the partition
    ├── OutcomeUnknown         create a new producer, fence, read the last commit record
    ├── ProducerFenced         another owner fenced this producer, or its id expired
    ├── MessageRefused         a message is too large, or its topic is missing or forbidden
    └── Misconfigured          an ACL or a setting is missing: a retry does not help
"""

from __future__ import annotations


class StateholdError(Exception):
    """Base of every error that statehold raises on purpose."""


class UsageError(StateholdError):
    """The calling code breaks a rule of the API."""


class MutatedInPlace(UsageError):
    """A table value was changed in place, so the change would be lost."""


class RekeyLoop(UsageError):
    """A handler sends to itself without an end: a record would come by more sends than `rekey.max_hops` allows."""


class UnstorableValue(UsageError):
    """A key or a value of a table cannot be encoded, or would come back as another one."""

    def __init__(self, text: str, table: str = "", key: object = None) -> None:
        super().__init__(text)
        #: what cannot be stored; the empty name if it is not known
        self.table, self.key = table, key


class StartError(StateholdError):
    """The service cannot start with this configuration; raised by `Service.start`."""


class TopicMissing(StartError):
    """A topic that the service needs does not exist."""


class TopicMismatch(StartError):
    """A topic exists with other settings than the service needs."""


class AccessRefused(StartError):
    """The brokers reject the login, or an ACL is missing."""


class SchemaRefused(StartError):
    """A schema of the service is not registered, or is incompatible with the registered one."""


class InstanceTaken(StateholdError):
    """Another process of the group has the same static member name."""


class ToolRefused(StateholdError):
    """A tool's precondition does not hold. Nothing was changed; the text names the next command."""


class PartitionError(StateholdError):
    """One partition stops; the others stay live.

    `topic` and `partition` name the input partition, `position` its next offset.
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
    """One record failed; `position` is its offset. Its changes are rolled back, and no record was skipped."""


class UndecodableRecord(RecordError):
    """The record's value cannot be decoded into the handler's type."""


class TimestampAhead(RecordError):
    """The record's timestamp is further ahead of the worker's clock than time.max_ahead allows.

    Raised only if the handler's on_failure names this class; otherwise the record does not advance the time.
    """


class HandlerFailed(RecordError):
    """The handler raised; the cause is chained."""

    #: what was due at the record and failed, such as "on_timer of 't'"; "": the record itself
    due = ""


class OutputRefused(RecordError):
    """The broker rejects an output or a table value of this record."""


class SinkRefused(RecordError):
    """The sinks' database rejects a record's rows, or its tables differ from the declared ones."""


class DeadlyRecord(RecordError):
    """The process has died several times while the handler had this record, so the handler does not get it again."""

    #: the deaths
    deaths = 0


class TooManyFailures(RecordError):
    """A flood of failures, which is treated as an outage: no more records are dead-lettered."""


class StateRefused(PartitionError):
    """The stored state cannot be trusted; the message names the command that repairs it."""


class NoCommitRecord(StateRefused):
    """The changelog topic holds no commit record, so there is no state and no start position."""


class DamagedIncrement(StateRefused):
    """The chain of commit records has a gap, or a record of another service, partition or format."""


class NoUsableFull(DamagedIncrement):
    """No full snapshot is usable, and the deltas do not reach back to an empty state."""


class TornTransaction(StateRefused):
    """A transaction header without its commit record, or a commit record without its header."""


class DigestMismatch(StateRefused):
    """The restored state's digest differs from the recorded one."""


class NonDeterministicReplay(StateRefused):
    """Replaying the gap gave another state than the previous owner had."""


class OffsetDisagrees(StateRefused):
    """The group's committed offset and the last commit record differ by more than one transaction."""


class RetentionGap(StateRefused):
    """The input no longer holds the next record of the partition."""


class MixedLineages(StateRefused):
    """The partitions have different state generations: only some of them were restored, migrated or moved."""


class TopicReplaced(StateRefused):
    """A topic's id differs from the one in the commit record: the topic was deleted and created again."""


class StateMoved(StateRefused):
    """The state moved to another input topic; the partition's state for this one is closed."""


class PartitionCountChanged(StateRefused):
    """The input has another number of partitions than the state was built with."""


class InputsChanged(StateRefused):
    """The code reads other input topics than the state was built from, or declares them in another order."""


class NewerFormat(StateRefused):
    """The topics hold records of a format that this release does not read: a newer release wrote them."""


class UnknownSchema(StateRefused):
    """This code cannot read a table's version: it is newer, or has no upcaster."""


class TableTypeChanged(StateRefused):
    """The code declares another type for a table under the same version, and would read stored keys or values wrongly.

    The partition is not live, and no record was handled. The text names the table and what changed, field by field.
    """


class UnknownEffect(StateRefused):
    """This code cannot call a pending effect: its function is gone, or takes other arguments.

    The partition is not live, no record was handled, and the effects stay pending. The text names function and cause.
    """


class UnreadableValue(StateRefused):
    """This code cannot read a stored value of a table: another type, version or serde wrote it.

    No failure policy counts, because the record that reads the value is not at fault.
    """


class UpgradeUnfinished(StateRefused):
    """The code needs a newer format than the partition has; older releases still have to read it."""


class AccessLost(PartitionError):
    """The brokers reject a request of the partition; the text names the ACL and the command that grants it."""


class SinkDisagrees(StateRefused):
    """The sinks' database holds no position, or one that does not follow from the last commit record."""


class SinkUnreachable(PartitionError):
    """The sinks' database did not answer within `sink.outage`."""


class HandlerStuck(PartitionError):
    """A handler call for one record or hook took longer than `failure.handler_stuck`."""


class RegistryUnreachable(PartitionError):
    """The schema registry does not answer, so a value cannot be converted; the record is not at fault."""


class RestoreTimeout(PartitionError):
    """Kafka did not deliver the data of a restore within `restore.deadline`."""


class MemoryShort(PartitionError):
    """The partition's state would exceed the memory limit of this process."""


class LocalStoreFailed(PartitionError):
    """The files of the partition's tables on disk cannot be opened, read or written, or are damaged."""


class HangingTransaction(PartitionError):
    """The last stable offset stays below the end of a topic because a producer's transaction is open."""


class OwnershipError(PartitionError):
    """This process does not own the partition any more."""


class Fenced(OwnershipError):
    """A newer owner fenced this one; its uncommitted work is discarded."""


class SinkFenced(Fenced):
    """A newer owner took an epoch in the sinks' database; this one cannot commit there any more."""


class Lost(OwnershipError):
    """The group reassigned the partition without a revocation; this process must not commit for it."""


class StuckCall(StateholdError):
    """A call did not return within its limit. `partition` is -1 if the call was not for one partition."""

    def __init__(self, message: str, *, partition: int = -1) -> None:
        super().__init__(f"partition {partition}: {message}" if partition >= 0 else message)
        self.partition = partition


class OutageTooLong(StateholdError):
    """Kafka did not answer for longer than `kafka.outage` allows. No data is lost; restart the process."""


class ThreadDied(StateholdError):
    """SystemExit or the like ended a thread; the cause is chained."""


def of_thread(error: BaseException) -> Exception:
    """Return the error to raise in another thread for an error that ended a thread."""
    if isinstance(error, Exception):
        return error
    died = ThreadDied(f"{class_and_text(error)} ended a thread")
    died.__cause__ = error
    return died


def text_of(error: BaseException) -> str:
    """Return the text of any exception, also of one that has none, because `__str__` of its class raises."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  a class may raise anything
        return f"its text raises {type(second).__name__}"


def class_and_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


class CallRejected(StateholdError):
    """The other system rejects a call for good; the function of a `Call` raises it. No further attempt follows."""


class CallDelayed(StateholdError):
    """The other system asks for a pause; the function of a `Call` raises it, such as for HTTP's `Retry-After`."""

    def __init__(self, seconds: float, text: str = "") -> None:
        super().__init__(text or f"the next attempt in {seconds:g} s")
        #: least pause before the next attempt
        self.seconds = seconds


class NotAnswered(StateholdError):
    """A request has no answer. `id` names it; ask again with the same id and value to take effect once."""

    def __init__(self, message: str, *, id: str, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        place = f"{topic}[{partition}]" if partition >= 0 else topic
        super().__init__(f"{place}@{offset}: {message}" if offset >= 0 else f"{place}: {message}")
        #: coordinates of the request's record; the offset is -1 if it is not known to be written
        self.id, self.topic, self.partition, self.offset = id, topic, partition, offset


class RequestFailed(NotAnswered):
    """The service's handler failed at the request, which has had no effect."""

    #: the class of the exception
    error: str = ""
    #: its text
    text: str = ""
    #: what became of the record, such as "dead letter"
    became: str = ""


class RequestConflict(NotAnswered):
    """The id and key belong to a request with another value. This one has had no effect."""


class PartitionStopped(NotAnswered):
    """The request's partition has failed or is paused. The request is written, and takes effect when it continues."""

    #: the class of the error of a failed partition; '' of a paused one
    error: str = ""
    #: its text, or who paused it
    cause: str = ""
    #: since when it has failed, in seconds since 1970; None of a paused one
    since: float | None = None


class NoAnswerInTime(NotAnswered):
    """No answer came in time. The request may be written, and may take effect later."""


class TooManyRequests(StateholdError):
    """A `Client` has as many requests without an answer as it may have. Nothing was sent."""


class StateUnavailable(StateholdError):
    """A read of a `Client` got no answer in time, or its partition has failed or is paused; the text has the cause."""


class ChangesLost(StateholdError):
    """A watch cannot continue without a gap: the changes after its position are not kept, or are of another state."""


class CompactionBusy(StateholdError):
    """Another compaction of this service is running."""


class KafkaTrouble(StateholdError):
    """A Kafka call failed; the subclass determines the caller's next step."""


class TransactionAborted(KafkaTrouble):
    """The transaction cannot commit. Aborting it is safe, and this process may still own the partition.

    `stale`: the group's generation has changed, so fetch the group metadata before the next attempt.
    """

    def __init__(self, message: str, *, stale: bool = False) -> None:
        super().__init__(message)
        self.stale = stale


class OutcomeUnknown(KafkaTrouble):
    """It is unknown whether the transaction committed; do not use the producer again."""


class ProducerFenced(KafkaTrouble):
    """The producer's epoch or id is no longer valid; do not use the producer again."""


class MessageRefused(KafkaTrouble):
    """The client or the broker rejects a message."""


class Misconfigured(KafkaTrouble):
    """An ACL, a feature or a setting is missing; a retry does not help."""
