"""Full snapshots in a directory and in S3: compaction writes them; Spark, restores, backups and tools read them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.compactions import Looking
from tests.support.apps.tally import Tally
from tests.support.local_service import Local
from tests.support.s3 import S3, serving
from tests.support.stage import Stage
from tests.support.verify import fold, read_all

from statehold.admin.backup.backup import backup
from statehold.admin.executor_clients import ReaderFactory
from statehold.admin.inspection.topic_view import topic_view
from statehold.bound.table import bind
from statehold.errors import UsageError
from statehold.snapshot.backup.archive import FULL_SNAPSHOTS
from statehold.snapshot.backup.reading import ArchiveReader, check_all, place_of
from statehold.snapshot.format import frame
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.verify import verify
from statehold.snapshot.spark.io.source import Session
from statehold.snapshot.store.by_url import open_store

STORE = "STATEHOLD_SNAPSHOT__FULL_STORE"


@pytest.fixture(scope="module")
def s3(spark: Session) -> Iterator[S3]:
    """Its credentials are in the test's environment and in that of the executors' Python."""
    with serving() as server:
        kept = dict(spark.sparkContext.environment)
        spark.sparkContext.environment.update(server.environment)
        yield server
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(kept)


def kinds(stage: Stage) -> set[bytes]:
    """Of the records on the snapshot topic."""
    return {frame.kind_of(row.value) for rows in read_all(stage.servers, stage.names.snapshot).values() for row in rows}


def snapshots_in(stage: Stage, root: str) -> set[str]:
    """The ids of those whose segments are in the store."""
    folders = (f"{stage.names.group}.{stage.names.input}/{p}" for p in range(stage.partitions))
    return {stored.key.split("/")[2] for folder in folders for stored in open_store(root).list(folder)}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["s3", "file"])
def test_compactions_into_a_store(spark: Session, staged: Stage, s3: S3, kind: str, tmp_path: Path) -> None:
    root = s3.bucket() if kind == "s3" else f"file://{tmp_path}/fulls"
    settings = {STORE: root, "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096"}
    look = Looking(spark, staged, **settings)
    look.feed(2000)
    assert [each.status for each in look.compact(dry_run=True)] == ["proven", "proven"]
    assert not (tmp_path / "fulls").exists()
    first = look.compact()
    assert [(each.status, each.proven) for each in first] == [("compacted", True)] * 2, first
    assert kinds(staged) == {b"F"}
    look.check_restores_from(*(each.full for each in first))
    names = snapshots_in(staged, root)
    assert len(names) == 2

    if kind == "file":
        for path in (tmp_path / "fulls").rglob("0*"):
            os.utime(path, (10**9, 10**9))  # long before any grace
    look.feed(500, keys=50)
    second = look.compact(keep=1)  # its base is read from the store
    assert [(each.status, bool(each.truncated)) for each in second] == [("compacted", True)] * 2, second
    assert not names & snapshots_in(staged, root) or kind == "s3", "a truncated full's segments leave the store"
    with Local(staged, **settings) as local:
        local.await_live(0, 1)
        assert [each["full"] for each in local.events("restored")] != [None, None]
        assert not local.events("full_unusable")
        staged.feed(300)
        staged.await_all()
    staged.verify()
    exported(spark, look, tmp_path / "export")
    backed_up(look, tmp_path / "backup", root, tmp_path if kind == "file" else None)


def exported(spark: Session, look: Looking, to: Path) -> None:
    from statehold.snapshot.spark.export.export import export

    stage = look.stage
    with topic_view(look.settings(), stage.names) as view:
        reader_of = ReaderFactory(look.settings(), stage.names)
        done = export(spark, reader_of, view.reader, view.places(None), {}, [bind(Tally.totals)], to)
    state = fold(read_all(stage.servers, stage.names.input)).totals
    assert done.rows == {"totals": sum(map(len, state.values()))}


def backed_up(look: Looking, to: Path, root: str, moving: Path | None) -> None:
    """A backup holds the chunks; without the store, and with the store elsewhere, all can be read."""
    stage = look.stage
    made = backup(look.settings(), stage.names, [stage.output], to)
    segments = [file for file in made.files if file.role == "segment"]
    assert segments
    moved = root
    if moving is not None:
        (moving / "fulls").rename(moving / "moved")
        moved = f"file://{moving}/moved"
    with topic_view(stage.settings(**{STORE: moved}), stage.names) as view:
        for place in view.places(None):
            verdict = verify(view.reader, place)
            assert verdict.good, verdict.findings
            assert any(full.good for full in verdict.full_snapshots)
    if moving is None:
        for stored in list(open_store(root).list(f"{stage.names.group}.{stage.names.input}")):
            open_store(root).delete(stored.key)
    check_all(to, made)
    for each in made.partitions:
        found = past.at(ArchiveReader(to, made), place_of(to, made, each.partition), past.LATEST)
        assert found.base is not None
        assert found.contents.keys == each.keys
    with (to / segments[0].name).open("r+b") as file:
        file.write(b"\x00\x00\x00\x01")
    with pytest.raises(UsageError, match="differs from the manifest"):
        check_all(to, made)
    shutil.rmtree(to / FULL_SNAPSHOTS)
    with pytest.raises(UsageError):
        check_all(to, made)
