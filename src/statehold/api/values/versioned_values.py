"""Values with a version: the stored form in a table with `version=2` or more, and the upcast of older values.

A value of version 1 is stored as its serde wrote it. From version 2 on two bytes come first: 0xC1 and the version.
Neither msgpack nor UTF-8 text begins with 0xC1, so the bytes of a value show its version. Digests, deltas, full
snapshots and compaction therefore need not know about versions, and one table may hold several. An older value is
upcast when it is read. The stored bytes, and with them the digest, change only when the key is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, get_type_hints

from statehold.api.values import serde
from statehold.api.values.difference import brief
from statehold.api.values.serde import Serde
from statehold.common.class_body import require_parameters, require_plain
from statehold.errors import UnknownSchema, UsageError, text_of

#: an upcaster: a function, or the type or serde of the old value and the function
Upcaster = Callable[[Any], Any] | tuple[Any, Callable[[Any], Any]]

MARKER: Final = b"\xc1"
HIGHEST: Final = 255
#: serdes whose bytes never begin with the marker: msgpack and UTF-8 text
_SAFE: Final = (serde.MsgPack, serde.Json, serde.Text, serde.Integer)


def version_of(stored: bytes) -> int:
    """Return the version of a stored value, for a table whose serde never writes the marker."""
    return stored[1] if stored[:1] == MARKER else 1


class Versioned:
    """The serde of a table with a version above 1."""

    __slots__ = ("_decode_current", "_prefix", "_steps", "current", "serdes", "version")

    def __init__(self, current: Serde[Any], version: int, upcasters: Mapping[int, Upcaster]) -> None:
        """:raises UsageError: a version out of range, a missing step, or a serde that may write the marker."""
        #: the serde of values of this version
        self.current, self.version = current, version
        self._decode_current = current.decode
        self._prefix = MARKER + bytes((version,))
        self._steps: dict[int, Callable[[Any], Any]] = {}
        #: the serde of each version
        self.serdes: dict[int, Serde[Any]] = {version: current}
        for number, given in upcasters.items():
            step, what = given[1] if isinstance(given, tuple) else given, f"the upcaster of version {number}"
            require_plain(step, what)
            require_parameters(step, what, ("old",))
            self.serdes[number], self._steps[number] = _parted(current, given)

    def encode(self, value: Any, /) -> bytes:
        return self._prefix + self.current.encode(value)

    def decode(self, data: bytes, /) -> Any:
        """Return a value in the present version.

        :raises UnknownSchema: a newer version, or an older one without an upcaster.
        """
        if data[:2] == self._prefix:
            return self._decode_current(data[2:])
        found = version_of(data)
        if found not in self._steps:
            raise UnknownSchema(f"a value has version {found}, this code reads {self.oldest} to {self.version}")
        value = self.serdes[found].decode(data if found == 1 else data[2:])
        for number in range(found, self.version):
            value = self._as_stored(number + 1, self._steps[number](value))
        return value

    def _as_stored(self, version: int, value: Any) -> Any:
        """Return what an upcaster has made, as the bytes of its version would be read.

        So the next upcaster gets the same whether a value of this version was stored or made, and the handler the same
        before and after its key is written.

        :raises UsageError: no reader of that version could read it.
        """
        try:
            return self.serdes[version].decode(self.serdes[version].encode(value))
        except Exception as error:  # a serde may raise anything
            raise UsageError(
                f"the upcaster of version {version - 1} returned {brief(value)}, which cannot be read as version "
                f"{version}: {text_of(error)}"
            ) from error

    @property
    def oldest(self) -> int:
        """The oldest readable version."""
        return min(self._steps)

    def unreadable(self, stored: Iterable[bytes]) -> set[int]:
        """Return the versions among the stored values that this code cannot read. Scans all values if it must."""
        if self.oldest == 1:
            return set()  # because the commit record names the highest version, which shows newer ones
        return {version_of(value) for value in stored} - {*self._steps, self.version}


def versioned(table: Serde[Any], version: int, upcasters: Mapping[int, Upcaster]) -> Serde[Any]:
    """Return the serde of a table of this version. For version 1 it is the plain serde, at no cost.

    :raises UsageError: see `Versioned`.
    """
    if not 1 <= version <= HIGHEST:
        raise UsageError(f"Table(version={version}): versions go from 1 to {HIGHEST}")
    oldest = min(upcasters, default=version)
    if sorted(upcasters) != list(range(oldest, version)) or oldest < 1:
        raise UsageError(
            f"Table(version={version}, upcasters={{{', '.join(map(str, sorted(upcasters)))}: ...}}): each upcaster "
            f"leads to the next version; give them for every version up to {version - 1}"
        )
    if version == 1:
        return table
    if not upcasters:
        raise UsageError(
            f"Table(version={version}) needs upcasters={{{version - 1}: ...}}: how is an older value read?"
        )
    if not can_version(table):
        raise UsageError(
            f"Table(version={version}): the bytes of {type(table).__name__} may begin with 0xC1, the marker of a "
            f"version. Keep the version in your own bytes, or use a type that msgspec knows"
        )
    return Versioned(table, version, upcasters)


def can_version(table: Serde[Any]) -> bool:
    """Return whether values of this serde may have a version: their bytes never begin with the marker."""
    return isinstance(table, _SAFE)


def _parted(current: Serde[Any], given: Upcaster) -> tuple[Serde[Any], Callable[[Any], Any]]:
    """Return the serde of the old value, and the function."""
    if isinstance(given, tuple):
        return serde.for_state(given[0]), given[1]
    if isinstance(current, serde.Json):
        return serde.Json(old_type(given)), given
    if isinstance(current, serde.MsgPack):
        return serde.MsgPack(old_type(given)), given
    return current, given


def old_type(function: Callable[[Any], Any]) -> Any:
    """Return the annotation of an upcaster's parameter; Any without one, for plain dicts, lists and numbers."""
    try:
        hints = get_type_hints(function)
    except (TypeError, NameError):
        return Any
    hints.pop("return", None)
    return next(iter(hints.values()), Any)


def renamed(names: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return the upcaster of fields with other names: `upcasters={1: renamed({"cents": "minor"})}`.

    `names`: old stored name -> new stored name. A value without the old name keeps what it has. The upcaster raises
    TypeError for values that are no objects, and ValueError if a value has both names.

    :raises UsageError: two fields would get one name.
    """
    if len(set(names.values())) < len(names):
        raise UsageError(f"renamed({dict(names)}): two fields would get one name")

    def upcast(old: Any) -> Any:
        if not isinstance(old, dict):
            raise TypeError(f"fields are renamed in objects, and this value is {type(old).__name__}")
        new = {names.get(name, name): value for name, value in old.items()}
        if len(new) < len(old):
            raise ValueError(f"it has both names of a renamed field: {', '.join(old)}")
        return new

    return upcast
