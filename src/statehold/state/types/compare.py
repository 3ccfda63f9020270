"""Compares the types that a state was written with to those that the code declares, field by field.

Compatible is what reads every stored value as the handler that wrote it did: fields with defaults were added, a union
or an enum grew, a limit was loosened. Anything else is not, also where msgspec would read it without an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from statehold.state.types.description import (
    LEFT_OUT,
    SHAPED,
    VARYING,
    Description,
    Field,
    Limit,
    Node,
    Shape,
    TableType,
)

#: limits that a smaller value loosens, and those that a larger one does
_LOW: Final = ("ge", "gt", "min_length")
_HIGH: Final = ("le", "lt", "max_length")


class Use(Enum):
    """How the code uses what it reads."""

    VALUE = auto()
    #: a key must also have the same bytes as before
    KEY = auto()
    #: an upcaster may ignore a field, and must not be given one that no stored value has
    UPCAST = auto()


class TypeChange(NamedTuple):
    """One difference, in words; `compatible`: stored values read as they did."""

    text: str
    compatible: bool
    use: Use
    #: stored name of a field that is gone, or that is new
    gone: str = ""
    born: str = ""


def table_changes(old: TableType, new: TableType) -> list[TypeChange]:
    """Return the differences between a table's stored and declared types, those of its keys first.

    A retired table declares no values, so its stored ones may have any type.
    """
    found = compare(old.key, new.key, Use.KEY)
    current = max(new.values, default=0)
    for version, description in old.values.items():
        declared = new.values.get(version)
        if version == current:
            found += compare(description, new.values[version])
        elif declared is not None and not _is_plain(declared):  # an upcaster without annotation gets plain data
            for each in compare(description, declared, Use.UPCAST):
                found.append(each._replace(text=f"the upcaster of version {version}: {each.text}"))
    return found


def table_merged(old: TableType, new: TableType) -> TableType:
    """Return what the state carries once it has values of the declared types, besides those of `old`.

    An older version stays as it was stored, because its upcaster may ignore a field that a later one reads. So do all
    versions of a retired table, for which the code declares none.
    """
    if not new.values:
        return old
    current = max(new.values)
    values = {version: old.values.get(version, declared) for version, declared in new.values.items()}
    if current in old.values:
        values[current] = merged(old.values[current], new.values[current])
    return TableType(merged(old.key, new.key), values)


def all_optional(found: TableType) -> TableType:
    """Return the types of values without a stored description: each field with a default may be missing in some."""
    values = {version: _optional(description) for version, description in found.values.items()}
    return TableType(found.key, values)


def _optional(found: Description) -> Description:
    shapes = []
    for shape in found.shapes:
        fields = (msgspec.structs.replace(field, optional=field.default is not None) for field in shape.fields)
        shapes.append(msgspec.structs.replace(shape, fields=tuple(fields)))
    return msgspec.structs.replace(found, shapes=tuple(shapes))


def _is_plain(found: Description) -> bool:
    return found.type is not None and found.type.kind == "any"


def compare(old: Description, new: Description, use: Use = Use.VALUE) -> list[TypeChange]:
    """Return the differences between a stored and a declared type, in the order of the fields."""
    if (old.format, old.name, old.version) != (new.format, new.name, new.version):
        return [TypeChange(f"{_format(old)} became {_format(new)}", compatible=False, use=use)]
    if old.type is None or new.type is None:
        return []
    return list(_Comparison(old, new, use).types(old.type, new.type))


def merged(old: Description, new: Description) -> Description:
    """Return the declared type, with the fields that stored values may be without: those of `old`, and those it lacks.

    A later release must not change the default of such a field, because a stored value reads as it.
    """
    if old.type is None or new.type is None:
        return new
    known = _Comparison(old, new, Use.VALUE)
    for _ in known.types(old.type, new.type):
        pass
    shapes = list(new.shapes)
    for before, now in known.pairs:
        shapes[now] = _with_optional(old.shapes[before], shapes[now])
    return msgspec.structs.replace(new, shapes=tuple(shapes))


def _with_optional(old: Shape, new: Shape) -> Shape:
    before = {field.name: field for field in old.fields}
    return msgspec.structs.replace(new, fields=tuple(_stored(field, before.get(field.name)) for field in new.fields))


def _stored(field: Field, old: Field | None) -> Field:
    optional = field.optional or (field.default is not None and (old is None or old.optional))
    return msgspec.structs.replace(field, optional=optional)


class _Comparison:
    def __init__(self, old: Description, new: Description, use: Use) -> None:
        self._old, self._new, self._use = old.shapes, new.shapes, use
        #: the shapes that were compared; a type that holds itself ends here
        self.pairs: set[tuple[int, int]] = set()
        #: shapes to compare, by path: a queue, because a stored chain of shapes may be longer than Python's stack
        self._due: deque[tuple[str, int, int]] = deque()

    def types(self, old: Node, new: Node) -> Iterator[TypeChange]:
        """Compare two types and all shapes that they refer to."""
        yield from self._nodes("", old, new)
        while self._due:
            yield from self._shapes(*self._due.popleft())

    def _nodes(self, path: str, old: Node, new: Node) -> Iterator[TypeChange]:
        if "union" in (old.kind, new.kind):
            yield from self._unions(path, old, new)
        elif self._slot(old, self._old) != self._slot(new, self._new):
            yield self._broken(path, f"{self._said(old, self._old)} became {self._said(new, self._new)}")
        elif old.kind in SHAPED:
            if (old.shape, new.shape) not in self.pairs:
                self.pairs.add((old.shape, new.shape))
                self._due.append((path, old.shape, new.shape))
        else:
            yield from self._values(path, old, new)
            yield from self._limits(path, old, new)
            for number, (before, now) in enumerate(zip(old.parts, new.parts, strict=True)):
                yield from self._nodes(_within(path, old, number), before, now)

    def _unions(self, path: str, old: Node, new: Node) -> Iterator[TypeChange]:
        news = {self._slot(member, self._new): member for member in _members(new)}
        for member in _members(old):
            found = news.pop(self._slot(member, self._old), None)
            if found is None:
                yield self._broken(path, f"{self._said(member, self._old)} is no longer among its types")
            else:
                yield from self._nodes(path, member, found)
        for member in news.values():
            compatible = member.kind != "any"
            yield self._change(path, f"may be {self._said(member, self._new)}, too", compatible=compatible)

    def _slot(self, node: Node, shapes: tuple[Shape, ...]) -> tuple[object, ...]:
        """Return what must be equal for two types to be compared further."""
        if node.kind in SHAPED:
            return node.kind, shapes[node.shape].tag_field, shapes[node.shape].tag
        return node.kind, len(node.parts)

    def _shapes(self, path: str, old: int, new: int) -> Iterator[TypeChange]:
        before, now = self._old[old], self._new[new]
        if now.array and [field.name for field in before.fields] != [
            field.name for field in now.fields[: len(before.fields)]
        ]:
            yield self._broken(path, f"an array of {_names(before)} became one of {_names(now)}")
            return
        known = {field.name: field for field in now.fields}
        for field in before.fields:
            at = f"{path}.{field.name}" if path else field.name
            if (found := known.pop(field.name, None)) is None:
                said = f"{self._said(field.type, self._old)} is gone"
                change = self._change(at, said, compatible=self._use is Use.UPCAST)
                yield change._replace(gone=field.name)
                continue
            if field.optional and field.default != found.default:
                yield self._broken(at, f"stored values without it read {_read(field)}, and now {_read(found)}")
            yield from self._nodes(at, field.type, found.type)
        for field in known.values():
            yield self._added(f"{path}.{field.name}" if path else field.name, field)._replace(born=field.name)

    def _added(self, at: str, field: Field) -> TypeChange:
        said = self._said(field.type, self._new)
        if self._use is not Use.VALUE:
            return self._broken(at, f"{said} is new, and nothing that is stored has it")
        if field.default is None:
            return self._broken(at, f"{said} is new and has no default")
        if field.default == VARYING:
            return self._broken(at, f"{said} is new, and each call makes another default")
        return self._change(at, f"{said} is new; stored values read {_read(field)}", compatible=True)

    def _said(self, node: Node, shapes: tuple[Shape, ...]) -> str:
        if node.kind in SHAPED:
            shape = shapes[node.shape]
            return f"{node.kind} {shape.tag!r}" if shape.tag is not None else f"{node.kind} of {_names(shape)}"
        if node.kind == "union":
            return " | ".join(self._said(member, shapes) for member in node.parts)
        if node.kind == "vartuple" and node.parts:
            return f"tuple[{self._said(node.parts[0], shapes)}, ...]"
        if node.parts:
            return f"{node.kind}[{', '.join(self._said(part, shapes) for part in node.parts)}]"
        return node.kind

    def _values(self, path: str, old: Node, new: Node) -> Iterator[TypeChange]:
        """Compare the values of enums and literals."""
        if gone := [value for value in old.values if value not in new.values]:
            yield self._broken(path, f"{old.kind} without {', '.join(map(repr, gone))}")
        if born := [value for value in new.values if value not in old.values]:
            yield self._change(path, f"{new.kind} with {', '.join(map(repr, born))}, too", compatible=True)

    def _limits(self, path: str, old: Node, new: Node) -> Iterator[TypeChange]:
        for name in sorted(old.limits.keys() | new.limits.keys()):
            before, now = old.limits.get(name), new.limits.get(name)
            if before != now:
                looser = now is None or _is_looser(name, before, now)
                yield self._change(path, f"{name} {_shown(before)} became {_shown(now)}", compatible=looser)

    def _broken(self, path: str, text: str) -> TypeChange:
        return self._change(path, text, compatible=False)

    def _change(self, path: str, text: str, *, compatible: bool) -> TypeChange:
        """`path`: of a part; '' for the whole key or value."""
        whole = "the key" if self._use is Use.KEY else "the value"
        where = f"key {path}" if path and self._use is Use.KEY else path or whole
        return TypeChange(f"{where}: {text}", compatible, self._use)


def _members(node: Node) -> tuple[Node, ...]:
    return node.parts if node.kind == "union" else (node,)


def _is_looser(name: str, before: Limit | None, now: Limit) -> bool:
    if not isinstance(before, int | float) or not isinstance(now, int | float):
        return False
    return (name in _LOW and now < before) or (name in _HIGH and now > before)


def _within(path: str, node: Node, number: int) -> str:
    place = ("key", "value")[number] if node.kind == "dict" else str(number) if node.kind == "tuple" else ""
    return f"{path}[{place}]"


def _names(shape: Shape) -> str:
    return (
        ", ".join(field.name for field in shape.fields[:8]) + (", ..." if len(shape.fields) > 8 else "") or "no field"
    )


def _read(field: Field) -> str:
    if field.default is None:
        return "nothing, because it is required"
    return {VARYING: "another default each time", LEFT_OUT: "as left out"}.get(field.default, field.default)


def _format(found: Description) -> str:
    return f"the serde {found.name} {found.version}".rstrip() if found.format == "serde" else found.format


def _shown(limit: Limit | None) -> str:
    return "none" if limit is None else str(limit)
