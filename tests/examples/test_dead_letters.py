"""The example of dead letters, in the driver: the desk reads those of the payments; resolved ones leave it."""

from __future__ import annotations

from examples.dead_letters.app import Case, Desk, Payment, Payments

from statehold.testing import Driver


def test_the_desk_knows_what_waits() -> None:
    payments, desk = Driver(Payments, autocommit=True), Driver(Desk)
    for account, amount in (("ann", 5), ("ann", -9), ("bob", 1), ("ann", 6)):
        payments.feed(Payment(account, amount), key=account)
    assert payments.outputs("booked") == ["ann +5 = 5", "bob +1 = 1"]
    passed_on = hand_over(payments, desk, 0)
    assert desk.table("cases") == {"ann": Case((1, 3), "ann has only 5")}

    assert payments.release("ann", why="still refused") == 2
    payments.advance(1)
    assert [dead_letter.offset for dead_letter in payments.dead_letters()] == [1, 3]
    payments.release("ann", discard=True, why="the customer cancelled")
    payments.advance(1)
    hand_over(payments, desk, passed_on)
    assert desk.table("cases") == {}
    payments.feed(Payment("ann", 1), key="ann")
    assert payments.table("balances") == {"ann": 6, "bob": 1}
    payments.replay()


def hand_over(payments: Driver, desk: Driver, start: int) -> int:
    """What Kafka does between two services."""
    messages = list(payments.broker.log(payments.names.dead, 0).committed())
    for message in messages[start:]:
        desk.feed(message.value(), key=message.key(), headers=message.headers())
    return len(messages)
