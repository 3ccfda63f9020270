"""Queries about a running service and its group, in addition to the manager's status. Any thread."""

from __future__ import annotations

from typing import Any

from statehold.common.names import Names
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.end_offsets import CachedEnds, End
from statehold.kafka.admin.group_answers import cached_members, cached_offsets
from statehold.worker.partition import PartitionWorker
from statehold.worker.replicas.queries import Committed
from statehold.worker.replicas.standby import Standbys
from statehold.worker.status import PartitionStatus


class Overview:
    """Members, committed states and lag of a running service. Each start creates a new one."""

    def __init__(self, admin: Admin, names: Names, partitions: int) -> None:
        #: Number of partitions of the input.
        self.partitions = partitions
        self.members = cached_members(admin.new_client, names.group, names.input)
        self._inputs = names.inputs
        self._offsets = cached_offsets(admin, names.inputs, partitions)
        self._ends = CachedEnds(admin, names.inputs)
        self._workers: dict[int, PartitionWorker] = {}
        self.standbys: Standbys | None = None

    def note(self, worker: PartitionWorker) -> PartitionWorker:
        """Store the worker as the newest one of its partition, and return it."""
        self._workers[worker.partition] = worker
        return worker

    def status(self, partition: int) -> PartitionStatus | None:
        """Return phase and cause of a partition that is or was assigned here."""
        worker = self._workers.get(partition)
        return None if worker is None else worker.status()

    def committed(self, oldest: float | None = None) -> dict[int, Committed]:
        """Return the states that this process can query: of live partitions, and of replicas up to `oldest` s old."""
        found = {partition: worker.committed() for partition, worker in self._workers.copy().items()}
        live = {partition: each for partition, each in found.items() if each is not None}
        copies = self.standbys.committed(oldest) if self.standbys is not None and oldest is not None else {}
        return dict(sorted((copies | live).items()))

    def with_ends(self, partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add end offset and lag to the manager's status of each partition; None while they are unknown.

        A partition that is not live has the position that the group has committed. With several inputs the figures are
        sums, and `inputs` has those of each.
        """
        ends = self._ends.look(each["partition"] for each in partitions)
        offsets = self._offsets.look() if any(each["position"] is None for each in partitions) else {}
        found = []
        for each in partitions:
            partition, live = each["partition"], each["live"]
            inputs: list[dict[str, Any]] = []
            for topic in self._inputs:
                position = live["commit_record"]["positions"][topic] if live else offsets.get((topic, partition))
                inputs.append({"topic": topic, "position": position, **_left(position, ends.get((topic, partition)))})
            sums = {name: _sum([of_one[name] for of_one in inputs]) for name in ("position", "end", "lag", "hidden")}
            found.append({**each, **sums, "inputs": inputs if len(inputs) > 1 else []})
        return found


def _left(position: int | None, end: End | None) -> dict[str, Any]:
    if end is None:
        return {"end": None, "lag": None, "hidden": None}
    lag = None if position is None else max(0, end.stable - position)
    return {"end": max(end.stable, position or 0), "lag": lag, "hidden": end.high - end.stable}


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
