"""The description of a table's types: what a commit record carries, as JSON that a person can read.

It names what decides how stored bytes are read: kinds, field names as stored, limits, the values of enums and literals.
The names of classes do not count, except where they are stored as a tag.
"""

from __future__ import annotations

from typing import Final

import msgspec

from statehold.common.decoding import UNREADABLE

#: most bytes of one table's description; one field takes about 60
MOST: Final = 128 * 1024
#: most types around a type, classes not counted
DEEPEST: Final = 100
#: `Field.default` of a default that each call of its factory makes differently
VARYING: Final = "?"
#: `Field.default` of a key that may be left out of a TypedDict
LEFT_OUT: Final = "-"

#: the kinds of nodes that refer to a shape
SHAPED: Final = ("object", "array")

Limit = int | float | str | bool


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type. An object, or an array with named places, refers to `Description.shapes`: a type may contain itself."""

    kind: str
    limits: dict[str, Limit] = {}
    #: of an enum or a literal
    values: tuple[int | str | bool | None, ...] = ()
    #: of a list its items, of a dict its keys and values, of a union its members
    parts: tuple[Node, ...] = ()
    shape: int = -1


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field by its stored name."""

    name: str
    type: Node
    #: JSON of its default, or VARYING, or LEFT_OUT; None: the field is required
    default: str | None = None
    #: whether a stored value may be without it and then reads as the default
    optional: bool = False


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of an object, or of an array in their order."""

    fields: tuple[Field, ...]
    array: bool = False
    tag_field: str = ""
    tag: str | int | None = None


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """The type of keys, or of values."""

    #: "msgpack", "json", "text", "decimal text", "bytes", or "serde" for one of the user's own
    format: str
    #: of the user's own serde
    name: str = ""
    version: str = ""
    type: Node | None = None
    shapes: tuple[Shape, ...] = ()


class TableType(msgspec.Struct, frozen=True):
    """The types of a table: of its keys, and of its values by their version."""

    key: Description
    values: dict[int, Description]


class BadDescription(ValueError):
    """A stored description that statehold did not write."""


_decode = msgspec.json.Decoder(TableType).decode
_encode = msgspec.json.Encoder().encode


def to_text(found: TableType) -> str:
    """Return the JSON that a commit record carries."""
    return _encode(found).decode()


def of_text(text: str) -> TableType:
    """Return the description in a commit record or a manifest. :raises BadDescription: statehold did not write it."""
    if len(text) > MOST:
        raise BadDescription(f"it has {len(text)} characters, more than {MOST}")
    try:
        found = _decode(text)
    except UNREADABLE as error:
        raise BadDescription(str(error)) from error
    for each in (found.key, *found.values.values()):
        _require_whole(each)
    return found


def _require_whole(found: Description) -> None:
    """:raises BadDescription: a node is nested too deep, or refers to a shape that is not there."""
    nodes = [] if found.type is None else [(found.type, 0)]
    nodes += [(field.type, 0) for shape in found.shapes for field in shape.fields]
    while nodes:
        node, depth = nodes.pop()
        nodes += [(part, depth + 1) for part in node.parts]
        if depth > DEEPEST:
            raise BadDescription(f"a type in it is nested more than {DEEPEST} deep")
        if not (node.shape == -1 or (0 <= node.shape < len(found.shapes) and node.kind in SHAPED)):
            raise BadDescription(f"it names shape {node.shape} of {len(found.shapes)}")
        if node.kind in SHAPED and node.shape < 0:
            raise BadDescription(f"an {node.kind} names no shape")
