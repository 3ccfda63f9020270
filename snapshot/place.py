"""Which partition of which service this is: what every mark and manifest is checked against."""

from __future__ import annotations

import msgspec

from holdfast.errors import DamagedIncrement, PartitionCountChanged, TopicReplaced
from holdfast.names import Names
from holdfast.snapshot.records import Manifest, Mark, Writer


class Place(msgspec.Struct, frozen=True):
    """One partition, with the identities of its topics as the broker tells them now."""

    names: Names
    partition: int
    partitions: int
    #: topic -> topic id, of input, increment and full
    topic_ids: dict[str, str]
    writer: Writer = Writer()

    @property
    def input(self) -> str:
        return self.names.input

    def check(self, mark: Mark) -> None:
        """:raises DamagedIncrement, PartitionCountChanged, TopicReplaced: the mark is of another place."""
        position = mark.positions.get(self.input, -1)
        if (mark.service, mark.partition) != (self.names.group, self.partition):
            raise DamagedIncrement(
                f"the last mark belongs to service {mark.service!r} partition {mark.partition}, not to "
                f"{self.names.group!r} partition {self.partition}; check service.namespace and who writes to "
                f"{self.names.increment}",
                topic=self.input,
                partition=self.partition,
                position=position,
            )
        if mark.partitions != self.partitions:
            raise PartitionCountChanged(
                f"the state was built with {mark.partitions} partitions, the topic has {self.partitions} now: keys "
                f"have "
                f"moved. Migrate the state to a topic of {self.partitions} partitions; nothing was changed",
                topic=self.input,
                partition=self.partition,
                position=position,
            )
        for topic, known in mark.topic_ids.items():
            now = self.topic_ids.get(topic, known)
            if now != known:
                raise TopicReplaced(
                    f"topic {topic} was deleted and created again (id {known} in the last mark, {now} now), so "
                    f"positions "
                    f"mean other records. Bring the old topic back, or start anew: delete {self.names.increment} and "
                    f"{self.names.full}, then `holdfast topics create --start-at ...`",
                    topic=self.input,
                    partition=self.partition,
                    position=position,
                )

    def refuses(self, manifest: Manifest, mark: Mark) -> str:
        """Why a full cannot be the base for this mark (rules S1, S6), or ''."""
        owner = (manifest.service, manifest.partition, manifest.partitions)
        if owner != (self.names.group, self.partition, self.partitions):
            return f"it belongs to {manifest.service!r} partition {manifest.partition} of {manifest.partitions}"
        if manifest.lineage != mark.lineage:
            return f"its lineage is {manifest.lineage}, the last mark's {mark.lineage}"
        if manifest.first < mark.adopted:
            return f"it begins with transaction {manifest.first}, the lineage with {mark.adopted}"
        if manifest.through > mark.n:
            return f"it goes through transaction {manifest.through}, the last mark is {mark.n}"
        if manifest.first < manifest.through and manifest.through > mark.last_delta:
            return f"it needs a delta at or after transaction {manifest.through}, the newest is {mark.last_delta}"
        return ""
