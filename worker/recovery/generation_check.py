"""All partitions of a service go on from the same adopt record (rule M2): a second look at what the tools ensure."""

from __future__ import annotations

from statehold.errors import DamagedIncrement, KafkaTrouble, MixedLineages
from statehold.ports import Noted
from statehold.snapshot.format.records import Mark
from statehold.worker.common.context import Tools


def require_one_lineage(tools: Tools, mark: Mark) -> None:
    """Compare the restored partition with what the owners of the others noted beside their group offsets.

    Called after its own offset was asked for, which waits for the end of a transaction that concerns all of them. No
    answer is no reason to stay down.

    :raises MixedLineages: another partition is of another lineage.
    :raises DamagedIncrement: the mark that was committed with the group's offset is a later one.
    """
    place = tools.place
    try:
        noted = tools.offsets.lineages(place.input, place.partitions)
    except KafkaTrouble as error:
        tools.log.warning("kafka_retry", doing="compare the partitions' lineages", cause=str(error))
        return
    require_last(tools, mark, noted.pop(place.partition, None))
    others = {p: each.lineage for p, each in noted.items() if each.lineage not in ("", mark.lineage)}
    if not others:
        return
    partition, lineage = min(others.items())
    raise MixedLineages(
        f"its lineage is {mark.lineage}, that of partition {partition} is {lineage} ({len(others)} differ): some "
        f"partitions were restored, migrated or moved, others not. Nothing was changed. `statehold snapshot list` "
        f"shows each; bring all of them to one state again",
        topic=place.input,
        partition=place.partition,
        position=mark.positions[place.input],
    )


def require_last(tools: Tools, mark: Mark, noted: Noted | None) -> None:
    """The offset was committed in one transaction with its mark: a later number than `mark`'s means a log that is cut.

    The position alone would not tell it where the transactions that are missing have handled no record.

    :raises DamagedIncrement: see `second_look`: for some seconds a leader may not tell its whole log.
    """
    place = tools.place
    if noted is None or noted.lineage != mark.lineage or noted.n <= mark.n:
        return
    raise DamagedIncrement(
        f"transaction {noted.n} has committed (the group's offset says so), the last mark that is there is {mark.n}: "
        f"the brokers have lost the end of {place.names.changelog}, by an unclean election of a leader perhaps. "
        f"Nothing was changed. See docs/runbook/errors.md#damagedincrement",
        topic=place.input,
        partition=place.partition,
        position=mark.positions[place.input],
    )


def require_newest(tools: Tools, mark: Mark) -> None:
    """`require_last` by a question of its own. :raises DamagedIncrement: as that."""
    place = tools.place
    try:
        noted = tools.offsets.lineages(place.input, place.partitions)
    except KafkaTrouble as error:
        tools.log.warning("kafka_retry", doing="compare the last mark's number", cause=str(error))
        return
    require_last(tools, mark, noted.get(place.partition))
