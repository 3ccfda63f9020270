"""One transaction: header first, mark last, outputs that say where they come from (rules T1, T3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.snapshot_records import NAMES, PLACE, commit_record, replaced

from statehold.bound.output import ORIGIN, ORIGIN_HEADER
from statehold.errors import MessageRefused, OutcomeUnknown
from statehold.messages.sent import Sent
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord, FullRef, Header, Part
from statehold.state.partition_table import Changes
from statehold.state.state import Frozen
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.clients import MemoryTransactions
from statehold.testing.memory.clock import ManualClock
from statehold.worker.transaction.kafka_transaction import KafkaTransaction, Stage
from statehold.worker.transaction.participants import CommitDraft, SideInputs

OUTPUT: Sent = ("out", b"v", "k", -1, None, None, 0, [("own", b"h")])


def committer(*, origin: bool = True, part_bytes: int = 1000) -> tuple[MemoryBroker, KafkaTransaction]:
    broker = MemoryBroker(ManualClock())
    producer = MemoryTransactions(broker, NAMES, 0)
    producer.fence(lambda: False)
    first = commit_record(4, last_delta=4)
    settings = SimpleNamespace(
        output=SimpleNamespace(origin=origin), kafka=SimpleNamespace(message_max_bytes=2 * part_bytes)
    )
    tools: Any = SimpleNamespace(place=PLACE, settings=settings, wall=lambda: 12.5, clock=lambda: 0.0)
    return broker, KafkaTransaction(producer, tools, first, used=())


def closing(*delta: Changes, position: int = 70, no_delta: bool = False) -> CommitDraft:
    return CommitDraft(
        before=commit_record(4),
        position=position,
        positions={NAMES.input: position},
        runs=b"",
        frozen=Frozen(delta, tuple(each.table for each in delta), 99, 3),
        side=SideInputs(),
        records=0,
        seconds=0.0,
        commands=(),
        delta=None if no_delta else delta,
    )


def commit(made: KafkaTransaction, closed: CommitDraft) -> CommitRecord:
    """Pack, commit in the background and note the commit, as the live loop does."""
    made.commit(closed, made.pack(closed), 1)
    return made.committed()


def changelog_of(broker: MemoryBroker) -> list[Any]:
    return [records.unpack(message.value()) for message in broker.log(NAMES.changelog, 0).committed()]


def test_a_transaction_is_header_parts_and_commit_record_of_one_producer_session() -> None:
    broker, made = committer()
    made.send([OUTPUT, OUTPUT])
    done = commit(made, closing(Changes("t", ["a"], [b"1"])))
    header, part, last = changelog_of(broker)
    attempt = made.producer.attempt
    assert header == Header(5, attempt, "l", 40, PLACE.writer)
    assert (part.n, part.attempt, part.k) == (5, attempt, 0)
    assert last == done == made.record == made.expected
    assert last == CommitRecord(
        n=5,
        attempt=attempt,
        lineage="l",
        service="service",
        partition=0,
        partitions=4,
        positions={"input": 70},
        start=40,
        digest=(99).to_bytes(16, "little"),
        keys=3,
        parts=1,
        last_delta=5,
        outputs=2,
        writer=PLACE.writer,
        time=12_500,
    )
    assert broker.offsets == {("input", 0): 70}


def test_the_commit_record_is_sent_after_the_offsets_and_nothing_after_it() -> None:
    broker, made = committer()
    calls: list[str] = []
    broker.on_call = calls.append
    made.send([OUTPUT])
    commit(made, closing(Changes("t", ["a"], [b"1"])))
    assert calls == ["begin", "increment", "send", "offsets", "increment", "increment", "commit"]


def test_a_commit_record_without_delta_says_where_the_last_one_is() -> None:
    _, made = committer()
    done = commit(made, closing(no_delta=True))
    assert (done.last_delta, done.delta, done.parts) == (4, False, 0)
    empty = commit(made, closing())
    assert (empty.last_delta, empty.delta, empty.parts) == (6, True, 0)


def test_outputs_say_where_they_come_from_over_several_sends() -> None:
    broker, made = committer()
    made.send([OUTPUT, OUTPUT])
    made.send([OUTPUT] * 1000)  # more than get their origin at a time
    made.send([])
    assert commit(made, closing()).outputs == 1002
    made.send([OUTPUT])
    commit(made, closing())
    origins = []
    for message in broker.log("out", 0).committed():
        own, origin = message.headers()
        assert own == ("own", b"h")
        assert origin[0] == ORIGIN_HEADER
        origins.append(ORIGIN.unpack(origin[1]))
    assert origins == [*((0, 5, ordinal) for ordinal in range(1002)), (0, 6, 0)]


def test_without_origin_outputs_are_sent_as_they_are() -> None:
    broker, made = committer(origin=False)
    made.send([])
    made.send([OUTPUT, OUTPUT])
    assert commit(made, closing()).outputs == 2
    assert [message.headers() for message in broker.log("out", 0).committed()] == [[("own", b"h")]] * 2


def test_a_large_delta_is_cut_and_every_part_fits() -> None:
    broker, made = committer(part_bytes=1000)
    keys = [f"key{i}" for i in range(100)]
    delta = Changes("t", keys, [bytes(100)] * 100), Changes("u", ["a"], [None])
    commit(made, closing(*delta))
    parts = [record for record in changelog_of(broker) if isinstance(record, Part)]
    assert [part.k for part in parts] == list(range(len(parts)))
    assert len(parts) > 10
    assert all(sum(map(len, part.entries)) <= 1000 for part in parts)
    assert made.record.parts == len(parts)


def test_a_value_that_fits_no_part_is_named() -> None:
    _, made = committer(part_bytes=1000)
    with pytest.raises(MessageRefused, match="table 't', key 'big': a value of 50"):
        commit(made, closing(Changes("t", ["small", "big"], [b"", bytes(5000)])))


def test_after_an_unknown_outcome_both_commit_records_are_known() -> None:
    broker, made = committer()
    before = made.record
    broker.fail("commit", OutcomeUnknown("?"))
    with pytest.raises(OutcomeUnknown):
        commit(made, closing())
    assert (made.record, made.expected.n) == (before, 5)
    assert made.stage is Stage.RECORD


def test_nothing_joins_a_transaction_whose_commit_was_tried() -> None:
    broker, made = committer()
    broker.fail("commit", OutcomeUnknown("?"))
    with pytest.raises(OutcomeUnknown):
        commit(made, closing())
    sent = broker.log(NAMES.changelog, 0).end
    with pytest.raises(AssertionError, match="outputs in stage RECORD"):
        made.send([OUTPUT])
    with pytest.raises(AssertionError, match="a second commit in stage RECORD"):
        commit(made, closing())
    assert broker.log(NAMES.changelog, 0).end == sent


def test_an_abort_leaves_nothing_and_the_number_is_used_again() -> None:
    broker, made = committer()
    made.abort()  # nothing is open: nothing happens
    made.send([OUTPUT])
    made.abort()
    made.send([OUTPUT])
    assert commit(made, closing()).n == 5
    assert len([*broker.log("out", 0).committed()]) == 1


def test_the_commit_record_names_its_references_and_its_writer() -> None:
    _, made = committer()
    ref = FullRef(1, 2, 3, 4, 5)
    done = commit(made, replaced_refs(closing(), ref))
    assert (done.full_snapshots, done.writer.instance) == ((ref,), "test")
    assert replaced(done, full_snapshots=()).identity == done.identity


def replaced_refs(of: CommitDraft, ref: FullRef) -> CommitDraft:
    return msgspec.structs.replace(of, full_snapshots=(ref,))
