"""A stage with compactions: run one, and see what a restore makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.system.local import Local
from tests.system.stage import Stage

from holdfast.compaction import Compaction, Outcome
from holdfast.snapshot.spark.source import Session

NO_FULLS = {"HOLDFAST_SNAPSHOT__PERIODIC_FULL": "off", "HOLDFAST_SNAPSHOT__ON_STOP": "off"}


class Looking:
    """Feeds the service of a stage, compacts, restores."""

    def __init__(self, spark: Session, stage: Stage) -> None:
        self.spark, self.stage = spark, stage

    def feed(self, count: int, keys: int = 500) -> None:
        """The service handles so many records and stops; it takes no full, so that only compactions make some."""
        with Local(self.stage, **NO_FULLS):
            self.stage.feed(count, keys=keys)
            self.stage.await_all()

    def compact(self, kind: type[Compaction] = Compaction, partitions: Sequence[int] = (), **how: Any) -> list[Outcome]:
        run = kind(self.stage.settings(), self.stage.names, tell=print, **how)
        return run.run(self.spark, partitions)

    def check_restores_from_compaction(self) -> None:
        """Every partition restores, as the fold of the input says, from the newest full of a compaction."""
        self.stage.verify()
        for partition in range(self.stage.partitions):
            restored = self.stage.snapshots.restored(partition)
            assert restored.full is not None
