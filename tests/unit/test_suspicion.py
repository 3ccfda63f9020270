"""Which signs make a producer suspect: each one alone, and nothing else (rule T2)."""

from __future__ import annotations

import pytest

from statehold.kafka.common.producer_suspicion import Suspicion

LOST = "FAIL [thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: Disconnected (after 300ms in state UP)"
BOOTSTRAP = "FAIL [thrd:127.0.0.1:9092/bootstrap]: 127.0.0.1:9092/bootstrap: _DESTROY_BROKER (after 1ms in state UP)"
COORDINATOR = "FAIL [thrd:TxnCoordinator]: TxnCoordinator: 127.0.0.1:9092: Disconnected (after 300ms in state UP)"
TIMED_OUT = "REQTMOUT [thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: Timed out 1 in-flight requests"


@pytest.fixture
def suspicion() -> Suspicion:
    made = Suspicion(5.0)
    made.begun()
    return made


@pytest.mark.parametrize("line", [LOST, TIMED_OUT])
def test_a_lost_connection_of_a_transaction(suspicion: Suspicion, line: str) -> None:
    suspicion.in_transaction = True
    suspicion.logged(line)
    assert "a connection was lost" in suspicion.reason


def test_a_lost_connection_between_transactions_is_forgotten(suspicion: Suspicion) -> None:
    suspicion.logged(LOST)
    suspicion.begun()
    suspicion.abort_ended()
    assert suspicion.reason == ""


def test_the_transactions_coordinator_counts_at_any_time(suspicion: Suspicion) -> None:
    suspicion.logged(COORDINATOR)
    assert "TxnCoordinator" in suspicion.reason


def test_the_clients_own_end_of_its_first_connection_does_not_count(suspicion: Suspicion) -> None:
    suspicion.in_transaction = True
    suspicion.logged(BOOTSTRAP)
    assert suspicion.reason == ""


def test_a_connection_that_was_lost_before_an_abort_counts_with_the_abort(suspicion: Suspicion) -> None:
    suspicion.logged(LOST)
    assert suspicion.reason == ""
    suspicion.abort_ended()
    assert "a connection was lost" in suspicion.reason


def test_after_an_abort_each_lost_connection_counts_until_a_commit(suspicion: Suspicion) -> None:
    suspicion.abort_ended()
    suspicion.logged(LOST)
    assert "a connection was lost" in suspicion.reason
    suspicion.reason = ""
    suspicion.begun()  # does not forget it
    suspicion.abort_ended()
    assert "a connection was lost" in suspicion.reason
    suspicion.reason = ""
    suspicion.commit_ended()
    suspicion.logged(LOST)
    assert suspicion.reason == ""


def test_a_slow_call(suspicion: Suspicion) -> None:
    suspicion.ended(4.9)
    assert suspicion.reason == ""
    suspicion.ended(5.1)
    assert "took 5.10 s" in suspicion.reason


def test_a_call_that_was_requested_twice(suspicion: Suspicion) -> None:
    for _ in range(2):
        suspicion.calling()
        suspicion.logged("ENDTXN first")
    assert suspicion.reason == ""
    suspicion.logged("ENDTXN second")
    assert "sent 2 requests" in suspicion.reason


def test_the_first_reason_is_kept(suspicion: Suspicion) -> None:
    suspicion.suspect("first")
    suspicion.suspect("second")
    assert suspicion.reason == "first"
