"""Whether a value comes back from its bytes as it was: of the same types, with the same content.

A handler reads a live value until its partition moves, and after that what was decoded from the value's bytes. A value
that only equals what comes back, such as 1 in a float field, would make the two owners send different outputs.
`quick_check` says of most values at once that they come back, and `difference` finds out for the others.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count
from keyword import iskeyword
from typing import Any, Final, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect

from statehold import serde
from statehold.common.versioned_values import Versioned

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
#: scalars that any format gives back where the type is Any
_ANY: Final = frozenset((type(None), bool, int, float, str))


def quick_check(given: serde.Serde[Any]) -> QuickCheck | None:
    """Return the check for values of a table with this serde; None if only the serde knows its values."""
    kind = _type_of(given)
    if kind is _UNKNOWN:
        return None
    return _Code(in_json=isinstance(_plain(given), serde.Json)).check(inspect.type_info(kind))


def forgets(given: serde.Serde[Any]) -> bool:
    """Return whether its values have sets, whose order after a restore is another one."""
    kind = _type_of(given)
    return kind is not _UNKNOWN and _has(inspect.type_info(kind), (inspect.SetType, inspect.FrozenSetType), set())


def difference(live: Any, back: Any) -> str | None:
    """Return where two values are not the same, and both: `.amount is 1 (int) and would be 1.0 (float)`; else None.

    The order of a set is no difference. It needs no recursion, because values may be nested as deeply as msgspec reads.
    """
    open_pairs = [("", live, back)]
    while open_pairs:
        path, live, back = open_pairs.pop()
        parts = _parts(live, back)
        if parts is None:
            return f"{path or 'the value'} is {_shown(live)} and would be {_shown(back)} after a restore"
        open_pairs += [(f"{path}{place}", one, other) for place, one, other in parts]
    return None


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.100} ({type(value).__qualname__})"
    except RecursionError:
        return f"a deeply nested {type(value).__qualname__}"


def _parts(live: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the parts that remain to be compared, in reverse; None if the two differ."""
    if type(live) is not type(back):
        return None
    if isinstance(live, list | tuple):
        if len(live) != len(back):
            return None
        named = getattr(live, "_fields", None)
        places = [f".{name}" for name in named] if named else [f"[{number}]" for number in range(len(live))]
        return list(zip(places, live, back, strict=True))[::-1]
    if isinstance(live, dict):
        if difference(list(live), list(back)) is not None:
            return None
        return [(f"[{key!r:.50}]", value, back[key]) for key, value in live.items()][::-1]
    if isinstance(live, set | frozenset):
        same = {(type(item), item) for item in live} == {(type(item), item) for item in back}
        return [] if same else None
    if (names := _fields(live)) is not None:
        if _undeclared(live) != _undeclared(back):
            return None
        return [(f".{name}", getattr(live, name, None), getattr(back, name, None)) for name in reversed(names)]
    same = live is back or repr(live) == repr(back)
    return [] if same and getattr(live, "fold", 0) == getattr(back, "fold", 0) else None


def _undeclared(value: Any) -> set[str]:
    """Return the attributes that are no declared fields, which no bytes hold."""
    return set(getattr(value, "__dict__", ())) - set(_fields(value) or ())


def _fields(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    attrs = getattr(type(value), "__attrs_attrs__", None)
    return None if attrs is None else tuple(each.name for each in attrs)


class _Unknown:
    """The type of a serde that is the user's own."""


_UNKNOWN: Final = _Unknown


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


def _has(found: Any, kinds: tuple[type, ...], known: set[Any]) -> bool:
    """Return whether a type has a part of these kinds; `known` ends types that contain themselves."""
    if isinstance(found, kinds):
        return True
    if (cls := getattr(found, "cls", None)) is not None:
        if cls in known:
            return False
        known.add(cls)
    for name in found.__struct_fields__:
        given = getattr(found, name)
        for part in given if isinstance(given, tuple) else (given,):
            kind = part.type if isinstance(part, inspect.Field) else part
            if isinstance(kind, inspect.Type) and _has(kind, kinds, known):
                return True
    return False


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
        match found:
            case inspect.Metadata():
                return self._test(found.type, v, depth)
            case inspect.UnionType():
                return f"({' or '.join(self._test(each, v, depth) for each in found.types)})"
            case inspect.AnyType() if not self._in_json:
                return f"{self._name(_is_plain)}({v})"
            case inspect.DateTimeType() | inspect.TimeType():
                return self._moment(found, v)
            case inspect.EnumType() if not issubclass(found.cls, enum.Flag):
                return f"(type({v}) is {self._name(found.cls)})"
            case inspect.LiteralType():
                kinds = self._name(frozenset(map(type, found.values)))
                return f"(type({v}) in {kinds} and {v} in {self._name(found.values)})"
            case inspect.TupleType():
                items = [self._test(each, f"{v}[{place}]", depth + 1) for place, each in enumerate(found.item_types)]
                return f"({' and '.join([f'type({v}) is tuple and len({v}) == {len(items)}', *items])})"
            case inspect.DictType():
                keys = self._each(found, v, f"type({v}) is dict", v, found.key_type)
                return f"({keys} and {self._each(None, v, 'True', f'{v}.values()', found.value_type)})"
            case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
                return self._object(found, v, depth)
            case _:
                return "False"

    def _object(self, found: Any, v: str, depth: int) -> str:
        cls = _class_of(found)
        if hasattr(cls, "__post_init__"):  # it may reject, or change, what is decoded
            return "False"
        if not all(field.name.isidentifier() and not iskeyword(field.name) for field in found.fields):
            return "False"
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

    def _moment(self, found: Any, v: str) -> str:
        kind = self._name(datetime if isinstance(found, inspect.DateTimeType) else time)
        zone = {None: f"({v}.tzinfo is None or {v}.tzinfo is UTC)", True: f"{v}.tzinfo is UTC"}.get(
            found.tz, f"{v}.tzinfo is None"
        )
        return f"(type({v}) is {kind} and {v}.fold == 0 and {zone})"


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
