"""What a restored service finds in the topics of its Rekeys: what its senders will not send again (rule H4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehold.admin.backup.in_flight import InFlight
from statehold.api.record import MemoryMessage
from statehold.bound.output import ORIGIN, ORIGIN_HEADER
from statehold.common.names import Names
from statehold.errors import ToolRefused
from statehold.snapshot.backup.archive import ArchiveFile, BackupManifest
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.clients import MemoryReader
from statehold.testing.memory.clock import ManualClock

TOPIC = "bank.by_account.rekey"
NAMES = Names("bank", "transfers", others=(TOPIC,))
#: partition 0 is restored at transaction 7, partition 1 at transaction 4
STATES = {0: 7, 1: 4}


def sent(partition: int, n: int) -> list[tuple[str, bytes]]:
    return [(ORIGIN_HEADER, ORIGIN.pack(partition, n, 0))]


@pytest.mark.parametrize(
    ("topic", "headers", "again"),
    [
        (TOPIC, sent(0, 7), False),
        (TOPIC, sent(0, 8), True),
        (TOPIC, sent(1, 4), False),
        (TOPIC, sent(1, 5), True),
        (TOPIC, None, False),
        (TOPIC, [(ORIGIN_HEADER, b"short")], False),
        ("transfers", sent(0, 8), False),
    ],
)
def test_what_its_sender_will_send_again_is_not_written(
    topic: str, headers: list[tuple[str, bytes]] | None, again: bool
) -> None:
    message = MemoryMessage(topic, 0, 3, b"{}", b"ann", headers)
    assert InFlight(NAMES, STATES).is_sent_again(topic, message) is again


def check(records: list[list[tuple[str, bytes]] | None], handled: int, *, accept: bool = False) -> None:
    """Check a topic of one partition with these headers, of which the first ones are handled."""
    broker = MemoryBroker(ManualClock())
    for headers in records:
        broker.log(TOPIC, 0).append(b"{}", b"ann", headers)
    file = ArchiveFile("input", TOPIC, 0, "input", 0, len(records), len(records), 0, "")
    manifest = BackupManifest.of(NAMES, "", [], [file], topic_ids={}, outputs={}, made="")
    InFlight(NAMES, STATES).require_causes(
        MemoryReader(broker, lambda: False), Path(), manifest, {0: {TOPIC: handled}}, accept_duplicates=accept
    )


def test_a_state_that_has_handled_what_will_be_sent_again_is_rejected() -> None:
    check([sent(0, 6), sent(1, 4), sent(0, 7), sent(0, 8)], 3)
    with pytest.raises(ToolRefused, match=r"by_account.rekey\[0\]@3: .* partition 0 sent in transaction 8 and would"):
        check([sent(0, 6), sent(1, 4), sent(0, 7), sent(0, 8)], 4)


def test_a_restored_record_is_kept_and_accepted_at_the_next_restore() -> None:
    first = MemoryMessage(TOPIC, 0, 3, b"{}", b"ann", [("trace", b"t"), *sent(1, 4)])
    headers = InFlight(NAMES, STATES).headers(TOPIC, first)
    assert headers == [("trace", b"t"), *sent(1, 0)]
    again = InFlight(NAMES, {0: 0, 1: 0})
    assert not again.is_sent_again(TOPIC, MemoryMessage(TOPIC, 0, 0, b"{}", b"ann", headers))
    assert again.headers(TOPIC, MemoryMessage(TOPIC, 0, 0, b"{}", b"ann", headers)) == headers


@pytest.mark.parametrize(
    ("topic", "headers"),
    [("transfers", sent(0, 8)), (TOPIC, None), (TOPIC, []), (TOPIC, [(ORIGIN_HEADER, b"short"), ("trace", b"t")])],
)
def test_all_other_records_are_written_as_they_were(topic: str, headers: list[tuple[str, bytes]] | None) -> None:
    assert InFlight(NAMES, STATES).headers(topic, MemoryMessage(topic, 0, 3, b"{}", b"ann", headers)) == headers


def test_a_record_without_a_sender_needs_a_word() -> None:
    with pytest.raises(ToolRefused, match=r"@1: .* does not name its sender, because output.origin is off"):
        check([sent(0, 6), None], 1)
    check([sent(0, 6), None], 1, accept=True)
