"""A stage with compactions: run one, make trouble for it, and see what a restore makes of the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from confluent_kafka import Producer
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.admin.compaction import Compaction
from statehold.admin.compaction_publish import CompactionResult
from statehold.config.settings import Settings
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, CommitRecord, Header, Manifest
from statehold.snapshot.spark.io.source import Session
from statehold.snapshot.store.base import roots_of
from statehold.telemetry.log_events import Log

NO_SNAPSHOTS = {"STATEHOLD_SNAPSHOT__PERIODIC_FULL": "off", "STATEHOLD_SNAPSHOT__ON_STOP": "off"}


class Looking:
    """Feeds the service of a stage, compacts, restores."""

    def __init__(self, spark: Session | None, stage: Stage, **settings: str) -> None:
        self.spark, self.stage, self._more = spark, stage, settings
        stage.snapshots.roots = roots_of(self.settings())

    def settings(self) -> Settings:
        return self.stage.settings(**self._more)

    def feed(self, count: int, keys: int = 500) -> None:
        """The service handles this number of records and stops; only compactions make full snapshots."""
        with Local(self.stage, **NO_SNAPSHOTS, **self._more):
            self.stage.feed(count, keys=keys)
            self.stage.await_all()

    def compact(
        self, kind: type[Compaction] = Compaction, partitions: Sequence[int] = (), **how: Any
    ) -> list[CompactionResult]:
        assert self.spark is not None
        run = kind(self.settings(), self.stage.names, report=print, **how)
        return run.run(self.spark, partitions)

    def statuses(self, **how: Any) -> list[str]:
        return [outcome.status for outcome in self.compact(**how)]

    def check_restores_from(self, *manifests: int | None) -> None:
        """Every partition restores, as the fold of the input says, from the full with this manifest."""
        self.stage.verify()
        for partition, offset in enumerate(manifests):
            restored = self.stage.snapshots.restored(partition)
            assert (restored.full.offset if restored.full else None) == offset, f"partition {partition}"

    def check_restores_from_compaction(self) -> None:
        """As `check_restores_from`, whichever full it was."""
        self.stage.verify()
        assert all(self.stage.snapshots.restored(partition).full for partition in range(self.stage.partitions))

    # What is on the topics

    def full_snapshots(self, partition: int) -> list[tuple[int, Manifest | Chunk]]:
        """The records of the snapshot topic with their offsets."""
        found = []
        for row in read_all(self.stage.servers, self.stage.names.snapshot)[partition]:
            record = records.unpack(row.value)
            assert isinstance(record, (Manifest, Chunk))
            found.append((row.offset, record))
        return found

    def commit_record(self, partition: int) -> CommitRecord:
        return self.stage.snapshots.restored(partition).commit_record

    def start(self, topic: str, partition: int) -> int:
        return read_all(self.stage.servers, topic)[partition][0].offset

    # Trouble

    def forge(self, partition: int, damage: str) -> int:
        """A full of the last mark as a compaction would have published it, with something wrong; its offset."""
        commit_record, of = self.commit_record(partition), self.full_snapshots(partition)
        (_, model), chunks = of[-1], [(offset, one) for offset, one in of if isinstance(one, Chunk)]
        assert isinstance(model, Manifest)
        chunks = [(offset, chunk) for offset, chunk in chunks if chunk.full == model.full]
        payloads = [records.pack(Chunk("forged", c.i, -1, c.entry), model.format) for _, c in chunks]
        sums = tuple(frame.body_checksum(payload) for payload in payloads)
        if damage == "corrupted":
            payloads[1] = payloads[1][:-1] + bytes([payloads[1][-1] ^ 1])
        elif damage == "missing":
            del payloads[1]
        low = self._produce(partition, payloads)
        manifest = msgspec.structs.replace(
            model,
            full="forged",
            first=commit_record.n,
            through=commit_record.n,
            positions=commit_record.positions,
            digest=commit_record.digest,
            checksums=sums,
            low=low,
        )
        return self._produce(partition, [records.pack(manifest, model.format)])

    def _produce(self, partition: int, payloads: Sequence[bytes]) -> int:
        """The offset of the first."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.stage.servers, "enable.idempotence": True})
        for payload in payloads:
            producer.produce(
                self.stage.names.snapshot,
                payload,
                partition=partition,
                on_delivery=lambda _, message: offsets.append(message.offset() or 0),
            )
        assert producer.flush(30) == 0
        return offsets[0]

    def transact(self, partition: int, *, commit: bool, **wrong: Any) -> None:
        """A transaction of nothing after the last mark, with what is `wrong` in its mark; committed or aborted."""
        commit_record, names = self.commit_record(partition), self.stage.names
        settings = self.stage.settings()
        producer = KafkaTransactions(settings, names, partition, Log(), time.monotonic)
        producer.fence(lambda: False)
        producer.begin()
        n, position = commit_record.n + 1, commit_record.positions[names.input]
        header = Header(n, producer.attempt, commit_record.lineage, position)
        fields = {"n": n, "attempt": producer.attempt, "start": position, "parts": 0, "last_delta": n, **wrong}
        for record in (header, msgspec.structs.replace(commit_record, **fields)):
            producer.send_increment(names.changelog, partition, records.pack(record, commit_record.format))
        if commit:
            producer.commit()
        else:
            producer.abort()
        producer.drop()
