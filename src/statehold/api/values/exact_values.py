"""Whether a value comes back from its bytes as it was: of the same types, with the same content.

A handler reads a live value until its partition moves, and after that what was decoded from the value's bytes. A value
that only equals what comes back, such as 1 in a float field, would make the two owners send different outputs.
`quick_check` says of most values at once that they come back; `statehold.api.values.difference` finds out for the
others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count
from keyword import iskeyword
from typing import Any, Final, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect

from statehold.api.values import serde
from statehold.api.values.table_types import EXACT_TYPES
from statehold.api.values.versioned_values import Versioned
from statehold.common.decoding import type_info

#: returns True if every value certainly comes back as it is; False: find out
QuickCheck = Callable[[Iterable[Any]], bool]
#: fields of fields that the generated code reads without a call
_INLINE: Final = 3
_PLAIN: Final = {
    inspect.NoneType: type(None),
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.UUIDType: UUID,
    inspect.DecimalType: Decimal,
    inspect.DateType: date,
}
_SEQUENCES: Final = {
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
}
#: keys of a dict that JSON gives back
_JSON_KEYS: Final = (inspect.StrType, inspect.IntType, inspect.UUIDType, inspect.DateType, inspect.EnumType)
#: instead of the type of values that only the user's own serde knows
_UNKNOWN: Final[Any] = object()
#: scalars that any format gives back where the type is Any
_ANY: Final = frozenset((type(None), bool, int, float, str))


def quick_check(given: serde.Serde[Any]) -> QuickCheck | None:
    """Return the check for values of a table with this serde; None if only the serde knows its values."""
    kind = _type_of(given)
    if kind is _UNKNOWN:
        return None
    return _Code(in_json=isinstance(_plain(given), serde.Json)).check(type_info(kind))


def exact_types(given: serde.Serde[Any]) -> frozenset[type]:
    """Return the type of this serde's values if any instance of exactly this type comes back; otherwise nothing."""
    kind = _type_of(given)
    return EXACT_TYPES.intersection((kind,)) if isinstance(kind, type) else frozenset()


def forgets(given: serde.Serde[Any]) -> bool:
    """Return whether its values have sets, whose order after a restore is another one."""
    kind = _type_of(given)
    found = () if kind is _UNKNOWN else serde.types_in(type_info(kind))
    return any(isinstance(each, inspect.SetType | inspect.FrozenSetType) for each in found)


def _plain(given: Any) -> Any:
    return given.current if isinstance(given, Versioned) else given


def _type_of(given: Any) -> Any:
    match _plain(given):
        case serde.MsgPack() | serde.Json():
            return _plain(given).type
        case serde.Text():
            return str
        case serde.Integer():
            return int
        case serde.Raw():
            return bytes
        case _:
            return _UNKNOWN


