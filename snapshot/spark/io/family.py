"""Reads a full snapshot that shares chunks back, before its manifest exists (rules S7, C2). Does not use Spark.

One pass reads the shared chunks and the new ones in the order and with the checks of a restore. It takes the changed
keys out of the shared chunks, with the values that they had there. So the digest of the new state is that of the base,
without the hashes of these values, with the hashes of the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from statehold.errors import DamagedIncrement
from statehold.ports import OutOfRange
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk
from statehold.snapshot.spark.fold.newest import decoded_packed
from statehold.snapshot.spark.fold.proof import Sums
from statehold.snapshot.spark.fold.report import TaskReport
from statehold.snapshot.spark.fold.sharing import Continued
from statehold.state.digest import MODULUS


class FamilyReading:
    """The chunks of one partition's next full snapshot: those of the base, then the new ones."""

    def __init__(self, continued: Continued) -> None:
        self._continued, self._base = continued, continued.base.manifest
        #: Table -> changed key -> its value in the base; None: the base does not have it.
        self._former: dict[str, dict[bytes, bytes | None]] = {}
        self._count = 0
        self._sums: dict[str, Sums] = {}
        #: About the shared chunks.
        self.report = TaskReport(partition=continued.place.partition, kind="chunks")
        #: Why the new chunks must not be used, so that the caller writes a whole full snapshot; '' if they may.
        self.finding = ""

    def note(self, table: str, keys: Sequence[bytes]) -> None:
        """Note keys that have changed since the base."""
        self._count += len(keys)
        if self._count > self._continued.most:
            self.finding = f"more than {self._continued.most} keys have changed"
            return
        self._former.setdefault(table, {}).update(dict.fromkeys(keys))

    def read(self, frames: Iterable[bytes], checksums: Sequence[int]) -> None:
        """Read chunks with these checksums, up to the last one."""
        shared, seen, damage = len(self._base.checksums), 0, ""
        try:
            for data in frames:
                chunk = self._chunk(data)
                if chunk is None or not seen <= chunk.i < len(checksums):
                    continue
                if chunk.i != seen or frame.body_checksum(data) != checksums[seen]:
                    break
                if seen < shared:
                    self.report.checksums.append(checksums[seen])
                    self.report.entries += self._take_former(chunk.entry)
                    self.report.size += len(data)
                else:
                    self.take_new(*decoded_packed(chunk.entry))
                seen += 1
        except OutOfRange as error:
            self.report.finding, self.report.overtaken = f"the records were truncated: {error}", True
        except (DamagedIncrement, frame.BadFrame) as error:
            damage = f": {error}"
        if seen < shared:
            self.report.finding = self.report.finding or f"chunk {seen} of {shared} is missing or damaged{damage}"
        elif seen < len(checksums):
            self.finding = f"new chunk {seen} of {len(checksums)} is missing, damaged or another one{damage}"

    def _chunk(self, data: bytes) -> Chunk | None:
        """Return a chunk of this family; None: the record is another one."""
        if frame.kind_of(data) != b"C":
            return None
        chunk = records.unpack(data)
        return chunk if isinstance(chunk, Chunk) and chunk.full == self._base.full else None

    def _take_former(self, entry: msgspec.Raw) -> int:
        """Take the values of the changed keys. A later chunk replaces or deletes rows of an earlier one."""
        table, keys, values = decoded_packed(entry)
        if former := self._former.get(table):
            former.update((key, value) for key, value in zip(keys, values, strict=True) if key in former)
        return len(keys)

    def take_new(self, table: str, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Add new rows; a deleted key adds nothing."""
        held = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        self._sums.setdefault(table, Sums()).add(table, [key for key, _ in held], [value for _, value in held])

    def sums(self) -> dict[str, Sums]:
        """Return the sums of the new rows, without those of the former values: the difference to the base's sums."""
        for table, former in self._former.items():
            held = [(key, value) for key, value in former.items() if value is not None]
            before, after = Sums(), self._sums.setdefault(table, Sums())
            before.add(table, [key for key, _ in held], [value for _, value in held])
            after.text = (after.text - before.text) % MODULUS
            after.packed = (after.packed - before.packed) % MODULUS
            after.keys -= before.keys
        return self._sums
