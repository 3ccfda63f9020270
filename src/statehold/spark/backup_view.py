"""A backup in place of the topics: a read of it needs no cluster (rule V4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import BackupManifest
from statehold.snapshot.backup.reading import ArchiveReader, place_of
from statehold.snapshot.format.partition_identity import Place


class ArchiveReaderFactory:
    """Makes a reader of the files, which the executors must see under the same path; it is pickled."""

    def __init__(self, directory: Path, manifest: BackupManifest) -> None:
        self._directory, self._manifest = directory, manifest

    def __call__(self) -> ArchiveReader:
        return ArchiveReader(self._directory, self._manifest)


class BackupView:
    """The partitions of a backup, as `TopicView` has those of the topics."""

    def __init__(self, directory: Path) -> None:
        """:raises UsageError: it is no complete backup."""
        self.directory = directory.absolute()  # executors have other working directories
        self.manifest = archive.read_manifest(self.directory)
        made = self.manifest
        self.names = Names(made.service, made.input, made.namespace, tuple(made.others))
        self.partitions = len(made.partitions)
        self.reader_factory = ArchiveReaderFactory(self.directory, made)
        self.reader = self.reader_factory()

    def require(self, names: Names) -> None:
        """:raises UsageError: it is the backup of another service."""
        of = self.names
        if (of.group, of.inputs) != (names.group, names.inputs):
            raise UsageError(
                f"{self.directory} is a backup of {of.group} with {', '.join(of.inputs)}, the read names {names.group} "
                f"with {', '.join(names.inputs)}. Next: name the backup of this service, or the code of that one"
            )

    def require_input(self) -> None:
        """:raises UsageError: the backup has no input records."""
        if not self.manifest.with_input:
            raise UsageError(
                f"{self.directory} has no input records. Next: make a backup with `statehold snapshot backup "
                f"MODULE:SERVICE --to DIR --with-input`"
            )

    def places(self, wanted: Sequence[int] | None) -> list[Place]:
        """Return the wanted partitions, or all of them. :raises UsageError: one does not exist."""
        for each in wanted or ():
            if not 0 <= each < self.partitions:
                raise UsageError(f"{self.directory} has partitions 0 to {self.partitions - 1}, not {each}")
        return [place_of(self.directory, self.manifest, each) for each in (wanted or range(self.partitions))]
