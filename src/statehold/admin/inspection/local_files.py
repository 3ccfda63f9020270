"""Verifies the files of tables on disk of a stopped service, row by row, against the commit record in Kafka.

A process of its own reads the files, because damaged pages may end it by a signal. Nothing is changed.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from statehold.api.handler import Handler, HandlerFactory
from statehold.bound.attributes import bound_tables, schemas, table_types
from statehold.bound.topics import class_of
from statehold.config.settings import Settings
from statehold.disk import label as labels
from statehold.disk.dated import index_names
from statehold.disk.directory import root_of, slots
from statehold.disk.disk_state import codec_of
from statehold.disk.kinds.placed import placed_on_disk
from statehold.disk.label import StoreLabel
from statehold.disk.lmdb_store import Locked, Unusable, read_only
from statehold.disk.rows import DamagedRow
from statehold.disk.stored import scan
from statehold.disk.usage import UnfitFiles, Usage, boot_id
from statehold.errors import LocalStoreFailed, UsageError
from statehold.health.death_notes import state_directory
from statehold.ports import Reader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore.discovery import last_commit_record, newest_commit_record
from statehold.state import digest

_PIECE = 2048


class FilesFinding(msgspec.Struct, frozen=True):
    """A fault, which makes the result bad, or the reason why a start restores from Kafka instead, which does not."""

    fault: bool
    text: str


class FilesVerification(msgspec.Struct):
    """Result for one directory. `n`: its transaction, -1 if it holds no committed state; `digest` is recomputed."""

    partition: int
    path: str
    n: int = -1
    rows: int = 0
    digest: str = ""
    seconds: float = 0.0
    findings: list[FilesFinding] = []

    @property
    def good(self) -> bool:
        return not any(finding.fault for finding in self.findings)


class FilesContents(msgspec.Struct, frozen=True):
    """What the files hold. `fault`: why they cannot be read to the end."""

    label: bytes | None = None
    counts: dict[str, int] = {}
    digest: int = 0
    fault: str = ""


def tables_and_root(factory: HandlerFactory, settings: Settings) -> tuple[LocalTables, Path]:
    """Return the handler's tables, and the directory of their files.

    :raises UsageError: it has no table on disk, or there is no directory.
    """
    kind = class_of(factory)
    tables = LocalTables.of(kind, settings)
    if not tables.on_disk:
        raise UsageError(f"{kind.__name__} has no tables on disk. Next: verify what is in Kafka, without --local")
    root = root_of(settings.state, state_directory(settings.service.state_dir))
    if root is None:
        raise UsageError("tables on disk need a directory, and service.state_dir is off. Next: set state.dir")
    return tables, root


class LocalTables(msgspec.Struct, frozen=True):
    """The tables of a handler: stored name -> its key type, and those that are on disk, with their indexes."""

    keys: dict[str, Any]
    on_disk: frozenset[str]
    indexes: tuple[str, ...]
    schemas: dict[str, int]
    types: dict[str, Any]

    @classmethod
    def of(cls, kind: type[Handler[Any]], settings: Settings) -> LocalTables:
        on_disk = placed_on_disk(kind, settings.state.storage)
        tables = bound_tables(kind, False)
        keys = {table.name: table.key_type for table in tables}
        return cls(keys, on_disk, index_names(tables, on_disk), schemas(kind), table_types(kind))


def verify_files(
    reader: Reader, places: Sequence[Place], tables: LocalTables, root: Path, limit: int
) -> Iterator[FilesVerification]:
    """Verify each directory of these partitions below `root`, and yield its result. Damage is reported, not raised.

    :raises KafkaTrouble, RestoreTimeout: Kafka did not answer.
    """
    for place in places:
        here = msgspec.structs.replace(place, schemas=tables.schemas, types=tables.types)
        for directory in slots(root, place):
            if (directory / "data.mdb").exists():
                yield _verified(reader, here, tables, directory, limit)


def _verified(reader: Reader, place: Place, tables: LocalTables, directory: Path, limit: int) -> FilesVerification:
    began, found = time.monotonic(), FilesVerification(place.partition, str(directory), findings=[])
    try:
        Usage(directory / "usage", boot_id()).check()
    except (UnfitFiles, OSError) as error:
        found.findings.append(FilesFinding(False, str(error)))
    contents = _read_elsewhere(directory, tables, limit)
    found.rows = sum(count for name, count in contents.counts.items() if name in tables.keys)
    if contents.fault:
        found.findings.append(FilesFinding(True, contents.fault))
    else:
        found.digest = digest.show(contents.digest)
        found.findings += _compared(reader, place, tables, contents, found)
    found.seconds = round(time.monotonic() - began, 3)
    return found


def _read_elsewhere(directory: Path, tables: LocalTables, limit: int) -> FilesContents:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, directory, tables.keys, tables.on_disk, tables.indexes, limit))
    process.start()
    there.close()
    try:
        found: FilesContents = here.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return FilesContents(fault=f"reading them ended a process by {how}: pages are damaged")
    finally:
        here.close()
        process.join()
    return found


def _send(to: Connection, *arguments: Any) -> None:
    to.send(read_files(*arguments))


def read_files(
    directory: Path, keys: dict[str, Any], on_disk: frozenset[str], indexes: Sequence[str], limit: int
) -> FilesContents:
    """Read and check all rows of one directory, and all entries of its indexes. Damaged pages may end this process."""
    counts = dict.fromkeys((*keys, *indexes), 0)
    total = 0
    codecs = {name: codec_of(kind, on_disk=name in on_disk) for name, kind in keys.items()}
    try:
        with read_only(directory, list(counts), limit, _failure) as snapshot:
            for piece in scan(codecs, indexes, snapshot, _PIECE):
                counts[piece.table] += piece.rows
                total += piece.digest
            return FilesContents(snapshot.label(), counts, total % digest.MODULUS)
    except Locked:
        return FilesContents(fault="another process holds the files. Next: stop the service, and verify them again")
    except (Unusable, DamagedRow, LocalStoreFailed, OSError) as error:
        return FilesContents(counts=counts, fault=str(error))


def _failure(doing: str, cause: str) -> LocalStoreFailed:
    return LocalStoreFailed(f"{doing}: {cause}", topic="", partition=-1)


def _compared(
    reader: Reader, place: Place, tables: LocalTables, contents: FilesContents, found: FilesVerification
) -> Iterator[FilesFinding]:
    if contents.label is None:
        yield FilesFinding(False, "they hold no committed state")
        return
    label = labels.decoded(contents.label)
    if label is None:
        yield FilesFinding(False, "another release of statehold wrote them, or their label is damaged")
        return
    record = label.record
    found.n = record.n
    if label.fingerprint != labels.fingerprint(place, {name: name in tables.on_disk for name in tables.keys}):
        yield FilesFinding(False, "they hold other tables, or values of other types, than this code; not compared")
        return
    if label.counts != contents.counts:
        yield FilesFinding(True, f"they hold {contents.counts} keys, and were written with {label.counts}")
    computed = digest.to_bytes(contents.digest)
    for what, carried in (("they carry", label.digest), (f"commit record {record.n} has", record.digest)):
        if carried != computed:
            yield FilesFinding(
                True, f"their rows have digest {digest.show(computed)}, and {what} {digest.show(carried)}"
            )
            return
    yield from _in_kafka(reader, place, label)


def _in_kafka(reader: Reader, place: Place, label: StoreLabel) -> Iterator[FilesFinding]:
    """Compare the commit record of the files with the log."""
    record = label.record
    newest = last_commit_record(reader, place.names.changelog, place.partition)
    if newest is None:
        yield FilesFinding(False, "Kafka holds no commit record of the partition")
        return
    if newest.lineage != record.lineage:
        text = f"they are of state generation {record.lineage}, the last commit record of {newest.lineage}"
        yield FilesFinding(False, text)
        return
    located = newest_commit_record(reader, place, lambda kept: kept.n <= record.n)
    if located is None or located.commit_record.identity != record.identity:
        yield FilesFinding(False, f"the commit record of transaction {record.n} is not in Kafka, or no longer")
