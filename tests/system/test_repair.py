"""`statehold repair` on a real broker: what each command fixes, leaves in the log, and rejects (F23-F25)."""

from __future__ import annotations

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from tests.support import verify
from tests.support.apps.tally import tally
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory
from tests.support.verify import Row, read_all

from statehold.admin.commands import Commander
from statehold.admin.repair import repair as repairing
from statehold.admin.repair.positions import AcceptGap, AdoptOffsets
from statehold.admin.repair.rebase import Rebase
from statehold.admin.repair.repair import Repair, Repaired
from statehold.admin.topics import ServiceTopics
from statehold.errors import (
    DamagedIncrement,
    DigestMismatch,
    NoUsableFull,
    OffsetDisagrees,
    RetentionGap,
    ToolRefused,
    TopicReplaced,
    TornTransaction,
)
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Header, StateReplacement
from statehold.snapshot.state_replacement import ReplacementReason

pytestmark = pytest.mark.kafka

REASON = ReplacementReason(tool="test", who="ann", why="ticket 9")
Rows = dict[int, list[Row]]


@pytest.fixture
def stopped(two_partitions: Stage) -> Stage:
    """Two partitions with 1000 records handled, and no member in the group."""
    two_partitions.feed(1000, keys=100)
    with Local(two_partitions):
        two_partitions.await_all()
    return two_partitions


def run(stage: Stage, repair: Repair, *, act: bool = True) -> Repaired:
    handler = tally(stage.output)
    return repairing.run(stage.settings(), stage.names, handler, repair, REASON, act=act)


def failure_of(stage: Stage, partition: int, error: type[BaseException]) -> str:
    """How the partition fails at a start, while the others do not."""
    with Local(stage) as local:
        reported = local.await_failed(partition, error)
        local.await_live(*(set(range(stage.partitions)) - {partition}))
    return reported


def adopted(stage: Stage, partition: int) -> StateReplacement:
    """The trace that a repair left: exactly one record."""
    found = [records.unpack(row.value) for row in read_all(stage.servers, stage.names.changelog)[partition]]
    (replacement,) = [record for record in found if isinstance(record, StateReplacement)]
    assert (replacement.who, replacement.why) == ("ann", "ticket 9")
    assert replacement.tool.startswith("test")
    return replacement


def check(stage: Stage, handled: Rows, ends: dict[int, int] | None = None) -> None:
    """Outputs and states are a fold over exactly these records."""
    expected = verify.fold(handled)
    expected.ends |= ends or {}
    verify.check_outputs(stage.servers, stage.output, expected)
    stage.snapshots.check(expected)
    assert stage.group.positions(stage.names.input) == expected.ends


def test_a_gap_is_accepted_and_the_remaining_records_are_handled_once(stopped: Stage) -> None:
    stage = stopped
    stage.feed(400, keys=100)
    everything = read_all(stage.servers, stage.names.input)
    position = stage.group.positions(stage.names.input)[0]
    cut = position + 30
    stage.delete_records(stage.names.input, 0, cut)
    assert "repair accept-gap" in failure_of(stage, 0, RetentionGap)

    shown = run(stage, AcceptGap(), act=False)
    assert [(step.old_position, step.position, bool(step.finding)) for step in shown.partitions] == [
        (position, cut, True),
        (stage.group.positions(stage.names.input)[1],) * 2 + (False,),
    ]
    assert stage.group.positions(stage.names.input)[0] == position, "a dry run changes nothing"
    done = run(stage, AcceptGap())
    assert done.partitions[0].position == cut
    trace = adopted(stage, 0)
    assert (trace.old_positions, trace.positions) == ({stage.names.input: position}, {stage.names.input: cut})
    assert "30 offsets are skipped" in trace.notes["partition 0"]
    assert adopted(stage, 1).lineage == trace.lineage

    stage.feed(100, keys=100)
    with Local(stage) as local:
        local.await_live(0, 1)
        for partition, end in stage.ends().items():
            stage.await_partition(partition, end)
    everything |= {p: merged(everything[p], rows) for p, rows in read_all(stage.servers, stage.names.input).items()}
    everything[0] = [row for row in everything[0] if not position <= row.offset < cut]
    check(stage, everything)


def merged(one: list[Row], other: list[Row]) -> list[Row]:
    return sorted({row.offset: row for row in (*one, *other)}.values(), key=lambda row: row.offset)


