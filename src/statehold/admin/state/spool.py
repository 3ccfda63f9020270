"""Spools entries of states to local disk, one file per partition, because memory holds one partition."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from statehold.snapshot.format import records
from statehold.snapshot.format.records import EntryDecoder
from statehold.state.partition_table import Changes
from statehold.state.state import State

_LENGTH: Final = struct.Struct("<I")


class Spool:
    """Single-threaded. The files have no names, so the system deletes them also if the process is killed."""

    def __init__(self, partitions: int, directory: Path | None = None) -> None:
        """:raises OSError: the directory is not writable."""
        self._open = ExitStack()
        self._files: list[BinaryIO] = []
        for _ in range(partitions):
            file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  the stack closes it
            self._files.append(self._open.enter_context(file))

    def add(self, partition: int, changes: Changes) -> None:
        """Append entries to the partition's file. :raises OSError: the disk is full."""
        data = records.entry(changes)
        self._files[partition].write(_LENGTH.pack(len(data)))
        self._files[partition].write(data)

    def clear(self, partition: int) -> None:
        """Forget the partition's entries."""
        self._files[partition].seek(0)
        self._files[partition].truncate()

    def load(self, partition: int, state: State) -> State:
        """Fill an empty state with the partition's entries and compute its digest."""
        decoder = EntryDecoder(state.key_types)
        for raw in self._entries(partition):
            state.load(decoder.decode(raw))
        state.loaded()
        return state

    def _entries(self, partition: int) -> Iterator[msgspec.Raw]:
        file = self._files[partition]
        file.flush()
        file.seek(0)
        while head := file.read(_LENGTH.size):
            yield msgspec.Raw(file.read(_LENGTH.unpack(head)[0]))

    def close(self) -> None:
        self._open.close()