class _Code:
    """Writes the check of one type as Python, because a loop over written-out fields costs a third of generic code.

    The code is made once from the classes that the program declares. Of their text it has the names of fields only, and
    those are identifiers; everything else is a name for an object. No bytes that statehold reads reach it.
    """

    def __init__(self, *, in_json: bool) -> None:
        self._in_json = in_json
        self._names: dict[str, Any] = {"UTC": UTC}
        self._numbers = count()
        #: the function of a class that has one
        self._functions: dict[Any, str] = {}
        #: the classes around the present place
        self._open: list[Any] = []

    def check(self, found: inspect.Type) -> QuickCheck:
        source = (
            f"def check(values):\n for v in values:\n  if not {self._test(found, 'v', 0)}: return False\n return True"
        )
        exec(source, self._names)  # noqa: S102  see the class
        check: QuickCheck = self._names["check"]
        return check

    def _name(self, value: Any) -> str:
        """Return a name for a value that the code uses."""
        name = f"c{next(self._numbers)}"
        self._names[name] = value
        return name

    def _test(self, found: Any, v: str, depth: int) -> str:
        """Return an expression that is True if the value of `v` certainly comes back as it is."""
        kind = type(found)
        if kind in _PLAIN:
            limits = "".join(f" and {each}" for each in self._limits(found, v))
            return f"(type({v}) is {self._name(_PLAIN[kind])}{limits})"
        if kind in _SEQUENCES:
            return self._each(found, v, f"type({v}) is {self._name(_SEQUENCES[kind])}", v, found.item_type)
        write = _WRITERS.get(kind)
        return "False" if write is None else write(self, found, v, depth)

    def _annotated(self, found: Any, v: str, depth: int) -> str:
        return self._test(found.type, v, depth)

    def _union(self, found: Any, v: str, depth: int) -> str:
        parts = [each.type if isinstance(each, inspect.Metadata) else each for each in found.types]
        if anything := [each for each in parts if isinstance(each, inspect.AnyType)]:  # msgspec ignores the other types
            return self._test(anything[0], v, depth)
        return f"({' or '.join(self._test(each, v, depth) for each in found.types)})"

    def _any(self, found: Any, v: str, depth: int) -> str:
        return "False" if self._in_json else f"{self._name(_is_plain)}({v})"

    def _enum(self, found: Any, v: str, depth: int) -> str:
        return "False" if issubclass(found.cls, enum.Flag) else f"(type({v}) is {self._name(found.cls)})"

    def _literal(self, found: Any, v: str, depth: int) -> str:
        kinds = self._name(frozenset(map(type, found.values)))
        return f"(type({v}) in {kinds} and {v} in {self._name(found.values)})"

    def _tuple(self, found: Any, v: str, depth: int) -> str:
        items = [self._test(each, f"{v}[{place}]", depth + 1) for place, each in enumerate(found.item_types)]
        return f"({' and '.join([f'type({v}) is tuple and len({v}) == {len(items)}', *items])})"

    def _dict(self, found: Any, v: str, depth: int) -> str:
        if self._in_json and not isinstance(found.key_type, _JSON_KEYS):
            return "False"  # a key is text there, and one that is 1 or "1" has one text
        keys = self._each(found, v, f"type({v}) is dict", v, found.key_type)
        return f"({keys} and {self._each(None, v, 'True', f'{v}.values()', found.value_type)})"

    def _object(self, found: Any, v: str, depth: int) -> str:
        cls = _class_of(found)
        if hasattr(cls, "__post_init__"):  # it may reject, or change, what is decoded
            return "False"
        if not all(field.name.isidentifier() and not iskeyword(field.name) for field in found.fields):
            return "False"
        if not issubclass(cls, msgspec.Struct) and any(field.name.startswith("_") for field in found.fields):
            return "False"  # msgspec does not write it
        if depth < _INLINE and found.cls not in self._functions and found.cls not in self._open:
            self._open.append(found.cls)
            written = self._fields_of(found, v, depth)
            self._open.pop()
            return written
        if found.cls not in self._functions:  # the type contains itself, or others deeply
            name = self._functions[found.cls] = f"f{next(self._numbers)}"
            exec(f"def {name}(v): return {self._fields_of(found, 'v', 0)}", self._names)  # noqa: S102  see the class
        return f"{self._functions[found.cls]}({v})"

    def _fields_of(self, found: Any, v: str, depth: int) -> str:
        cls = _class_of(found)
        tests = [f"type({v}) is {self._name(cls)}"]
        if any("__dict__" in vars(base) for base in cls.__mro__):
            size = 0 if issubclass(cls, msgspec.Struct) else len(found.fields)
            tests.append(f"len({v}.__dict__) == {size}")
        tests += [self._test(field.type, f"{v}.{field.name}", depth + 1) for field in found.fields]
        return f"({' and '.join(tests)})"

    def _each(self, found: Any, v: str, kind: str, items: str, item: inspect.Type) -> str:
        name = f"f{next(self._numbers)}"
        source = (
            f"def {name}(values):\n for v in values:\n  if not {self._test(item, 'v', 1)}: return False\n return True"
        )
        exec(source, self._names)  # noqa: S102  see the class
        limits = "".join(f" and {each}" for each in self._limits(found, v))
        return f"({kind}{limits} and {name}({items}))"

    def _limits(self, found: Any, v: str) -> Iterator[str]:
        """Yield what msgspec would check when it decodes (`msgspec.Meta`)."""
        for attribute, test in (
            ("gt", "{v} > {limit}"),
            ("ge", "{v} >= {limit}"),
            ("lt", "{v} < {limit}"),
            ("le", "{v} <= {limit}"),
            ("multiple_of", "{v} % {limit} == 0"),
            ("min_length", "len({v}) >= {limit}"),
            ("max_length", "len({v}) <= {limit}"),
        ):
            if (limit := getattr(found, attribute, None)) is not None:
                yield test.format(v=v, limit=self._name(limit))
        if getattr(found, "pattern", None) is not None:
            yield "False"
        if self._in_json and isinstance(found, inspect.FloatType):
            yield f"{v} - {v} == 0"  # JSON has no infinity, and no nan

    def _moment(self, found: Any, v: str, depth: int) -> str:
        kind = self._name(datetime if isinstance(found, inspect.DateTimeType) else time)
        zone = {None: f"({v}.tzinfo is None or {v}.tzinfo is UTC)", True: f"{v}.tzinfo is UTC"}.get(
            found.tz, f"{v}.tzinfo is None"
        )
        return f"(type({v}) is {kind} and {v}.fold == 0 and {zone})"


#: how the code for a type is written; a type that is not here is never certain
_WRITERS: Final[Mapping[type, Callable[[_Code, Any, str, int], str]]] = {
    inspect.Metadata: _Code._annotated,
    inspect.UnionType: _Code._union,
    inspect.AnyType: _Code._any,
    inspect.DateTimeType: _Code._moment,
    inspect.TimeType: _Code._moment,
    inspect.EnumType: _Code._enum,
    inspect.LiteralType: _Code._literal,
    inspect.TupleType: _Code._tuple,
    inspect.DictType: _Code._dict,
    inspect.StructType: _Code._object,
    inspect.DataclassType: _Code._object,
    inspect.NamedTupleType: _Code._object,
}


def _class_of(found: Any) -> type:
    """Return the class of a type that may have arguments, such as `Pair[int]`."""
    cls: type = get_origin(found.cls) or found.cls
    return cls


def _is_plain(value: Any) -> bool:
    values = [value]
    while values:
        value = values.pop()
        kind = type(value)
        if kind is list:
            values += value
        elif kind is dict:
            if not {str}.issuperset(map(type, value)):
                return False
            values += value.values()
        elif kind not in _ANY:
            return False
    return True
