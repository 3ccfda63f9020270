"""Manager: stop deadlines, rebalance callbacks, client errors of live and other partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from statehold.api.record import MemoryMessage, Message
from statehold.balancer.manager import Manager
from statehold.balancer.unassigned_partitions import UnassignedPartitions
from statehold.config.sections.processing import CommitSettings
from statehold.config.settings import Settings
from statehold.errors import TopicReplaced
from statehold.health.group_check import GroupCheck
from statehold.ports import ConsumerGroup, ConsumerTrouble, GroupMember, InputTopic, Listener, WorkerReport
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import ServiceMetrics
from statehold.testing.memory.clock import ManualClock
from statehold.testing.stepped import EventLog, Later


class Group:
    """A consumer that gets its partitions on `subscribe`; each `consume` lasts its full timeout."""

    def __init__(self, clock: ManualClock, partitions: Sequence[int]) -> None:
        self._clock, self._partitions = clock, partitions
        self.troubles: list[ConsumerTrouble] = []
        self.listener: Listener | None = None
        self.close_within = -1.0
        self.woken: list[dict[int, int]] = []
        self.on_consume: Callable[[], object] = int
        self.messages: list[Message] = []
        #: records and seconds of each poll
        self.polls: list[tuple[int, float]] = []
        self.input = InputTopic("input")
        #: the calls the manager made to the client, in order
        self.calls: list[tuple[str, Sequence[int]]] = []

    def subscribe(self, listener: Listener) -> None:
        self.listener = listener
        listener.on_assign(self._partitions)

    def consume(self, records: int, timeout: float) -> tuple[Sequence[Message], Sequence[ConsumerTrouble]]:
        self._clock.advance(timeout)
        self.polls.append((records, timeout))
        self.on_consume()
        troubles, self.troubles = self.troubles, []
        messages, self.messages = self.messages, []
        return messages, troubles

    def rejoin(self) -> None:
        self.calls.append(("rejoin", ()))

    def close(self, timeout: float, *, leave: bool = False) -> bool:
        self.close_within = timeout
        return True

    def membership(self) -> tuple[Any, str]:
        return object(), "me"

    def wake(self, positions: Mapping[int, int]) -> None:
        self.woken.append(dict(positions))

    def assign(self, partitions: Sequence[int]) -> None:
        self.calls.append(("assign", list(partitions)))

    def unassign(self, partitions: Sequence[int]) -> None:
        self.calls.append(("unassign", list(partitions)))

    def pause(self, partitions: Sequence[int]) -> None:
        if partitions:
            self.calls.append(("pause", list(partitions)))

    def resume(self, partitions: Sequence[int]) -> None:
        if partitions:
            self.calls.append(("resume", list(partitions)))

    def seek(self, partition: int, offset: int) -> None:
        self.calls.append(("seek", [partition, offset]))


class Partition:
    """A worker whose first drain never ends."""

    depth = 0
    stuck = False

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.failures: list[BaseException] = []
        self.deadlines: list[float] = []
        self.offered: list[Message] = []
        #: the records of each batch
        self.batches: list[int] = []
        self.since = -1.0

    def start(self, since: float) -> None:
        self.since = since

    def offer(self, stream: int, previous: int, messages: Sequence[Message]) -> None:
        self.offered += messages
        self.batches.append(len(messages))

    def revoke(self, deadline: float, *, final: bool) -> None:
        self.deadlines.append(deadline)
        if len(self.deadlines) > 1:
            self.closed.set()

    def lose(self) -> None:
        self.closed.set()

    def fail(self, cause: BaseException) -> None:
        self.failures.append(cause)

    def retry(self) -> None: ...

    def attend(self, now: float) -> None: ...

    def status(self) -> msgspec.Struct:
        return msgspec.Struct()


def manager(
    settings: Settings | None = None, *, asked: bool = False
) -> tuple[Manager, Group, Partition, ManualClock, list[Any]]:
    clock = ManualClock()
    group, partition = Group(clock, [0]), Partition()
    reports: list[Any] = []

    def made(number: int, report: Any) -> Partition:
        reports.append(report)
        return partition

    return (
        Manager(group, made, settings or Settings(), ServiceMetrics("service"), Log(EventLog()), clock, asked=asked),
        group,
        partition,
        clock,
        reports,
    )


def live(managed: Manager, reports: list[Any], topic_id: str = "") -> None:
    report: WorkerReport = WorkerReport(0, "live", 7, 1, topic_id=topic_id)
    reports[0](report)
    managed._turn()


def test_a_service_without_records_polls_less_often_and_a_record_ends_such_a_poll() -> None:
    managed, group, _, _, reports = manager()
    group.subscribe(managed)
    busy, calm = (Settings().flow.batch, Settings().flow.poll_timeout), (1, 0.1)
    managed._turn()
    assert group.polls[-1] == busy, "a partition is not live, so its report must not wait"
    live(managed, reports)
    managed._turn()
    assert group.polls[-1] == calm
    group.messages = [MemoryMessage("input", 0, 7, b"")]
    managed._turn()
    managed._turn()
    assert group.polls[-1] == busy
    while group.polls[-1] == busy:
        managed._turn()
    assert group.polls[-1] == calm


def test_the_first_record_ends_each_poll_if_its_writer_may_wait_and_takes_the_others_with_it() -> None:
    managed, group, partition, _, reports = manager(asked=True)
    group.subscribe(managed)
    live(managed, reports)
    batch, short = Settings().flow.batch, Settings().flow.poll_timeout
    arrives = [[MemoryMessage("input", 0, 7, b"")], [MemoryMessage("input", 0, offset, b"") for offset in (8, 9)]]
    group.on_consume = lambda: group.messages.extend(arrives.pop(0) if arrives else ())
    group.polls.clear()
    managed._turn()
    assert group.polls == [(1, 0.1), (batch, 0.0)]
    assert partition.batches == [3], "one batch, because it then shares a transaction"
    group.polls.clear()
    managed._turn()
    assert group.polls == [(1, short)], "no record: the next turn waits again"


def test_a_poll_waits_for_a_fifth_of_a_short_commit_interval() -> None:
    managed, group, _, _, _ = manager(replace(Settings(), commit=CommitSettings(interval=0.01)))
    group.subscribe(managed)
    managed._turn()
    records, wait = group.polls[-1]
    assert records == Settings().flow.batch
    assert wait == pytest.approx(0.002)


def test_leaving_the_group_gets_the_time_that_the_drains_left() -> None:
    managed, group, _, clock, _ = manager()
    group.on_consume = lambda: managed.stop(10.0)
    before = clock()
    managed.run()
    assert clock() - before < 11
    assert group.close_within == 1.0


def test_a_revocation_during_a_stop_does_not_prolong_it() -> None:
    managed, group, partition, clock, _ = manager()
    group.subscribe(managed)
    managed.stop(2.0)
    group.on_consume = lambda: managed.on_revoke([0])
    began = clock()
    managed._drain_all()
    assert len(partition.deadlines) == 2
    assert max(partition.deadlines) <= began + 2.0


def test_an_offset_out_of_range_fails_a_live_partition_only() -> None:
    managed, group, partition, _, reports = manager()
    group.subscribe(managed)
    group.troubles = [ConsumerTrouble(0, ValueError("out of range"), out_of_range=True)]
    managed._turn()
    assert partition.failures == []
    live(managed, reports)
    group.troubles = [ConsumerTrouble(0, ValueError("out of range"), out_of_range=True)]
    managed._turn()
    assert len(partition.failures) == 1


def test_records_of_an_input_that_was_created_again_are_not_handed_over() -> None:
    """The poll that shows the new id may have brought its first records, behind the last ones of the old topic."""
    managed, group, partition, _, reports = manager()
    group.subscribe(managed)
    group.input = InputTopic("input", "old")
    live(managed, reports, "old")
    group.messages = [MemoryMessage("input", 0, 7, b"")]
    managed._turn()
    assert len(partition.offered) == 1
    group.messages = [MemoryMessage("input", 0, 8, b"")]
    group.on_consume = lambda: setattr(group, "input", InputTopic("input", "new"))
    managed._turn()
    assert len(partition.offered) == 1
    (failure,) = partition.failures
    assert isinstance(failure, TopicReplaced)
    assert str(failure).startswith("input[0]@8: read the input: it was deleted and created again (id old before, new")
    group.on_consume, group.messages = int, [MemoryMessage("input", 0, 8, b"")]
    managed._turn()
    assert (len(partition.offered), len(partition.failures)) == (1, 1)


def test_a_partition_restored_from_another_input_than_the_client_reads_fails_before_its_first_record() -> None:
    managed, group, partition, _, reports = manager()
    group.subscribe(managed)
    group.input = InputTopic("input", "new")
    managed._turn()
    live(managed, reports, "old")
    assert isinstance(partition.failures[0], TopicReplaced)
    group.messages = [MemoryMessage("input", 0, 7, b"")]
    managed._turn()
    assert partition.offered == []


@pytest.mark.parametrize(("client", "worker"), [("", "id"), ("id", ""), ("id", "id")])
def test_an_unknown_or_equal_id_of_the_input_changes_nothing(client: str, worker: str) -> None:
    managed, group, partition, _, reports = manager()
    group.subscribe(managed)
    live(managed, reports, worker)
    group.input = InputTopic("input", client)
    group.messages = [MemoryMessage("input", 0, 7, b"")]
    managed._turn()
    assert (len(partition.offered), partition.failures) == (1, [])


def test_retained_partitions_continue_at_once_after_each_rebalance() -> None:
    """The client pauses every partition around a callback, and may then sleep for up to a second."""
    managed, group, _, _, reports = manager()
    group.subscribe(managed)
    managed._turn()
    live(managed, reports)
    group.woken.clear()
    managed._turn()
    assert group.woken == []
    for moved in (lambda: managed.on_assign([]), lambda: managed.on_revoke([])):
        group.on_consume = moved
        managed._turn()
        group.on_consume = int
        managed._turn()
        assert group.woken.pop() == {0: 7}
        assert group.woken == []


def test_an_assignment_is_as_old_as_the_poll_that_brought_it() -> None:
    """If the manager thread was blocked meanwhile, the worker asks for ownership before it fences (rule T8)."""
    managed, group, partition, clock, _ = manager()
    managed._turn()
    polled_at = clock()

    def late() -> None:
        clock.advance(20)
        managed.on_assign([0])

    group.on_consume = late
    managed._turn()
    assert partition.since == polled_at


def test_a_repeated_client_error_is_logged_once_a_minute() -> None:
    managed, group, _, clock, _ = manager()
    managed._consumer.subscribe(managed)
    logged = []
    for cause in ("offset 1", "offset 1", "offset 2", "", "offset 1"):
        if not cause:
            clock.advance(61.0)
            continue
        group.troubles = [ConsumerTrouble(-1, RuntimeError(cause))]
        managed._turn()
        logged.append(sorted(managed._logged_errors))
    one, both = ["offset 1"], ["offset 1", "offset 2"]
    assert logged == [one, one, both, one]


def test_a_revocation_fetches_the_group_metadata_before_the_drain() -> None:
    """Rule T9: under cooperative rebalancing the group's generation has changed by then, and the drain needs it."""
    managed, _, partition, _, _ = manager()
    managed._consumer.subscribe(managed)
    before, seen = managed.membership.version, list[int]()

    def revoke(deadline: float, *, final: bool) -> None:
        seen.append(managed.membership.version)
        partition.closed.set()

    partition.revoke = revoke  # type: ignore[method-assign]
    managed.on_revoke([0])
    assert seen == [before + 1]


