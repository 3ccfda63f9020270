"""`state migrate` on a real broker: the service continues from the new state; all or nothing, and no live member."""

from __future__ import annotations

from contextlib import ExitStack, closing

import msgspec
import pytest
from tests.support.apps.tally import Event, Tally, Total, tally
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage
from tests.support.verify import fold, read_all

from statehold import Handler, Record, Service, Table
from statehold.admin.state.migrate import Migration, migrate, split_or_merge
from statehold.admin.state.stopped_service import StoppedService, inputs_at
from statehold.errors import MixedLineages, TableTypeChanged, ToolRefused, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.tools.group_lock import GroupLock
from statehold.snapshot.format import records
from statehold.snapshot.format.records import StateReplacement
from statehold.snapshot.state_edits import Edit, Patch
from statehold.snapshot.state_replacement import ReplacementReason
from statehold.state import digest

pytestmark = pytest.mark.kafka

REASON = ReplacementReason(tool="test", who="ann", why="ticket 7")


class Old(msgspec.Struct):
    """What the code of before stored under the same bytes."""

    count: int
    sum: int


def halve(key: str, old: Old) -> Total | None:
    """Keys that end in 7 go, the others lose half of their sum."""
    return None if key.endswith("7") else Total(old.count, old.sum // 2)


def broken(key: str, old: Old) -> Total:
    if old.count > 0:
        raise ValueError(key)
    return Total()


def run(
    stage: Stage, edit: Edit | None = halve, patches: tuple[Patch, ...] = (), *, dry_run: bool = False
) -> Migration:
    functions = {"totals": edit} if edit else {}
    handler = tally(stage.output)
    return migrate(stage.settings(), stage.names, handler, functions, patches, REASON, dry_run=dry_run)


@pytest.fixture
def stopped(two_partitions: Stage) -> Stage:
    """Two partitions with some state, and no member in the group."""
    two_partitions.feed(3000, keys=200)
    with Local(two_partitions):
        two_partitions.await_all()
    return two_partitions


def states(stage: Stage) -> dict[int, dict[str, Total]]:
    return {p: dict(stage.snapshots.restored(p).state.tables["totals"].items()) for p in range(stage.partitions)}


def replacements(stage: Stage, partition: int) -> list[StateReplacement]:
    found = [records.unpack(row.value) for row in read_all(stage.servers, stage.names.changelog)[partition]]
    return [record for record in found if isinstance(record, StateReplacement)]


def test_the_service_continues_from_the_other_state(stopped: Stage) -> None:
    stage = stopped
    before = fold(read_all(stage.servers, stage.names.input)).totals
    assert states(stage) == before
    shown = run(stage, dry_run=True)
    assert states(stage) == before
    assert replacements(stage, 0) == []

    done = run(stage, patches=(Patch("totals", "key-8", {"count": 1, "sum": 2}), Patch("totals", "new", None, 1)))
    wanted = {p: {k: Total(t.count, t.sum // 2) for k, t in each.items() if k[-1] != "7"} for p, each in before.items()}
    for each in wanted.values():
        if "key-8" in each:
            each["key-8"] = Total(1, 2)
    assert states(stage) == wanted
    for p, reported in enumerate(done.partitions):
        assert (reported.counts.before, reported.counts.after) == (len(before[p]), len(wanted[p]))
        assert reported.counts.deleted == len(before[p]) - len(wanted[p])
        (replacement,) = replacements(stage, p)
        assert (replacement.who, replacement.why, replacement.lineage) == ("ann", "ticket 7", done.lineage)
        assert (digest.show(replacement.old_digest), digest.show(replacement.digest)) == (
            reported.old_digest,
            reported.digest,
        )
        assert (replacement.old_keys, replacement.keys, replacement.n) == (
            len(before[p]),
            len(wanted[p]),
            reported.transaction,
        )
        assert shown.partitions[p].old_digest == reported.old_digest

    said = read_all(stage.servers, stage.output)
    seen = sum(map(len, said.values()))
    with Local(stage, STATEHOLD_SNAPSHOT__PERIODIC_FULL="false") as local:
        stage.feed(500, keys=200)
        stage.await_all()
        assert not local.events("full_unusable", "offset_behind")
    after = states(stage)
    rows = read_all(stage.servers, stage.names.input)
    for p, each in wanted.items():
        for row in rows[p][done.partitions[p].position :]:
            old = each.get(row.key, Total())
            each[row.key] = Total(old.count + 1, old.sum + msgspec.json.decode(row.value)["amount"])
    assert after == wanted
    assert sum(map(len, read_all(stage.servers, stage.output).values())) == seen + 500
    noted = Admin(stage.settings(), stage.names.group).lineages(stage.names.input, 2)
    assert {p: each.lineage for p, each in noted.items()} == dict.fromkeys((0, 1), done.lineage)
    assert {p: each.n for p, each in noted.items()} == {p: stage.snapshots.restored(p).commit_record.n for p in (0, 1)}
    one_partition_alone(stage)
    with Local(stage) as local:
        assert f"its state generation is {done.lineage}, that of partition 0 is other" in local.await_failed(
            1, MixedLineages
        )
        local.await_failed(0, MixedLineages)


class Renamed(msgspec.Struct, frozen=True):
    """The next release's total: `sum` has another name, and a default."""

    count: int = 0
    amount: int = 0


class NextRelease(Handler[bytes]):
    totals = Table(key=str, value=Renamed)

    def on_record(self, record: Record[bytes]) -> None:
        raise AssertionError


def of_old(key: str, old: Old) -> Renamed:
    return Renamed(old.count, old.sum)


def unannotated(key, old):  # type: ignore[no-untyped-def]
    return old


def test_a_renamed_field_is_migrated_by_a_function_that_reads_the_old_type(stopped: Stage) -> None:
    """Without the old type in its annotation the function would read the new one, so nothing is done."""
    stage, before = stopped, states(stopped)
    for edits in ({}, {"totals": unannotated}):
        with pytest.raises(TableTypeChanged, match="sum: int is gone"):
            migrate(stage.settings(), stage.names, NextRelease, edits, (), REASON, dry_run=True)
    migrate(stage.settings(), stage.names, NextRelease, {"totals": of_old}, (), REASON)
    with closing(StoppedService(stage.settings(), stage.names, NextRelease, "test")) as stopped_service:
        for partition, totals in before.items():
            found = stopped_service.find(stopped_service.place(partition, 2, stopped_service.facts()))
            after = dict(found.state.tables["totals"].items())
            assert after == {key: Renamed(total.count, total.sum) for key, total in totals.items()}
    with Local(stage) as local:
        assert "amount: int is gone" in local.await_failed(0, TableTypeChanged)


class Halves(Handler[Event]):
    """The next release: the totals in two tables."""

    counts = Table(key=str, value=int)
    sums = Table(key=str, value=int)

    def on_record(self, record: Record[Event]) -> None:
        key = (record.key or b"").decode()
        self.counts[key] = self.counts.get(key, 0) + 1
        self.sums[key] = self.sums.get(key, 0) + record.value.amount


def split(old: Tally, new: Halves) -> None:
    for key, total in old.totals.items():
        new.counts[key] = total.count
        new.sums[key] = total.sum


class AfterSplit:
    """A stage whose service has the next release."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def service(self, **more: str) -> Service:
        names, settings = self._stage.names, self._stage.settings(**more)
        return Service(names.service, input=names.input, handler=Halves, settings=settings)


def test_a_table_is_split_by_a_command_that_dies_first(stopped: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies when both states are written and none is replaced: nothing has changed. The next run changes both."""
    stage, before = stopped, states(stopped)
    what = stage.settings(), stage.names, Halves, split, REASON
    shown = split_or_merge(*what, dry_run=True)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoppedService, "replace_state", die)
        with pytest.raises(KeyboardInterrupt):
            split_or_merge(*what)
    assert states(stage) == before
    assert [replacements(stage, partition) for partition in (0, 1)] == [[], []]

    done = split_or_merge(*what)
    for partition, each in enumerate(done.partitions):
        keys = len(before[partition])
        assert each.tables == {"totals": (keys, 0), "counts": (0, keys), "sums": (0, keys)}
        assert each.digest == shown.partitions[partition].digest
        (replacement,) = replacements(stage, partition)
        assert (replacement.why, replacement.keys) == ("ticket 7", 2 * keys)
    with Local(AfterSplit(stage)):
        stage.feed(100, keys=200)
        stage.await_all()
    with closing(StoppedService(stage.settings(), stage.names, Halves, "test")) as service:
        for partition, totals in fold(read_all(stage.servers, stage.names.input)).totals.items():
            found = service.find(service.place(partition, 2, service.facts())).state.tables
            assert dict(found["counts"].items()) == {key: total.count for key, total in totals.items()}
            assert dict(found["sums"].items()) == {key: total.sum for key, total in totals.items()}
    with pytest.raises(ToolRefused, match="it was migrated before"):
        split_or_merge(*what)


def one_partition_alone(stage: Stage) -> None:
    """No tool of statehold does this: partition 0 continues from another state-replacement record than partition 1."""
    with closing(StoppedService(stage.settings(), stage.names, tally(stage.output), "test")) as stopped:
        place = stopped.place(0, 2, stopped.facts())
        stopped.fence([0])
        found = stopped.find(place)
        inputs = inputs_at(found.commit_record, stage.names)
        adoption = stopped.adoption(place, "other", found.commit_record, inputs, found.state, found.commit_record)
        with GroupLock(stage.settings(), stage.names, stopped.admin, 2, "state migrate") as hold:
            stopped.replace_state([adoption], hold.membership(), REASON)


def test_a_service_that_starts_meanwhile_keeps_the_tool_from_committing(stopped: Stage) -> None:
    stage, before = stopped, states(stopped)
    with ExitStack() as stack:
        started: list[Local] = []

        def starts(key: str, old: Total) -> Total:
            if not started:
                started.append(stack.enter_context(Local(stage)))
                await_true(lambda: len(stage.group.members()) == 2, "the service has joined")
                await_true(lambda: bool(started[0].events("assigned")), "and was given a partition")
            return Total(0, 0)

        with pytest.raises(ToolRefused, match="a member has joined group"):
            run(stage, starts)
        started[0].await_live(0, 1)
        stage.feed(100)
        stage.await_all()
    assert all(replacements(stage, partition) == [] for partition in before)
    stage.verify()


def test_a_rejected_command_changes_nothing(stopped: Stage) -> None:
    stage = stopped
    before = {p: stage.snapshots.restored(p).commit_record for p in range(2)}
    with pytest.raises(UsageError, match=r"table 'totals', key 'key-\d+': broken raised ValueError"):
        run(stage, broken)
    with pytest.raises(UsageError, match=r"1 patched key\(s\) are in no partition: totals\['absent'\]"):
        run(stage, None, (Patch("totals", "absent", {"count": 1, "sum": 1}),), dry_run=True)
    with pytest.raises(UsageError, match="no table 'total'; there are: totals"):
        run(stage, None, (Patch("total", "a", None),))
    with pytest.raises(UsageError, match="patch of table 'totals', key 'a': Expected `int`, got `str`"):
        run(stage, None, (Patch("totals", "a", {"count": "x"}),))
    assert {p: stage.snapshots.restored(p).commit_record for p in range(2)} == before
    with Local(stage) as local:
        local.await_live(0, 1)
        with pytest.raises(ToolRefused, match=r"has 1 member\(s\): .* Stop the service first"):
            run(stage)
        stage.feed(100)
        stage.await_all()
        assert not local.failures(0)
    assert states(stage) == fold(read_all(stage.servers, stage.names.input)).totals
