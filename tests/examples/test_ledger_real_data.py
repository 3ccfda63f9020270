"""The ledger as a process on a real broker, killed three times: it ends with the bank's own balances."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from examples.feeding import Feed
from examples.held import held_by
from examples.ledger.app import Ledger
from examples.proof import compare_events, digest
from examples.running import ServiceProcess, statehold, wait_until
from examples.topics import Progress, by_key, read_committed
from tests.examples.bank import Agreement, Row, agreement, needs_data, rows, running

from statehold.common.names import Names
from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, needs_data]

TARGET = "examples.ledger.app:service"
PARTITIONS = 3
RATE = 2_500.0
EAGER = ("--set", "group.session_timeout=6", "--set", "commit.max_records=200")
"""Back soon after a kill, and many small transactions, so that kills hit every step of one."""


@pytest.mark.long
def test_a_killed_ledger_ends_with_the_banks_balances(
    kafka_cluster: Callable[[], Cluster], tmp_path: Path, seed: int
) -> None:
    servers = kafka_cluster().bootstrap_servers
    book = rows()
    statehold(servers, f"topics create {TARGET} --start-at beginning --partitions {PARTITIONS}")
    ledger = ServiceProcess(TARGET, servers, tmp_path, "ledger", *EAGER)
    feed = Feed(servers, "transactions", RATE)
    bank = Thread(target=feed.send, args=([row.record() for row in book],))
    try:
        ledger.start()
        bank.start()
        kill_three_times(servers, ledger, len(book), Random(seed))
        wait_until(lambda: len(ledger.live()) == PARTITIONS, "all partitions live", 60.0, ledger)
        assert ledger.stop() == 0
    except BaseException:
        print(ledger.tail())
        raise
    finally:
        feed.stop()
        bank.join()
        ledger.kill()
    assert check_balances(servers, book) == Agreement(close=39_932, exact=37_703, days=39_960)
    check_state(servers, book)


def kill_three_times(servers: str, ledger: ServiceProcess, records: int, random: Random) -> None:
    """At random points of the progress; it is started again at once and continues from its snapshots."""
    progress = Progress(servers, "ledger", "transactions")
    points = sorted(random.randrange(records // 20, records * 9 // 10) for _ in range(3))
    for point in (*points, records):
        wait_until(lambda: progress.position() >= point, f"{point} transactions", 120.0, ledger)  # noqa: B023
        if point < records:
            ledger.kill()
            ledger.start()


def check_balances(servers: str, book: list[Row]) -> Agreement:
    """Compare the answers one by one with a recomputation, then the evenings with the bank."""
    answers = by_key(read_committed(servers, "booked"))
    expected = {str(account): reported for account, reported in running(book).items()}
    found = compare_events("booked", expected, answers)
    assert found.ok, found.first
    ends = {(each["account"], each["date"]): each["balance"] for reported in answers.values() for each in reported}
    return agreement(book, ends)


def check_state(servers: str, book: list[Row]) -> None:
    """What the ledger holds is recomputed for each partition from what lies there."""
    by_id = {row.id: row for row in book}
    lying = read_committed(servers, "transactions")
    for partition, held in held_by(servers, Names("ledger", "transactions"), Ledger).items():
        ours = [by_id[json.loads(record.value)["id"]] for record in lying[partition]]
        assert held.digest == digest(tables(ours))


def tables(book: list[Row]) -> dict[str, dict[int, dict[str, int]]]:
    """Balances and turnover as the ledger's tables hold them."""
    accounts: dict[int, dict[str, int]] = {}
    turnover: dict[int, dict[str, int]] = {}
    for row in book:
        account = accounts.setdefault(row.account, {"balance": 0, "entries": 0})
        account["balance"] += row.movement
        account["entries"] += 1
        day = turnover.setdefault(row.date, {"credit": 0, "debit": 0})
        day["credit" if row.movement > 0 else "debit"] += row.amount
    return {"accounts": accounts, "turnover": turnover}