def test_an_assignment_pauses_what_is_not_live_again_because_the_client_resumes_every_partition() -> None:
    managed, group, _, _, reports = manager()
    group.subscribe(managed)
    group.calls.clear()
    managed.on_assign([])
    assert group.calls == [("assign", []), ("pause", [0])]
    live(managed, reports)
    group.calls.clear()
    managed.on_assign([])
    assert group.calls == [("assign", [])], "it is live"


def test_a_report_of_an_earlier_assignment_moves_nothing() -> None:
    managed, group, partition, _, reports = manager()
    group.subscribe(managed)
    partition.closed.set()
    managed.on_revoke([0])
    managed.on_assign([0])
    group.calls.clear()
    reports[0](WorkerReport(0, "live", 3, 1))
    group.messages = [MemoryMessage("input", 0, 3, b"")]
    managed._turn()
    managed._turn()
    assert group.calls == []
    assert partition.offered == []
    reports[1](WorkerReport(0, "live", 7, 1))
    managed._turn()
    assert group.calls == [("resume", [0]), ("seek", [0, 7])]


def test_a_partition_that_failed_is_paused_and_gets_no_records() -> None:
    managed, group, partition, _, reports = manager()
    group.subscribe(managed)
    live(managed, reports)
    reports[0](WorkerReport(0, "failed", cause=ValueError("no")))
    managed._turn()
    assert group.calls[-1] == ("pause", [0])
    group.messages = [MemoryMessage("input", 0, 7, b"")]
    managed._turn()
    assert partition.offered == []


