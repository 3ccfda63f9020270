"""Features take part in a transaction by a few verbs: one that is not used runs no code, a new one changes no file."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Caller, Op

import statehold
from statehold import Handler, Output, Record, Table
from statehold.snapshot.format.records import CommitRecord
from statehold.testing import Driver
from statehold.worker.common.lifecycle import Phase
from statehold.worker.takeover import ORDER
from statehold.worker.transaction.participants import CommitDraft, Participant, Participants, SideWork

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(statehold.__file__).resolve().parent
#: code of features that a handler with a table and an output does not use
UNUSED = (
    "disk/disk_state.py",
    "disk/lmdb_store.py",
    "disk/mark.py",
    "disk/rows.py",
    "disk/start.py",
    "disk/stored.py",
    "worker/calls/",
    "worker/handler/call_book.py",
    "worker/full_snapshots/local_store.py",
    "worker/full_snapshots/scrub.py",
    "worker/handler/dead_letters.py",
    "worker/handler/effect_calls.py",
    "worker/handler/event_time.py",
    "worker/failures/",
    "worker/participants/dead_letters.py",
    "worker/participants/effect_runner.py",
    "worker/participants/idle_clock.py",
    "worker/participants/late_records.py",
    "worker/participants/reference_data.py",
    "worker/participants/rekey_hops.py",
    "worker/participants/retry_topics.py",
    "worker/participants/side_effects.py",
    "worker/sinks/",
    "worker/replicas/",
    "worker/common/opentelemetry.py",
    "worker/common/tracing.py",
)
#: further code that a restore does not need: checks of declarations, and parts that the first full snapshot creates
UNUSED_IN_RESTORE = (
    *UNUSED,
    "api/values/table_types.py",
    "api/values/versioned_values.py",
    "bound/policies.py",
    "api/values/serde.py",
    "bound/sink.py",
    "state/kinds/",
    "snapshot/restore/full_loading.py",
    "snapshot/restore/local_cache.py",
    "snapshot/restore/standby_copy.py",
    "snapshot/store/",
    "worker/full_snapshots/compaction_search.py",
    "worker/full_snapshots/local_copy.py",
    "worker/full_snapshots/orphan_cleanup.py",
    "worker/full_snapshots/truncation.py",
    "worker/full_snapshots/verification.py",
    "worker/handler/commands.py",
)


class Plain(Handler[Op]):
    """One table, one output."""

    totals = Table(key=str, value=int)
    out = Output("out", value=int)

    def on_record(self, record: Record[Op]) -> None:
        total = self.totals.get(record.value.account, 0) + record.value.amount
        self.totals[record.value.account] = total
        self.out.send(total)


def files_run(action: Callable[[], Any]) -> set[str]:
    """The product's files of which a function runs in `action`, on this thread."""
    found: set[str] = set()

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(trace)
    try:
        action()
    finally:
        sys.setprofile(None)
    paths = [Path(each).resolve() for each in found if not each.startswith("<")]
    homes = (INSTALLED, ROOT)  # an installed package has the folders that a checkout links to
    return {str(path.relative_to(home)) for path in paths for home in homes if path.is_relative_to(home)}


def test_a_feature_that_the_handler_does_not_use_runs_no_code() -> None:
    driver = Driver(Plain)
    driver.feed(Op("ann", 1))
    driver.commit()

    def work() -> None:
        driver.feed(Op("ann", 2))
        driver.commit()
        driver.advance(2.0)

    found = files_run(work)
    assert "worker/transaction/pipeline.py" in found
    assert [path for path in sorted(found) if path.startswith(UNUSED)] == []


def test_a_restore_runs_no_code_of_a_feature_that_the_handler_does_not_use() -> None:
    driver = Driver(Plain)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.crash()

    found = files_run(driver.restore)
    assert "worker/recovery/recovery.py" in found
    assert [path for path in sorted(found) if path.startswith(UNUSED_IN_RESTORE)] == []
    assert driver.table("totals") == {"ann": 1}


def test_the_tracer_sees_a_feature_that_is_used() -> None:
    driver = Driver(Caller)
    driver.feed(1)
    driver.commit()

    def work() -> None:
        driver.feed(2)
        driver.commit()

    found = files_run(work)
    assert {path for path in found if path.startswith(UNUSED)} == {
        "worker/handler/effect_calls.py",
        "worker/participants/side_effects.py",
    }


class Dummy(Participant):
    """Notes every verb."""

    def __init__(self) -> None:
        self.verbs: list[str] = []

    def opened(self, record: CommitRecord) -> None:
        self.verbs.append(f"opened {record.n}")

    def began(self) -> None:
        self.verbs.append("began")

    def side_inputs(self, work: SideWork) -> None:
        self.verbs.append(f"side_inputs {work.position}")

    def contribute(self, draft: CommitDraft) -> None:
        self.verbs.append(f"contribute {draft.records}")
        draft.before_commit = lambda: self.verbs.append("before_commit")

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self.verbs.append(f"committed {record.n}")

    def rolled_back(self) -> None:
        self.verbs.append("rolled_back")

    def finish(self, record: CommitRecord, wait: float) -> bool:
        self.verbs.append("finish")
        return False

    def close(self) -> None:
        self.verbs.append("close")


@pytest.fixture
def dummy(monkeypatch: pytest.MonkeyPatch) -> Dummy:
    """One that takes part in each live phase of a driver."""
    made, join = Dummy(), Participants.join

    def with_dummy(participants: Participants, *members: Participant) -> None:
        join(participants, *members, *(() if made in participants.members else (made,)))

    monkeypatch.setattr(Participants, "join", with_dummy)
    return made


def test_a_participant_of_a_test_takes_part_in_every_transaction(dummy: Dummy) -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.commit()
    assert dummy.verbs == [
        "opened 0",
        "began",
        "side_inputs 1",
        "contribute 1",
        "before_commit",
        "committed 1",
    ]
    dummy.verbs.clear()
    driver.rebalance()
    driver.feed(Op("ann", 2))
    driver.commit()
    first = dummy.verbs.index("rolled_back")
    assert dummy.verbs[first:] == [
        "rolled_back",
        "began",
        "side_inputs 2",
        "contribute 1",
        "before_commit",
        "committed 2",
    ]
    dummy.verbs.clear()
    driver.stop()
    assert dummy.verbs.count("finish") == 1
    driver.restore()
    worker = inside.lanes(driver)[0].worker
    worker.lose()
    while worker.phase is not Phase.CLOSED:
        worker.step()
    assert dummy.verbs[-1] == "close"


def test_participants_come_in_their_order_however_they_join() -> None:
    members = [kind.__new__(kind) for kind in ORDER]
    for seed in range(20):
        shuffled = random.Random(seed).sample(members, len(members))
        joined = Participants(ORDER)
        joined.join(*shuffled[:3])
        further = Dummy()
        joined.join(further)
        for each in shuffled[3:]:
            joined.join(each)
        assert [type(each) for each in joined.members if each is not further] == list(ORDER)
        assert joined.members[-1] is further


class _Counting:
    """Not a participant itself, but a base of one."""

    def __init__(self) -> None:
        self.commits = 0

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self.commits += 1


class Counted(_Counting, Participant):
    """Gets its verb from a base that is no participant."""


def test_a_verb_of_any_base_is_called() -> None:
    participants, counted = Participants((Counted,)), Counted()
    participants.join(counted)

    assert participants.on_committed == [counted.committed]
    assert participants.on_began == []
