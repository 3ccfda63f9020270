"""Which signs a retried EndTxn leaves, and that a new producer makes the delayed request harmless."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Producer
from tests.assumptions.lab import PATIENCE, Lab, Signs, send, wait_until
from tests.support.proxy import ApiKey, Fault

from statehold.kafka.common.producer_suspicion import DEBUG, Suspicion

pytestmark = pytest.mark.kafka

BOTH_ENDS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
BOTH_FAULTS = pytest.mark.parametrize("fault", [Fault.HOLD, Fault.HOLD_AND_RESET], ids=["timeout", "reset"])
TROUBLE = ("FAIL", "REQTMOUT")


def troubles(signs: Signs, since: int = 0) -> list[str]:
    """Return the log lines that make a producer suspect."""
    return [line for line in signs.log.lines[since:] if line.startswith(TROUBLE)]


def coordinator_failures(signs: Signs, since: int = 0) -> list[str]:
    """Return the lines about a lost connection to the transaction coordinator.

    Before UP (while the address becomes known) a connection has carried nothing that could be delayed.
    """
    lost = [line for line in troubles(signs, since) if "TxnCoordinator" in line]
    return [line for line in lost if line.startswith("REQTMOUT") or "in state UP" in line]


def clean_commits(lab: Lab, producer: Producer, topic: str, count: int) -> None:
    """Run `count` ordinary transactions."""
    for number in range(count):
        producer.begin_transaction()
        send(producer, topic, f"clean {number}")
        producer.commit_transaction(PATIENCE)


@BOTH_ENDS
@BOTH_FAULTS
def test_a_retried_end_leaves_a_line_and_a_count(lab: Lab, commit: bool, fault: Fault) -> None:
    topic, signs = lab.topic("out"), Signs()
    producer = lab.producer(signs)
    clean_commits(lab, producer, topic, 20)
    lab.wait_quiet(producer, signs)
    assert (troubles(signs), signs.end_txns(), signs.errors) == ([], 20, []), "a clean commit leaves no sign"

    producer.begin_transaction()
    send(producer, topic, "1")
    began = time.monotonic()
    lab.retried_end(producer, commit=commit, fault=fault)  # returns success
    seconds = time.monotonic() - began
    before_poll = troubles(signs)
    producer.poll(0)
    assert before_poll == [], "lines come with poll, never by themselves"
    assert troubles(signs), "the line is there at the first poll(0) after the call"
    assert all("TxnCoordinator" in line for line in troubles(signs))
    lab.wait_quiet(producer, signs)
    assert signs.end_txns() == 22, "two EndTxn for one end"
    assert signs.errors == [], "error_cb keeps silent"
    if fault is Fault.HOLD:
        assert seconds > 1.0
    else:
        assert seconds < PATIENCE / 2  # a few milliseconds in practice: the duration proves nothing


def test_librdkafka_suppresses_identical_lines_of_a_suspect_producer(lab: Lab) -> None:
    """Why a producer must go at its first line: the third disconnection leaves none."""
    topic, signs = lab.topic("out"), Signs()
    producer = lab.producer(signs)
    lines: list[int] = []
    counts: list[int] = []
    for number in range(3):
        lab.wait_quiet(producer, signs)
        seen, sent = len(signs.log.lines), signs.end_txns()
        producer.begin_transaction()
        send(producer, topic, f"{number}")
        trap = lab.retried_end(producer, commit=True, fault=Fault.HOLD_AND_RESET)
        producer.poll(0)
        lines.append(len(troubles(signs, seen)))
        lab.wait_quiet(producer, signs)
        counts.append(signs.end_txns() - sent)
        trap.deliver()
    assert lines[0] >= 1
    assert lines[2] == 0, "no line although an EndTxn was retried"
    assert all(count >= 2 for count in counts), "the statistics count it all the same"


def test_with_debug_broker_no_line_is_suppressed(lab: Lab) -> None:
    """The sign to rely on: at level 7 every end of the coordinator's connection leaves a line."""
    topic, signs = lab.topic("out"), Signs()
    producer = lab.producer(signs, log_level=7, debug="broker")
    clean_commits(lab, producer, topic, 20)
    producer.poll(0)
    assert coordinator_failures(signs) == [], "ordinary transactions leave none"
    for number in range(4):
        seen = len(signs.log.lines)
        producer.begin_transaction()
        send(producer, topic, f"{number}")
        trap = lab.retried_end(producer, commit=True, fault=Fault.HOLD_AND_RESET)
        producer.poll(0)
        assert coordinator_failures(signs, seen), f"reset {number} left no line"
        trap.deliver()