def test_a_repair_without_need_or_with_members_is_rejected(stopped: Stage) -> None:
    stage = stopped
    for repair in (AcceptGap(), AdoptOffsets("commit-record"), Rebase("replay")):
        with pytest.raises(ToolRefused, match="Nothing was changed"):
            run(stage, repair)
    with Local(stage) as local:
        local.await_live(0, 1)
        with pytest.raises(ToolRefused, match="has 1 member"):
            run(stage, AcceptGap())
    stage.verify()


@pytest.mark.parametrize("source", ["commit-record", pytest.param("group", marks=pytest.mark.long)])
def test_offsets_that_were_reset_are_adopted_or_put_right(stopped: Stage, source: str) -> None:
    stage = stopped
    position = stage.group.positions(stage.names.input)[0]
    set_group_offset(stage, 0, position - 40)
    assert "repair adopt-offsets" in failure_of(stage, 0, OffsetDisagrees)
    run(stage, AdoptOffsets("commit-record" if source == "commit-record" else "group"))
    trace = adopted(stage, 0)
    assert str(position - 40) in trace.notes["partition 0"]
    stage.feed(100, keys=100)
    with Local(stage):
        for partition, end in stage.ends().items():
            stage.await_partition(partition, end)
    if source == "commit-record":
        stage.verify()
        return
    rows = read_all(stage.servers, stage.output)
    lines = [row for each in rows.values() for row in each]
    assert len(lines) == stage.fed + 40, "40 records are answered twice, by the operator's word"


def set_group_offset(stage: Stage, partition: int, offset: int) -> None:
    place = ConsumerGroupTopicPartitions(stage.names.group, [TopicPartition(stage.names.input, partition, offset)])
    stage.admin.alter_consumer_group_offsets([place])[stage.names.group].result(30)


def test_a_torn_log_is_rebased_and_nothing_is_answered_twice(stopped: Stage) -> None:
    """A header without a mark: the deltas before it are good, so nothing has to be replayed."""
    stage = stopped
    append(
        stage,
        Header(
            stage.snapshots.restored(0).commit_record.n + 1,
            "torn",
            stage.snapshots.restored(0).commit_record.lineage,
            0,
        ),
    )
    assert "repair rebase" in failure_of(stage, 0, TornTransaction)
    run(stage, Rebase("replay"))
    assert "TornTransaction" in adopted(stage, 0).notes["partition 0"]
    stage.feed(100, keys=100)
    with Local(stage):
        for partition, end in stage.ends().items():
            stage.await_partition(partition, end)
    stage.verify()


def append(stage: Stage, record: records.Record) -> None:
    producer = Producer({"bootstrap.servers": stage.servers})
    producer.produce(stage.names.changelog, records.pack(record), partition=0)
    assert producer.flush(30) == 0


