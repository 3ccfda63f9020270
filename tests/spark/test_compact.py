"""`statehold compact` on a real broker with a real Spark: what it publishes, what it refuses, what it deletes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Never

import pytest
from tests.spark.compactions import Looking
from tests.support.apps.tally import CLEAR
from tests.support.stage import Stage

from statehold.admin.compaction import Compaction
from statehold.errors import CompactionBusy
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.tools.compaction_lock import CompactionLock
from statehold.snapshot.format.records import Chunk, Manifest
from statehold.snapshot.full import CHUNK_KEYS
from statehold.snapshot.spark.io.source import Session


@pytest.fixture
def look(spark: Session, staged: Stage) -> Looking:
    return Looking(spark, staged)


class CutOffError(Exception):
    """Stands for a kill: nothing that comes after it in a run happens."""


class KilledBeforeManifest(Compaction):
    def publish(self, written: Sequence[Any]) -> Never:
        raise CutOffError


class KilledBeforeTruncation(Compaction):
    def truncate(self, place: Any, found: Any) -> Never:
        raise CutOffError


def test_a_life_of_compactions(look: Looking) -> None:
    """Deltas only; up to date; killed between chunks and manifest, and between manifest and truncation."""
    look.feed(2000)
    assert [each.status for each in look.compact(dry_run=True)] == ["proven", "proven"]
    assert look.full_snapshots(0) == []
    first = look.compact()
    assert [(each.status, each.proven) for each in first] == [("compacted", True)] * 2, first
    look.check_restores_from(*(each.full for each in first))
    assert look.statuses() == ["up to date", "up to date"]

    look.feed(500, keys=50)
    with pytest.raises(CutOffError):
        look.compact(KilledBeforeManifest)
    assert isinstance(look.full_snapshots(0)[-1][1], Chunk), "chunks without a manifest"
    look.check_restores_from(*(each.full for each in first))

    with pytest.raises(CutOffError):
        look.compact(KilledBeforeTruncation, keep=1)
    assert look.start(look.stage.names.changelog, 0) == 0
    done = look.compact(keep=1)
    assert [each.status for each in done] == ["up to date", "up to date"]
    assert all(each.truncated for each in done)
    for partition in range(2):
        kept = [record for _, record in look.full_snapshots(partition) if isinstance(record, Manifest)]
        assert [(manifest.maker, list(manifest.types)) for manifest in kept] == [("compaction", ["totals"])]
        assert look.start(look.stage.names.changelog, partition) > 0
    look.feed(500)
    look.stage.verify()


@pytest.mark.parametrize("damage", ["corrupted", pytest.param("missing", marks=pytest.mark.long)])
def test_a_damaged_base_is_stepped_over(look: Looking, damage: str) -> None:
    look.feed(6 * CHUNK_KEYS, keys=6 * CHUNK_KEYS)  # of several chunks in each of two partitions
    good = look.compact(partitions=[0])[0]
    look.feed(300, keys=30)
    forged = look.forge(0, damage)
    look.feed(300, keys=30)
    look.check_restores_from(good.full)
    made = look.compact(partitions=[0])[0]
    assert (made.status, made.proven) == ("compacted", True), made
    assert forged < (made.full or 0)
    look.check_restores_from(made.full)


def test_what_cannot_be_proven_is_not_published_and_spoils_no_other_partition(look: Looking) -> None:
    """A commit record with another digest; then deleted keys, an aborted tail, and then a partition without input."""
    stage = look.stage
    for number in range(20):
        stage.send(b'{"id":%d,"amount":%d}' % (number, CLEAR if number % 5 == 4 else 7), 1, key=f"k{number % 3}")
    stage.count(20)
    look.feed(0)
    outcomes = look.compact()
    assert [each.status for each in outcomes] == ["nothing to fold", "compacted"], outcomes
    look.feed(1000)
    commit_record = look.commit_record(0)
    look.transact(1, commit=False)
    look.transact(0, commit=True, digest=b"\x01" * 16)
    outcomes = look.compact()
    assert [each.status for each in outcomes] == ["failed", "compacted"], outcomes
    assert "digest" in outcomes[0].cause
    assert commit_record.n + 1 == outcomes[0].transaction
    assert not [record for _, record in look.full_snapshots(0) if isinstance(record, Manifest)]


def test_only_one_at_a_time(look: Looking) -> None:
    settings, names = look.stage.settings(), look.stage.names
    with CompactionLock(settings, names, Admin(settings, names.group)) as lock:
        with pytest.raises(CompactionBusy, match="another compaction of this service is running"):
            look.compact()
        lock.check()


@pytest.mark.long  # tests/driver/test_counterexamples_snapshots.py does it without Spark
def test_a_restore_that_is_overtaken_by_a_truncation_plans_again(
    look: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    look.feed(6 * CHUNK_KEYS, keys=6 * CHUNK_KEYS)  # of several chunks in each of two partitions
    look.compact(partitions=[0])
    look.feed(1000)
    names = look.stage.names
    overtaken: list[object] = []
    read = KafkaReader.read

    def overtaking(
        self: KafkaReader, topic: str, partition: int, start: int, end: int, most: int = 2000
    ) -> Iterator[Any]:
        full = look.stage.snapshots
        if topic == names.snapshot and end - start > 1 and not overtaken:
            overtaken.append(full)
            assert look.compact(partitions=[0], keep=1)[0].truncated
        return read(self, topic, partition, start, end, most)

    monkeypatch.setattr(KafkaReader, "read", overtaking)
    look.stage.snapshots.notes.clear()
    look.stage.verify()
    assert overtaken
    assert "restore_overtaken" in [event for event, _ in look.stage.snapshots.notes]
