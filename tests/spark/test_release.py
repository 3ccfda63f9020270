"""`rehearse` and `rebuild` on Spark: the same report as in one process; executors write the states."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tools.recorded import Ledger

from statehold.admin.inspection.topic_view import topic_view
from statehold.dev import Cluster
from statehold.errors import StartError, StateholdError, UsageError
from statehold.rebuild import replacing
from statehold.rebuild.rebuild import Rebuild, RebuildOptions
from statehold.rebuild.report import RebuiltState
from statehold.rehearsal.rehearse import RehearsalLimits, rehearse
from statehold.rehearsal.report import RehearsedPartition
from statehold.rehearsal.source import LiveTopics
from statehold.snapshot.spark.io.source import Session
from statehold.snapshot.state_replacement import ReplacementReason
from statehold.spread import rehearse as spread
from statehold.spread.partitions import ReleaseCode
from statehold.spread.rebuild import SpreadRebuild
from statehold.state import digest

REASON = ReplacementReason(tool="test", who="ann", why="ticket 9")
#: of a partition's report, what depends on the machine
MEASURED = {"seconds": 0.0, "handler_seconds": 0.0, "memory": 0}


@pytest.fixture
def ledger(spark_broker: Cluster, tmp_path: Path) -> Ledger:
    """Two partitions of 200 records and a full snapshot each."""
    made = Ledger(spark_broker.bootstrap_servers, tmp_path).create()
    with made.running():
        made.feed_in_turns(100, 100)
    return made


def release(ledger: Ledger, spark: Session | None, *changes: tuple[str, str]) -> ReleaseCode:
    """The ledger's service with other code, in a module that Spark has; without a session Spark does not have it."""
    module = f"next_{ledger.module}_{len(list(ledger.directory.iterdir()))}"
    target, path = ledger.write(module), ledger.directory / f"{module}.py"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    if spark is not None:
        spark.sparkContext.addPyFile(str(path))
    return ReleaseCode(target, ledger.settings(), ledger.names)


def steady(found: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(each, **MEASURED) for each in found]


def in_one_process(ledger: Ledger, code: ReleaseCode, limits: RehearsalLimits) -> list[RehearsedPartition]:
    factory = ledger.service(code.target.partition(":")[0]).handler
    with topic_view(code.settings, code.names) as view:
        return [rehearse(LiveTopics(view), factory, each, limits, code.settings) for each in range(ledger.partitions)]


@contextmanager
def rebuilding(ledger: Ledger, code: ReleaseCode, spark: Session | None) -> Iterator[Rebuild]:
    factory, options = ledger.service(code.target.partition(":")[0]).handler, RebuildOptions()
    with topic_view(code.settings, code.names) as view:
        topics = LiveTopics(view)
        made = (
            SpreadRebuild(spark, topics, factory, code, options)
            if spark is not None
            else Rebuild(topics, factory, options, code.settings)
        )
        with closing(made):
            yield made


DOUBLED = ("entry.amount \n", "2 * entry.amount\n")


def test_executors_rehearse_and_rebuild_a_release_as_one_process_does(spark: Session, ledger: Ledger) -> None:
    """A release that counts each amount twice: rehearsed, rebuilt next to the service and after its stop."""
    code, limits = release(ledger, spark, DOUBLED), RehearsalLimits("n:0")

    found = spread.rehearse(spark, code, [0, 1], limits)

    assert steady(found) == steady(in_one_process(ledger, code, limits))
    assert [(each.partition, each.verdict, each.records) for each in found] == [
        (0, "different", 200),
        (1, "different", 200),
    ]

    with rebuilding(ledger, code, None) as one, rebuilding(ledger, code, spark) as several:
        plain, shown = one.shown(), several.shown()
    assert [(each.keys, each.digest, each.compared, each.examples) for each in shown.partitions] == [
        (each.keys, each.digest, each.compared, each.examples) for each in plain.partitions
    ]

    seen: list[RebuiltState] = []
    with rebuilding(ledger, code, spark) as work:
        work.catch_up()
        with ledger.running():
            ledger.feed(50)
        assert work.behind() == 100  # the next task continues from what the first one has stored
        done = replacing.rebuild(work, code.settings, code.names, work.factory, REASON, seen.append)
    assert [each.records for each in seen] == [250, 250]
    assert all(each.full is not None and each.transaction is not None for each in done.partitions)
    with topic_view(code.settings, code.names) as view:
        for partition, each in enumerate(done.partitions):
            state = view.state(partition, "latest")
            assert (state.lineage, digest.show(state.digest)) == (done.lineage, each.digest)
            want = {account: 2 * amount for account, (amount, _) in ledger.recomputed(partition, 250).items()}
            held = state.contents.tables["balances"]
            assert {key: msgspec.msgpack.decode(data)["amount"] for key, data in held.items()} == want


@pytest.mark.long
def test_code_that_an_executor_does_not_have_and_errors_of_a_partition_are_named(
    spark: Session, ledger: Ledger
) -> None:
    missing = release(ledger, None)
    with pytest.raises(
        StartError, match=f"partition 0: rehearse a release: the executor cannot import {missing.target}"
    ) as found:
        spread.rehearse(spark, missing, [0, 1], RehearsalLimits())
    assert "--py-files" in str(found.value)
    there = release(ledger, spark)
    with pytest.raises(UsageError, match=r"partition 1: rehearse a release: .*is beyond the end"):
        spread.rehearse(spark, there, [1], RehearsalLimits("n:100000"))
    dying = release(ledger, spark, ("        entry = record.value", "        import os\n\n        os._exit(9)"))
    with pytest.raises(StateholdError, match="partition 1: rehearse a release: "):
        spread.rehearse(spark, dying, [1], RehearsalLimits("n:0"))


@pytest.mark.long
def test_the_commands_give_the_same_with_a_spark_of_their_own(ledger: Ledger) -> None:
    release(ledger, None, DOUBLED)
    code = release(ledger, None, DOUBLED)
    for words, exit_code in (
        (("rehearse", code.target, "--from", "n:0"), 4),
        (("rebuild", code.target, "--from", "beginning", "--why", "ticket 9"), 0),
    ):
        reports = []
        for spark in ((), ("--spark-master", "local[2]")):
            done = subprocess.run(
                ledger.command(*words, *spark, "--json"),
                cwd=ledger.directory,
                env=ledger.shell(),
                capture_output=True,
                text=True,
                check=False,
                timeout=180,
            )
            assert done.returncode == exit_code, done.stderr
            report = json.loads(done.stdout)
            for each in report["partitions"]:
                each.update(MEASURED)
            reports.append(report)
        assert reports[0] == reports[1]
