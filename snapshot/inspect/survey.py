"""What one partition has on its topics, and what a restore would do with it: fast, reads no chunk."""

from __future__ import annotations

import msgspec

from statehold.errors import PartitionError
from statehold.ports import Reader
from statehold.snapshot import full_listing
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Mark
from statehold.snapshot.full_listing import COMPACTION, Full
from statehold.snapshot.restore.discovery import last_mark


class Survey(msgspec.Struct, frozen=True):
    """One partition. Offsets are the increment and full topics' own, positions the input's."""

    partition: int
    mark: Mark | None
    fulls: list[Full]
    #: first offset, last stable offset
    increment: tuple[int, int]
    full: tuple[int, int]
    #: the full that a restore would start from
    choice: Full | None
    why: str
    #: no deltas lead on from there: the input after it is handled again, which the log calls `replaying_far`
    far: bool = False
    #: where the input begins, as far as it is kept
    begin: int = 0
    #: what stands in the way of a restore, with the next command; '' when nothing is known
    trouble: str = ""


def survey(reader: Reader, place: Place, *, everything: bool = False) -> Survey:
    """Look at a partition. Damage is told in `trouble`, not raised.

    :raises KafkaTrouble, RestoreTimeout: Kafka did not answer.
    """
    names, partition = place.names, place.partition
    mark, trouble = None, ""
    increment = reader.bounds(names.changelog, partition)
    try:
        mark = last_mark(reader, names.changelog, partition)
        if mark is not None:
            place.check(mark)
    except PartitionError as error:
        trouble = str(error)
    except frame.BadFrame as error:
        trouble = (
            f"{names.changelog}[{partition}]: a record cannot be read: {error}; `statehold snapshot verify` names it"
        )
    if mark is None and not trouble:
        trouble = _no_mark(increment)
    found = full_listing.find(reader, place, mark, everything=everything)
    begin = reader.bounds(names.input, partition)[0]
    choice, why, fault = choose(mark, found, increment)
    far = mark is not None and choice is None and not place.deltas_reach(mark.adopted, mark)
    if mark is not None and (far or fault):
        choice, why, fault = choose_far(place, mark, found, increment, begin)
        far = not fault
    return Survey(
        partition=partition,
        mark=mark,
        fulls=found,
        increment=increment,
        full=reader.bounds(names.snapshot, partition),
        choice=choice,
        why=why,
        far=far,
        begin=begin,
        trouble=trouble or fault,
    )


def choose(mark: Mark | None, found: list[Full], increment: tuple[int, int]) -> tuple[Full | None, str, str]:
    """What a restore would start from, why, and what is wrong if it could not start at all."""
    if mark is None:
        return None, "nothing to restore", ""
    usable = [full for full in found if not full.finding and (full.referred or full.maker == COMPACTION)]
    usable = [full for full in usable if full.manifest is not None and full.manifest.increment >= increment[0]]
    refused = [f"full@{full.offset}: {full.finding}" for full in found if full.finding and full.referred]
    if usable and usable[0].manifest is not None:
        behind = mark.n - usable[0].manifest.first
        why = (
            f"newest usable full, then {behind} transaction{'s' if behind > 1 else ''} after it"
            if behind
            else "newest usable full, nothing after it"
        )
        return usable[0], "; ".join([why, *refused]), ""
    if increment[0] == 0 or mark.adopted > 0:
        return None, "; ".join([f"no full: all {mark.n - mark.adopted} transactions from the beginning", *refused]), ""
    cause = "; ".join(refused) or "the last mark refers to none"
    fault = (
        f"no usable full ({cause}), and the increments begin at offset {increment[0]}: "
        f"see docs/runbook/errors.md#damagedincrement"
    )
    return None, "nothing to restore from", fault


def choose_far(
    place: Place, mark: Mark, found: list[Full], increment: tuple[int, int], begin: int
) -> tuple[Full | None, str, str]:
    """As `choose`, where the deltas lead on from no full that can be used: the input after an older one must be there.

    `begin` is the first position of the input that is kept.
    """
    missing = []
    for full in found:
        made = full.manifest
        if made is None or place.refuses(made, mark, replayed=True) or made.increment < increment[0]:
            continue
        if (at := made.positions.get(place.input, -1)) >= begin:
            count = mark.positions[place.input] - at
            return full, f"the deltas do not reach back to it: {count} records from {at} on are handled again", ""
        missing.append(f"full@{full.offset} needs the input from {at} on")
    if mark.adopted > 0:
        return None, f"no full: the records since transaction {mark.adopted} are handled again", ""
    if increment[0] == 0 and begin == 0:
        return None, f"no full: all {mark.positions[place.input]} records from the beginning are handled again", ""
    cause = "; ".join([*missing, *(f"full@{full.offset}: {full.finding}" for full in found if full.finding)])
    fault = (
        f"no usable full ({cause or 'the last mark refers to none'}), the increments begin at offset {increment[0]}, "
        f"the input at {begin}: see docs/runbook/errors.md#nousablefull"
    )
    return None, "nothing to restore from", fault


def _no_mark(increment: tuple[int, int]) -> str:
    start, end = increment
    if end == 0:
        return "no mark: never started; `statehold topics create --start-at ...` makes the first start"
    return (
        f"offsets {start} to {end} hold no mark: it was there and is gone; see docs/runbook/errors.md#damagedincrement"
    )