@pytest.mark.long
def test_a_changelog_deleted_to_its_end_is_replayed_from_an_older_full_snapshot(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(600, keys=100)
    with Local(stage):
        stage.await_all()
    stage.feed(400, keys=100)
    process = stage.process("killed").await_live(0, 1)  # no full at its end
    for partition, end in stage.ends().items():
        stage.await_partition(partition, end)
    process.kill()
    stage.await_empty_group()
    positions = stage.group.positions(stage.names.input)
    stage.delete_records(stage.names.changelog, 0)
    assert "repair rebase" in failure_of(stage, 0, DamagedIncrement)
    shown = run(stage, Rebase("again"), act=False)
    assert shown.partitions[0].position < positions[0], "it would go back to the full"
    done = run(stage, Rebase("replay"))
    assert done.partitions[0].position == positions[0]
    assert "without a commit record to compare" in adopted(stage, 0).notes["partition 0"]
    stage.feed(100, keys=100)
    with Local(stage):
        stage.await_all()
    stage.verify()


@pytest.mark.long
def test_full_snapshots_and_first_deltas_deleted_leave_nothing_and_say_so(stopped: Stage) -> None:
    stage = stopped
    stage.delete_records(stage.names.snapshot, 0)
    commit_records = [row.offset for row in read_all(stage.servers, stage.names.changelog)[0]]
    stage.delete_records(stage.names.changelog, 0, commit_records[-1])  # only the last mark stays
    assert "repair rebase" in failure_of(stage, 0, NoUsableFull)
    with pytest.raises(ToolRefused, match=r"No full snapshot is usable.*`statehold snapshot restore MODULE:SERVICE"):
        run(stage, Rebase("replay"))


@pytest.mark.long
def test_a_recreated_topic_is_rejected_until_an_operator_names_the_position(stopped: Stage) -> None:
    """The input, and longer than before: only its id differs (F25)."""
    stage = stopped
    handled = read_all(stage.servers, stage.names.input)
    stage.admin.delete_topics([stage.names.input])[stage.names.input].result(30)
    stage.create_by_hand(stage.names.input)
    stage.feed(3000, keys=100)
    with Local(stage) as local:
        for partition in (0, 1):
            assert "repair accept-gap" in local.await_failed(partition, TopicReplaced)
    with pytest.raises(ToolRefused, match="Next: add --to"):
        run(stage, AcceptGap())
    run(stage, AcceptGap("beginning"))
    with Local(stage):
        for partition, end in stage.ends().items():
            stage.await_partition(partition, end)
    fresh = read_all(stage.servers, stage.names.input)
    lines = read_all(stage.servers, stage.output)
    assert sum(map(len, lines.values())) == sum(map(len, handled.values())) + sum(map(len, fresh.values()))
    expected = verify.fold({p: [*handled[p], *fresh[p]] for p in handled})
    stage.snapshots.check(expected)


@pytest.mark.long
def test_a_state_that_differs_from_its_commit_record_is_rebased_to_the_last_good_one(stopped: Stage) -> None:
    """A stranger has written a delta with another value: the digest shows where it begins."""
    stage = stopped
    commit_record = stage.snapshots.restored(0).commit_record
    forged = records.unpack(read_all(stage.servers, stage.names.changelog)[0][-1].value)
    assert isinstance(forged, records.CommitRecord)
    wrong = msgspec.structs.replace(
        forged, n=commit_record.n + 1, attempt="x", digest=b"\1" * 16, last_delta=commit_record.n + 1
    )
    append(stage, Header(commit_record.n + 1, "x", commit_record.lineage, 0))
    append(stage, wrong)
    assert "digest" in failure_of(stage, 0, DigestMismatch)
    with pytest.raises(ToolRefused, match="--accept-difference"):
        run(stage, Rebase("replay", [0]))
    run(stage, Rebase("replay", accept_difference=True))
    stage.feed(100, keys=100)
    with Local(stage):
        stage.await_all()
    stage.verify()


def await_obeyed(stage: Stage, offset: int) -> None:
    def obeyed() -> bool:
        return stage.snapshots.restored(0).commit_record.positions.get(stage.names.control, 0) > offset

    await_true(obeyed, "the commands are obeyed")


@pytest.mark.long
def test_a_rebase_replays_the_commands_of_the_control_topic(stages: StageFactory) -> None:
    """Their own marks repeat them at their places; `--records again` has the service take them once more."""
    stage = stages(1)
    topics = ServiceTopics(stage.settings(), stage.names, [stage.output])
    assert all(finding.good for finding in topics.create("beginning", partitions=1, control=True))
    commander = Commander(stage.settings(), stage.names)
    stage.feed(300, keys=20)
    with Local(stage):
        stage.await_all()
    # From here nothing but marks: what comes after the full must be replayed.
    no_deltas = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off", "STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false"}
    process = stage.process("killed", **no_deltas).await_live(0)
    for _ in range(3):
        stage.feed(50, keys=20)
        sent = [one for number in range(2) for one in commander.send("note", (), b"%d" % number, control=True)]
        await_obeyed(stage, max(one.offset for one in sent))
    stage.await_all()
    process.kill()
    stage.await_empty_group()
    last = stage.snapshots.restored(0).commit_record
    append(stage, Header(last.n + 1, "torn", last.lineage, 0))
    assert "repair rebase" in failure_of(stage, 0, TornTransaction)

    again = run(stage, Rebase("again"), act=False).partitions[0]
    assert "6 command(s)" in again.consequence
    assert again.position < last.positions[stage.names.input]
    done = run(stage, Rebase("replay")).partitions[0]
    assert "the state of the last commit record" in done.consequence
    with Local(stage) as local:
        local.await_live(0)
        stage.feed(50, keys=20)
        stage.await_all()
    assert (
        stage.snapshots.restored(0).commit_record.positions[stage.names.control] == last.positions[stage.names.control]
    )
