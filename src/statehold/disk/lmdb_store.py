"""One partition's files: a directory with an LMDB environment, locked by the process that uses it."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from statehold.disk.port import Batch, StoreClosed
from statehold.disk.usage import ScrubNote, Usage, scrub_note, write_scrub_note
from statehold.errors import LocalStoreFailed

_META: Final = b"statehold"
_LABEL: Final = b"label"
_DATA: Final = "data.mdb"
#: rows that a reader takes at once: at first, later, and their bytes
_FEW, _MANY, _BYTES = 16, 512, 1_000_000
_META_PAGES: Final = 2
#: snapshots at the same time: one of a full snapshot, the others of queries
_READERS: Final = 1024
#: at least what their table takes: 64 for each, and its head
_READERS_BYTES: Final = (_READERS + 64) * 64
#: what musl raises where the file system reserves no room
_NOT_RESERVED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

#: what LMDB raises for damaged pages, and for what it reads of them
_DAMAGED: Final = (
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.BadTxnError,
)

#: makes the error of a failing disk: what failed, the cause
Failure = Callable[[str, str], LocalStoreFailed]


class Locked(Exception):
    """Another process uses the directory, or a worker of this one that has not ended."""


class Unusable(Exception):
    """The files cannot be used; the text says why."""


class LmdbStore:
    """`PartitionStore` on LMDB, without its flushes to the disk (rule X3).

    A killed process loses nothing that it has written, because the pages are the kernel's. After a crash of the machine
    `Usage` rejects the files, unless they were closed and flushed before.
    """

    def __init__(self, directory: Path, tables: Sequence[str], limit: int, boot: str, failure: Failure) -> None:
        """Lock the directory and open the files in it.

        :raises Locked: :raises Unusable: delete the files, and open again. :raises OSError: the disk fails.
        """
        self.directory, self._failure, self._limit = directory, failure, limit
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held = _lock(directory / "lock")
        self._lock = threading.RLock()  # reentrant, because the end of an abandoned reader may come at any time
        self._env: lmdb.Environment | None = None
        try:
            self._usage = Usage(directory / "usage", boot)
            if (directory / _DATA).exists():
                self._usage.check()
                _check_length(directory / _DATA)
            self._usage.begin()
            _reserve(directory / "lock.mdb")
            self._env = lmdb.open(
                str(directory),
                map_size=limit,
                max_dbs=len(tables) + 2,  # those, the label, and one that is dropped
                sync=False,
                metasync=False,
                readahead=False,
                max_readers=_READERS,
                mode=0o600,
            )
            _check_pages(self._env)
            self._meta = self._env.open_db(_META)
            self._tables = {table: self._env.open_db(_name_of(table)) for table in tables}
            self._reader = self._env.begin()
        except BaseException as error:
            if self._env is not None:
                self._env.close()
            os.close(self._held)
            if isinstance(error, lmdb.Error):
                raise _as_os_error(error) from error
            raise

    def label(self) -> bytes | None:
        with self._lock:
            self._require_open()
            try:
                found: bytes | None = self._reader.get(_LABEL, db=self._meta)
            except lmdb.Error as error:
                raise self._failed("read", error) from error
            return found

    def get(self, table: str, place: bytes) -> bytes | None:
        with self._lock:
            if self._env is None:
                raise StoreClosed
            try:
                found: bytes | None = self._reader.get(place, db=self._tables[table])
            except lmdb.Error as error:
                raise self._failed("read", error) from error
            return found

    def get_each(self, table: str, places: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for first in range(0, len(places), _MANY):  # in pieces, so that other readers wait for one at most
            with self._lock:
                self._require_open()
                try:
                    get = self._reader.cursor(self._tables[table]).get
                    found += map(get, places[first : first + _MANY])
                except lmdb.Error as error:
                    raise self._failed("read", error) from error
        return found

    def count(self, table: str) -> int:
        with self._lock:
            self._require_open()
            try:
                return int(self._reader.stat(self._tables[table])["entries"])
            except lmdb.Error as error:
                raise self._failed("read", error) from error

    def snapshot(self) -> LmdbSnapshot:
        with self._lock:
            return LmdbSnapshot(self._require_open(), self._meta, self._tables, self._lock, self._failed)

    def apply(self, batch: Batch, label: bytes | None) -> None:
        with self._lock:
            env = self._require_open()
            try:
                with env.begin(write=True) as writer:
                    for table, rows in batch.items():
                        self._write(writer, self._tables[table], rows)
                    if label is None:
                        writer.delete(_LABEL, db=self._meta)
                    else:
                        writer.put(_LABEL, label, db=self._meta)
            except lmdb.MapFullError as error:
                raise self._failure(
                    "write", f"the files have reached state.disk_limit ({self._limit} bytes)"
                ) from error
            except (lmdb.Error, OSError) as error:
                raise self._failed("write", error) from error
            self._renew(env)

    def clear(self) -> None:
        with self._lock:
            env = self._require_open()
            try:
                with env.begin(write=True) as writer:
                    writer.delete(_LABEL, db=self._meta)
                    for table in self._tables.values():
                        writer.drop(table, delete=False)
                    for name in self._unknown(writer):
                        writer.drop(env.open_db(name, txn=writer, create=False), delete=True)
            except (lmdb.Error, OSError) as error:
                raise self._failed("clear", error) from error
            self._renew(env)

    def _unknown(self, writer: lmdb.Transaction) -> list[bytes]:
        """Return the tables that the code no longer has."""
        known = {_name_of(table) for table in self._tables}
        with writer.cursor() as cursor:
            names = map(bytes, cursor.iternext(values=False))
            return [name for name in names if name != _META and name not in known]

    def size(self) -> int:
        with suppress(OSError):
            return (self.directory / _DATA).stat().st_size
        return 0

    def used(self) -> int:
        with self._lock:
            env = self._require_open()
            try:
                stats = [env.stat(), *map(self._reader.stat, (self._meta, *self._tables.values()))]
            except lmdb.Error as error:
                raise self._failed("read", error) from error
            pages = sum(each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"] for each in stats)
            return int((_META_PAGES + pages) * stats[0]["psize"])

    def room(self) -> int:
        return max(0, self._limit - self.size())

    def damaged(self, cause: str) -> Exception:
        """The next start deletes the files, unless they were closed: another owner may have them then."""
        with self._lock, suppress(OSError):
            if self._env is not None:
                self._usage.condemn(cause)
        return self._failure("trust", f"{cause}; the files are dropped, and the state is restored from Kafka")

    def scrubbed(self, note: ScrubNote) -> ScrubNote:
        found = note.after(self.last_scrub())
        write_scrub_note(self.directory.parent, found)
        return found

    def last_scrub(self) -> ScrubNote | None:
        return scrub_note(self.directory.parent)

    def proven(self) -> None:
        with self._lock, suppress(OSError):
            self._usage.proven()

    def close(self, *, flush: bool = True) -> None:
        with self._lock:
            env, self._env = self._env, None
            if env is None:
                return
            try:
                self._reader.abort()
                if flush:
                    env.sync(True)
                env.close()
                self._usage.end(flushed=flush)
            except (lmdb.Error, OSError):
                pass  # the files count as open until the machine stops
            finally:
                os.close(self._held)

    def _require_open(self) -> lmdb.Environment:
        if self._env is None:
            raise StoreClosed
        return self._env

    def _failed(self, doing: str, error: Exception) -> Exception:
        """Return the error to raise. Pages that LMDB finds damaged stay so, and the next start deletes the files."""
        return self.damaged(str(error)) if isinstance(error, _DAMAGED) else self._failure(doing, str(error))

    def _renew(self, env: lmdb.Environment) -> None:
        """Read what was written from now on."""
        self._reader.abort()
        self._reader = env.begin()

    @staticmethod
    def _write(writer: lmdb.Transaction, table: Any, rows: Mapping[bytes, bytes | None]) -> None:
        if None in rows.values():
            written = sorted((place, row) for place, row in rows.items() if row is not None)
        else:
            written = sorted(rows.items())  # type: ignore[arg-type]
        if written:
            writer.cursor(table).putmulti(written)
        if len(written) < len(rows):
            for place, row in rows.items():
                if row is None:
                    writer.delete(place, db=table)


class LmdbSnapshot:
    """`StoreSnapshot`: a read transaction of its own."""

    def __init__(
        self,
        env: lmdb.Environment,
        meta: Any,
        tables: Mapping[str, Any],
        lock: threading.RLock,
        failed: Callable[[str, Exception], Exception],
    ) -> None:
        self._meta, self._tables, self._lock, self._failed = meta, tables, lock, failed
        self._reader: lmdb.Transaction | None = env.begin()

    def label(self) -> bytes | None:
        with self._lock:
            if self._reader is None:
                raise StoreClosed
            try:
                found = self._reader.get(_LABEL, db=self._meta)
            except lmdb.Error as error:
                raise self._failed("read", error) from error
            return None if found is None else bytes(found)

    def rows(
        self, table: str, low: bytes | None = None, high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        at, inclusive, most = (high, False, _FEW) if reverse else (low, True, _FEW)
        while True:
            piece = self._piece(table, at, most, None if reverse else high, reverse=reverse, inclusive=inclusive)
            for place, row in piece:
                if (reverse and low is not None and place < low) or (
                    not reverse and high is not None and place >= high
                ):
                    return
                yield place, row
            if not piece:
                return
            at, inclusive, most = piece[-1][0], False, min(2 * most, _MANY)

    def _piece(
        self, table: str, at: bytes | None, most: int, high: bytes | None, *, reverse: bool, inclusive: bool
    ) -> list[tuple[bytes, bytes]]:
        """Return the next rows from `at` on; None: from the first, or from the last. At most one is behind `high`."""
        with self._lock:
            if self._reader is None:
                raise StoreClosed
            if table not in self._tables:
                return []
            try:
                cursor = self._reader.cursor(self._tables[table])
                if at is None:
                    found = cursor.last() if reverse else cursor.first()
                elif reverse:
                    found = cursor.prev() if cursor.set_range(at) else cursor.last()
                else:
                    found = cursor.set_range(at)
                    if found and not inclusive and cursor.key() == at:
                        found = cursor.next()
                if not found:
                    return []
                pairs: Iterator[Any] = cursor.iterprev() if reverse else cursor.iternext()
                return _some(pairs, most, high)
            except lmdb.Error as error:
                raise self._failed("read", error) from error

    def close(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                with suppress(lmdb.Error):  # the files were closed before
                    reader.abort()


@contextmanager
def read_only(directory: Path, tables: Sequence[str], limit: int, failure: Failure) -> Iterator[LmdbSnapshot]:
    """Lock the directory of a stopped process, and yield what its files hold. Nothing is changed.

    Damaged pages may end this process by a signal.

    :raises Locked: :raises Unusable: these are no whole files. :raises OSError: the disk fails.
    """
    held = _lock(directory / "lock", os.O_RDONLY)
    env: lmdb.Environment | None = None
    try:
        _check_length(directory / _DATA)
        env = lmdb.open(
            str(directory), map_size=limit, max_dbs=len(tables) + 1, readonly=True, lock=False, readahead=False
        )
        _check_pages(env)
        found = {table: _opened(env, _name_of(table)) for table in tables}
        known = {table: handle for table, handle in found.items() if handle is not None}

        def failed(doing: str, error: Exception) -> Exception:
            return failure(doing, str(error))

        snapshot = LmdbSnapshot(env, _opened(env, _META), known, threading.RLock(), failed)
        try:
            yield snapshot
        finally:
            snapshot.close()
    except lmdb.Error as error:
        raise _as_os_error(error) from error
    finally:
        if env is not None:
            env.close()
        os.close(held)


def _opened(env: lmdb.Environment, name: bytes) -> Any:
    """Return a table's handle; None if the files do not have it."""
    try:
        return env.open_db(name, create=False)
    except lmdb.NotFoundError:
        return None


