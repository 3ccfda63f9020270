"""Detection and report of an outage, the process that leaves, and calls that do not return."""

from __future__ import annotations

import threading

from structlog.testing import capture_logs

from statehold.errors import OutageTooLong, StuckCall
from statehold.health.call_watchdog import CallWatchdog
from statehold.health.connectivity import GROUP, Contact, NoContact
from statehold.telemetry.log_events import Log
from statehold.testing.memory.clock import ManualClock


def test_one_partition_that_waits_is_no_outage_and_all_of_them_are() -> None:
    clock = ManualClock()
    contact = Contact(NoContact(), clock, Log())
    contact.joins(0)
    contact.joins(1)
    contact.broken(0, "no leader")
    clock.advance(5.0)
    assert contact.view() is None
    assert contact.of(0) == {"seconds": 5.0, "cause": "no leader"}
    contact.broken(1, "timed out")
    clock.advance(3.0)
    assert contact.view() == {"seconds": 3.0, "cause": "timed out"}
    contact.works(0)
    assert contact.view() is None
    contact.leaves(0)
    assert contact.view() == {"seconds": 3.0, "cause": "timed out"}


def test_an_outage_is_logged_once_a_minute_and_when_it_is_over() -> None:
    clock, reported = ManualClock(), []
    with capture_logs() as log:
        contact = Contact(NoContact(), clock, Log())
        contact.broken(GROUP, "no coordinator")
        for second in range(200):
            contact.look()
            if any(event["event"] == "outage" for event in log):
                reported.append(second)
                log.clear()
            clock.advance(1.0)
        contact.works(GROUP)
        contact.look()
        contact.look()
        assert [event["event"] for event in log] == ["outage_over"]
    assert reported == [10, 70, 130, 190]


def test_a_short_break_is_not_logged() -> None:
    clock = ManualClock()
    with capture_logs() as log:
        contact = Contact(NoContact(), clock, Log())
        for second in range(60):
            (contact.broken if second % 9 else lambda who, _: contact.works(who))(GROUP, "moving")
            contact.look()
            clock.advance(1.0)
    assert not log


def test_a_process_that_may_not_wait_leaves_once() -> None:
    clock, left = ManualClock(), list[OutageTooLong]()
    contact = Contact(NoContact(), clock, Log(), 30.0, left.append)
    contact.broken(GROUP, "no coordinator")
    for second in range(100):
        contact.look()
        assert len(left) == (second >= 30)
        clock.advance(1.0)
    assert "no coordinator" in str(left[0])


def test_a_call_that_does_not_return_is_logged_once_with_its_stack() -> None:
    clock, overdue = ManualClock(), list[StuckCall]()
    watch = CallWatchdog(clock, Log(), overdue.append)
    inside, free = threading.Event(), threading.Event()

    def never() -> None:
        with watch.call("commit_transaction", 3.0, partition=2):
            inside.set()
            free.wait()

    thread = threading.Thread(target=never)
    with capture_logs() as log:
        thread.start()
        assert inside.wait(60)
        for _ in range(20):
            watch.look()
            clock.advance(0.5)
    free.set()
    thread.join()
    assert [(error.partition, "commit_transaction" in str(error)) for error in overdue] == [(2, True)]
    assert [event["event"] for event in log] == ["stuck"]
    assert "free.wait()" in log[0]["stack"]
    watch.look()
    assert not watch._calls


def test_time_in_which_the_process_was_frozen_does_not_count() -> None:
    clock, overdue = ManualClock(), list[StuckCall]()
    watch = CallWatchdog(clock, Log(), overdue.append)
    with watch.call("poll", 10.0):
        clock.advance(3600.0)
        watch.look()
        assert not overdue
        for _ in range(20):
            clock.advance(0.5)
            watch.look()
        assert overdue


def test_a_watchdog_that_gets_a_quarter_of_its_time_is_four_times_as_patient() -> None:
    """With 200 partitions on a slow machine a call that was late, but not stuck, ended the process."""
    clock, overdue = ManualClock(), list[StuckCall]()
    watch = CallWatchdog(clock, Log(), overdue.append)
    with watch.call("init_transactions", 31.0):
        for _ in range(60):
            clock.advance(2.0)
            watch.look()
        assert not overdue
        for _ in range(3):
            clock.advance(0.5)
            watch.look()
        assert overdue