@BOTH_ENDS
@BOTH_FAULTS
def test_with_debug_eos_each_request_of_a_commit_or_abort_leaves_a_line(lab: Lab, commit: bool, fault: Fault) -> None:
    """The second sign, as early as the first: statistics come after the next transaction has begun."""
    topic, signs = lab.topic("out"), Signs()
    producer = lab.producer(signs, log_level=7, debug=DEBUG)

    def responses(end: Callable[[], object]) -> int:
        seen = len(signs.log.lines)
        producer.begin_transaction()
        send(producer, topic, "1")
        end()
        producer.poll(0)
        return sum(line.startswith("ENDTXN") for line in signs.log.lines[seen:])

    assert [responses(producer.commit_transaction) for _ in range(20)] == [1] * 20
    assert [responses(producer.abort_transaction) for _ in range(5)] == [1] * 5
    assert responses(lambda: lab.retried_end(producer, commit=commit, fault=fault)) == 2


@BOTH_ENDS
@BOTH_FAULTS
def test_both_signs_are_noticed_before_the_next_transaction(lab: Lab, commit: bool, fault: Fault) -> None:
    topic = lab.topic("out")
    for sign in (("FAIL", "REQTMOUT"), "ENDTXN"):
        signs, suspicion = Signs(), Suspicion(slow=1000.0)
        producer = lab.producer(signs, log_level=7, debug=DEBUG)
        clean_commits(lab, producer, topic, 5)
        producer.poll(0)
        seen = len(signs.log.lines)
        producer.begin_transaction()
        send(producer, topic, "1")
        suspicion.calling()
        lab.retried_end(producer, commit=commit, fault=fault)
        producer.poll(0)
        for line in signs.log.lines[seen:]:
            if line.startswith(sign):
                suspicion.logged(line)
        assert suspicion.reason, sign


def test_with_debug_broker_a_connection_lost_while_idle_leaves_a_line_too(lab: Lab) -> None:
    """At level 6 it may leave none: librdkafka closes the connection itself ("nodename change")."""
    topic, signs = lab.topic("out"), Signs()
    producer = lab.producer(signs, log_level=7, debug="broker")
    clean_commits(lab, producer, topic, 1)
    lab.proxy.reset_all()
    wait_until(
        lambda: producer.poll(0.01) >= 0 and bool(coordinator_failures(signs)),
        "the line of the idle coordinator connection",
    )


@BOTH_ENDS
@BOTH_FAULTS
def test_a_new_producer_makes_the_delayed_request_harmless(lab: Lab, commit: bool, fault: Fault) -> None:
    topic = lab.topic("out")
    old = lab.producer()
    old.begin_transaction()
    send(old, topic, "1")
    delayed = lab.retried_end(old, commit=commit, fault=fault)
    new = lab.producer()
    new.begin_transaction()
    assert send(new, topic, "2.a") == 0

    assert delayed.end_txn_error() == KafkaError.INVALID_PRODUCER_EPOCH
    assert send(new, topic, "2.b") == 0
    new.commit_transaction(PATIENCE)
    assert lab.committed(topic) == (["1"] if commit else []) + ["2.a", "2.b"]


@pytest.mark.parametrize("renewed", [False, True], ids=["same producer", "new producer"])
def test_a_delayed_offset_commit_sets_the_group_back(lab: Lab, renewed: bool) -> None:
    """Unless the producer is new. TxnOffsetCommit's lines do not name TxnCoordinator."""
    topic, inputs, signs = lab.topic("increment"), lab.topic("in"), Signs()
    producer = lab.producer(signs)
    producer.begin_transaction()
    send(producer, topic, "1")
    delayed = lab.proxy.trap(ApiKey.TXN_OFFSET_COMMIT, Fault.HOLD_AND_RESET)
    lab.send_offset(producer, inputs, 5)
    producer.commit_transaction(PATIENCE)
    producer.poll(0)
    assert lab.group_offset(inputs) == 5
    assert troubles(signs)
    assert coordinator_failures(signs) == []

    if renewed:
        producer = lab.producer()
    producer.begin_transaction()
    send(producer, topic, "2")
    lab.send_offset(producer, inputs, 9)
    delayed.deliver()
    producer.commit_transaction(PATIENCE)
    assert lab.group_offset(inputs) == (9 if renewed else 5)