class Drains(threading.Event):
    """The end of a drain: it comes after a few waits, which take the time that they may."""

    def __init__(self, clock: ManualClock, waits: int) -> None:
        super().__init__()
        self._clock, self._waits = clock, waits

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0.0)
        self._waits -= 1
        if self._waits == 0:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(("waits", "lost"), [(5, False), (10**6, True)])
def test_a_revocation_gives_the_partition_back_when_its_drain_has_ended_or_when_its_time_is_over(
    waits: int, lost: bool
) -> None:
    managed, group, partition, clock, reports = manager()
    group.subscribe(managed)
    live(managed, reports)
    partition.closed, losses = Drains(clock, waits), list[float]()
    partition.lose = lambda: losses.append(clock())  # type: ignore[method-assign]
    before = clock()
    managed.on_revoke([0])
    assert group.calls[-1] == ("unassign", [0])
    assert partition.closed.is_set() is not lost
    assert [at - before for at in losses] == ([pytest.approx(Settings().group.drain_seconds, abs=0.1)] if lost else [])


def test_a_partition_that_is_assigned_twice_has_one_worker() -> None:
    """Two workers of one partition would fence each other, and no report would reach the first one's track."""
    made = list[Partition]()

    def worker(number: int, report: Any) -> Partition:
        made.append(Partition())
        return made[-1]

    clock = ManualClock()
    group = Group(clock, [0])
    subject = Manager(group, worker, Settings(), ServiceMetrics("service"), Log(EventLog()), clock)
    subject.on_assign([0])
    subject.on_assign([0])
    assert [each.closed.is_set() for each in made] == [True, False]
    assert subject.assigned == {0}


def test_a_member_of_an_incomplete_group_joins_again() -> None:
    clock, log = ManualClock(), EventLog()
    group = Group(clock, [0])
    member = GroupMember("me", "me", "host", "me", (0,))
    view = ConsumerGroup("stable", (member,))
    check = UnassignedPartitions(GroupCheck(lambda: view, Log(log), clock, Later), 2, Log(log))
    subject = Manager(
        group, lambda *_: Partition(), Settings(), ServiceMetrics("service"), Log(log), clock, unassigned=check
    )
    for _ in range(200):
        subject._turn()
        clock.advance(0.1)
    assert ("rejoin", ()) not in group.calls
    subject.on_assign([0])
    for _ in range(200):
        subject._turn()
        clock.advance(0.1)
    assert group.calls.count(("rejoin", ())) == 1