def _some(pairs: Iterator[tuple[bytes, bytes]], most: int, high: bytes | None) -> list[tuple[bytes, bytes]]:
    found, size = [], 0
    for place, row in pairs:
        found.append((place, row))
        size += len(row)
        if len(found) == most or size > _BYTES or (high is not None and place >= high):
            break
    return found


def _name_of(table: str) -> bytes:
    return b"t." + table.encode()


def _lock(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Return the open file that holds the lock; the kernel frees it when the process ends. :raises Locked:"""
    held = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise Locked from error
        raise
    return held


def _reserve(path: Path) -> None:
    """Give LMDB's table of readers its room on the disk. LMDB makes it empty when it is opened.

    It is mapped, and a page for which a full disk has no room would end the process by a signal.

    :raises OSError: there is no room.
    """
    allocate = getattr(os, "posix_fallocate", None)  # macOS has none
    # without O_APPEND, because glibc writes zeros where the file system has no reservations
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if allocate is not None:
            allocate(file, 0, max(_READERS_BYTES, os.fstat(file).st_size))
    except OSError as error:
        if error.errno not in _NOT_RESERVED:
            raise
    finally:
        os.close(file)


def _check_length(data: Path) -> None:
    length = data.stat().st_size
    if 0 < length < _META_PAGES * os.sysconf("SC_PAGE_SIZE"):
        raise Unusable(f"{data.name} has {length} bytes only")


def _check_pages(env: lmdb.Environment) -> None:
    """:raises Unusable: the file is shorter than its last page, whose read would end the process by a signal."""
    wanted = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    length = (Path(env.path()) / _DATA).stat().st_size
    if length < wanted:
        raise Unusable(f"{_DATA} has {length} bytes, and its pages {wanted}")


def _as_os_error(error: lmdb.Error) -> Exception:
    """Return `Unusable` for files that are no environment; otherwise the error of the disk."""
    if isinstance(error, _DAMAGED):
        return Unusable(str(error))
    return OSError(str(error))
