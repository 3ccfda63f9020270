"""The open transaction, and the one whose commit is in flight; the pipeline writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from statehold.api.record import Message
from statehold.common.threads import CallInProgress
from statehold.messages.sent import Sent
from statehold.ports import Membership
from statehold.worker.transaction.kafka_transaction import KafkaTransaction
from statehold.worker.transaction.participants import CommitDraft
from statehold.worker.transaction.record_buffer import CommitPolicy, RecordBuffer

_NO_MEMBERSHIP: Final = Membership(-1, None, "")


class Commit(msgspec.Struct, frozen=True):
    """A commit in flight."""

    call: CallInProgress
    draft: CommitDraft
    outputs: int
    #: monotonic seconds
    began: float
    #: timestamp of its last record, in milliseconds since 1970; 0: without records
    newest: int


@dataclass(slots=True)
class TransactionState:
    """The transactions of one live partition. Its thread writes; any thread may read single fields."""

    kafka: KafkaTransaction
    buffer: RecordBuffer
    policy: CommitPolicy
    #: next offset to handle, and the highest one ever: below it records are handled again
    position: int
    reached: int
    #: the commit in flight; Kafka has then seen nothing of the open transaction
    commit: Commit | None = None
    #: outputs of the open transaction that Kafka has not seen yet, and the number of all its outputs
    waiting: list[Sent] = field(default_factory=list)
    outputs: int = 0
    #: outputs wait for the commit, because the handler is so slow that the broker would end an open transaction
    hold_outputs: bool = False
    #: seconds in the handler for the open transaction, and its last handled record
    handler_seconds: float = 0.0
    newest: Message | None = None
    #: membership of the last commit attempt
    membership: Membership = _NO_MEMBERSHIP
    #: aborts since the last commit
    aborts: int = 0
    #: input records that have committed since the partition went live
    records: int = 0
