"""All partitions of a service go on from the same adopt record (rule M2): a second look at what the tools ensure."""

from __future__ import annotations

from holdfast.errors import KafkaTrouble, MixedLineages
from holdfast.snapshot.records import Mark
from holdfast.worker.tools import Tools


def require_one_lineage(tools: Tools, mark: Mark) -> None:
    """Compare the restored partition with what the owners of the others noted beside their group offsets.

    Called after its own offset was asked for, which waits for the end of a transaction that concerns all of them. No
    answer is no reason to stay down.

    :raises MixedLineages: another partition is of another lineage.
    """
    place = tools.place
    try:
        noted = tools.offsets.lineages(place.input, place.partitions)
    except KafkaTrouble as error:
        tools.log.warning("kafka_retry", doing="compare the partitions' lineages", cause=str(error))
        return
    noted.pop(place.partition, None)
    others = {partition: lineage for partition, lineage in noted.items() if lineage not in ("", mark.lineage)}
    if not others:
        return
    partition, lineage = min(others.items())
    raise MixedLineages(
        f"its lineage is {mark.lineage}, that of partition {partition} is {lineage} ({len(others)} differ): some "
        f"partitions were restored, migrated or moved, others not. Nothing was changed. `holdfast snapshot list` shows "
        f"each; bring all of them to one state again",
        topic=place.input,
        partition=place.partition,
        position=mark.positions[place.input],
    )
