"""A store in a directory: local, or better one that every machine of the service sees."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from statehold.snapshot.store.base import Store, Stored, StoreTrouble, is_safe_key


class FileStore(Store):
    """Objects are files. Each is written under another name, synced and renamed."""

    def __init__(self, root: str, *, private: bool = False) -> None:
        """`private`: only this user may read what is written."""
        self._root = Path(root)
        self._file_mode, self._folder_mode = (0o600, 0o700) if private else (0o666, 0o777)

    def put(self, key: str, data: bytes) -> None:
        self._write(key, data, lambda new, path: new.replace(path))

    def put_new(self, key: str, data: bytes) -> None:
        try:
            self._write(key, data, os.link)
        except StoreTrouble as error:
            if not isinstance(error.__cause__, OSError):
                raise
            super().put_new(key, data)  # it exists; or a file system without links

    def _write(self, key: str, data: bytes, name: Callable[[Path, Path], object]) -> None:
        path = self._path(key)
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
        try:
            _make(path.parent, self._folder_mode)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._file_mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            name(new, path)
            new.unlink(missing_ok=True)
            sync_directory(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise StoreTrouble(f"{path} cannot be written: {error}") from error

    def get(self, key: str) -> bytes:
        path = self._path(key)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if not self._root.is_dir():
                raise StoreTrouble(f"{self._root} does not exist; is it mounted?") from None
            raise
        except OSError as error:
            raise StoreTrouble(f"{path} cannot be read: {error}") from error

    def list(self, prefix: str) -> Iterator[Stored]:
        try:
            for folder, _, names in os.walk(self._path(prefix)):
                for name in names:
                    path = Path(folder, name)
                    with contextlib.suppress(FileNotFoundError):  # another process deleted it
                        yield Stored(path.relative_to(self._root).as_posix(), path.stat().st_mtime)
        except OSError as error:
            raise StoreTrouble(f"{self._root / prefix} cannot be listed: {error}") from error

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another object is in it
                path.parent.rmdir()
        except OSError as error:
            raise StoreTrouble(f"{path} cannot be deleted: {error}") from error

    def _path(self, key: str) -> Path:
        """:raises StoreTrouble: the key, or a symbolic link on the way, leads out of the root."""
        path = self._root / key
        if not is_safe_key(key) or not path.resolve().is_relative_to(self._root.resolve()):
            raise StoreTrouble(f"{key!r} is not below {self._root}")
        return path


def _make(directory: Path, mode: int) -> None:
    """Create a directory and its parents, each durable in its parent."""
    if directory.is_dir():
        return
    _make(directory.parent, mode)
    directory.mkdir(mode, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make new names in the directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
