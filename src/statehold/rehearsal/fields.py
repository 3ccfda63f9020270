"""Names the fields in which two values differ, and leaves out those that the user ignores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

#: the name of a whole value
WHOLE: Final = "(value)"
_ABSENT: Final = object()


def changed(live: Any, new: Any, *, unordered: bool = False) -> list[str]:
    """Return the paths of the fields that differ, such as `total` or `lines[].price`; `(value)` for a whole value.

    Both are plain data: dicts, lists, numbers, text. 1 and 1.0 differ, because they are other types.
    `unordered`: lists of the same elements are equal, because they are sets.
    """
    found: dict[str, None] = {}
    open_pairs = [("", live, new)]
    while open_pairs:
        path, one, other = open_pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            names = reversed(dict.fromkeys((*one, *other)))
            open_pairs += [(_below(path, name), one.get(name, _ABSENT), other.get(name, _ABSENT)) for name in names]
        elif unordered and isinstance(one, list) and isinstance(other, list) and _elements(one) == _elements(other):
            continue
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            open_pairs += [(f"{path}[]", *pair) for pair in reversed(list(zip(one, other, strict=True)))]
        elif type(one) is not type(other) or (one != other and one == one):  # noqa: PLR0124  nan differs from itself
            found[path or WHOLE] = None
    return list(found)


def _elements(given: list[Any]) -> list[bytes]:
    return sorted(map(msgspec.json.encode, given))


def _below(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


class IgnoredFields:
    """The fields of `--ignore`, and how often each made two values equal."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._given = tuple(given)
        self.used: Counter[str] = Counter(dict.fromkeys(self._given, 0))

    def __bool__(self) -> bool:
        return bool(self._given)

    def left(self, owner: str, fields: list[str]) -> list[str]:
        """Return the fields that count. `owner`: the topic or table. Counts the others if none is left."""
        by = {field: self._match(owner, field) for field in fields}
        rest = [field for field, ignored in by.items() if not ignored]
        if not rest:
            self.used.update({ignored for ignored in by.values() if ignored})
        return rest

    def _match(self, owner: str, field: str) -> str:
        for given in self._given:
            of, colon, path = given.rpartition(":")
            inside = field == path or field.startswith((f"{path}.", f"{path}["))
            if inside and (not colon or of == owner):
                return given
        return ""
