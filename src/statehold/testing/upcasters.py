"""Runs the upcasters of a handler's tables over generated values of each older version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect

from statehold.api.handler import Handler
from statehold.api.values import serde
from statehold.api.values.versioned_values import MARKER, Versioned
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.errors import UsageError
from statehold.state.partition_table import PartitionTable

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

#: integers that msgpack holds
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**64 - 1


def check_upcasters(handler: type[Handler[Any, Any]] | Callable[[], Handler[Any, Any]], *, examples: int = 100) -> int:
    """Upcast generated values of each older version of each table, and require that each result can be stored.

    The annotation of an upcaster is the type of the generated values. An upcaster without one, and a serde of your own,
    are left out. Needs hypothesis. A test calls it as `assert check_upcasters(Bank) == 1`.

    :param examples: values of each version.
    :return: the number of versions that were checked.
    :raises AssertionError: an upcaster raised, or its result cannot be stored; the text has table, version and value.
    :raises UsageError: hypothesis is not installed, or cannot generate a type.
    """
    checked = 0
    for table in tables_and_outputs(class_of(handler))[0].values():
        found = table.serde
        if isinstance(found, Versioned):
            for version, kind in _annotated(found).items():
                _check(table, version, kind, found.serdes[version], examples)
                checked += 1
    return checked


def _annotated(found: Versioned) -> dict[int, Any]:
    """Return the types of the older versions whose upcasters have an annotation."""
    kinds = {version: getattr(each, "type", Any) for version, each in found.serdes.items() if version < found.version}
    return {version: kind for version, kind in kinds.items() if kind is not Any}


def _check(table: PartitionTable[Any, Any], version: int, kind: Any, old: serde.Serde[Any], examples: int) -> None:
    try:
        from hypothesis import HealthCheck, given, settings
    except ImportError as error:
        raise UsageError("check_upcasters needs hypothesis: pip install hypothesis") from error

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(_values(kind))
    def upcast(value: Any) -> None:
        data = old.encode(value)
        stored = data if version == 1 else MARKER + bytes((version,)) + data
        try:
            new = table.decode(stored)
            back = table.decode(table.encode(new))
        except Exception as error:
            raise AssertionError(f"table {table.name!r}, version {version}: {value!r:.300}: {error}") from error
        assert new == back, (
            f"table {table.name!r}, version {version}: {value!r:.300} became {new!r:.300}, then {back!r}"
        )

    upcast()


def _values(kind: Any) -> SearchStrategy[Any]:
    """Return a strategy for values of a type that msgspec knows."""
    return _Strategies().of(inspect.type_info(kind)).map(partial(msgspec.convert, type=kind))


class _Strategies:
    """Makes plain data that msgspec converts to a type; a class that contains itself refers to its own strategy."""

    def __init__(self) -> None:
        from hypothesis import strategies

        self._st = strategies
        self._known: dict[int, SearchStrategy[Any]] = {}

    def of(self, found: inspect.Type) -> SearchStrategy[Any]:
        for kind, make in _MAKERS.items():
            if isinstance(found, kind):
                return make(self, found)
        raise UsageError(f"check_upcasters cannot generate {type(found).__name__}: test that upcaster by hand")

    def union(self, found: inspect.UnionType) -> SearchStrategy[Any]:
        return self._st.one_of(*map(self.of, found.types))

    def items(self, found: inspect.CollectionType) -> SearchStrategy[Any]:
        return self._st.lists(self.of(found.item_type), min_size=found.min_length or 0, max_size=found.max_length)

    def dictionary(self, found: inspect.DictType) -> SearchStrategy[Any]:
        keys, values = self.of(found.key_type), self.of(found.value_type)
        return self._st.dictionaries(keys, values, min_size=found.min_length or 0, max_size=found.max_length)

    def tuple(self, found: inspect.TupleType) -> SearchStrategy[Any]:
        return self._st.tuples(*map(self.of, found.item_types))

    def instance(self, found: Any) -> SearchStrategy[Any]:
        known = self._known.get(id(found))
        if known is None:
            made: list[SearchStrategy[Any]] = []
            known = self._known[id(found)] = self._st.deferred(lambda: made[0])
            made.append(self._fields(found))
        return known

    def _fields(self, found: Any) -> SearchStrategy[Any]:
        fields = {field.encode_name: self.of(field.type) for field in found.fields}
        tag = {} if getattr(found, "tag", None) is None else {found.tag_field: self._st.just(found.tag)}
        if isinstance(found, inspect.NamedTupleType) or getattr(found, "array_like", False):
            return self._st.tuples(*tag.values(), *fields.values())
        optional = {field.encode_name: fields.pop(field.encode_name) for field in found.fields if not field.required}
        return self._st.fixed_dictionaries({**tag, **fields}, optional=optional)

    def integer(self, found: inspect.IntType) -> SearchStrategy[int]:
        low, high = _LOWEST if found.ge is None else found.ge, _HIGHEST if found.le is None else found.le
        low, high = low if found.gt is None else found.gt + 1, high if found.lt is None else found.lt - 1
        step = found.multiple_of or 1
        return self._st.integers(-(-low // step), high // step).map(lambda number: number * step)

    def float(self, found: inspect.FloatType) -> SearchStrategy[float]:
        return self._st.floats(
            found.ge if found.gt is None else found.gt,
            found.le if found.lt is None else found.lt,
            exclude_min=found.gt is not None,
            exclude_max=found.lt is not None,
            allow_nan=False,
            allow_infinity=False,
        )

    def text(self, found: inspect.StrType) -> SearchStrategy[str]:
        if found.pattern is not None:
            return self._st.from_regex(found.pattern)
        return self._st.text(min_size=found.min_length or 0, max_size=found.max_length)

    def bytes(self, found: inspect.BytesType) -> SearchStrategy[bytes]:
        return self._st.binary(min_size=found.min_length or 0, max_size=found.max_length)

    def moment(self, found: inspect.DateTimeType) -> SearchStrategy[datetime]:
        return self._st.datetimes(timezones=self._st.none() if found.tz is False else self._st.just(UTC))

    def values(self, found: Any) -> SearchStrategy[Any]:
        kind = type(found)
        return self._st.sampled_from(
            found.values if kind is inspect.LiteralType else [member.value for member in found.cls]
        )

    def plain(self, found: inspect.Type) -> SearchStrategy[Any]:
        st = self._st
        kinds: Mapping[Any, Callable[[], SearchStrategy[Any]]] = {
            inspect.NoneType: st.none,
            inspect.BoolType: st.booleans,
            inspect.UUIDType: st.uuids,
            inspect.DateType: st.dates,
            inspect.TimeType: st.times,
            inspect.TimeDeltaType: st.timedeltas,
            inspect.DecimalType: partial(st.decimals, allow_nan=False, allow_infinity=False),
            inspect.AnyType: partial(st.one_of, st.none(), st.booleans(), st.integers(_LOWEST, _HIGHEST), st.text()),
        }
        return kinds[type(found)]()


_PLAIN: Final = (
    inspect.NoneType
    | inspect.BoolType
    | inspect.UUIDType
    | inspect.DateType
    | inspect.TimeType
    | inspect.TimeDeltaType
    | inspect.DecimalType
    | inspect.AnyType
)
_MAKERS: Final[Mapping[Any, Callable[[_Strategies, Any], SearchStrategy[Any]]]] = {
    inspect.Metadata: lambda self, found: self.of(found.type),
    inspect.UnionType: _Strategies.union,
    inspect.EnumType | inspect.LiteralType: _Strategies.values,
    inspect.TupleType: _Strategies.tuple,
    inspect.DictType: _Strategies.dictionary,
    inspect.CollectionType: _Strategies.items,
    inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType: _Strategies.instance,
    inspect.IntType: _Strategies.integer,
    inspect.FloatType: _Strategies.float,
    inspect.StrType: _Strategies.text,
    inspect.BytesType: _Strategies.bytes,
    inspect.DateTimeType: _Strategies.moment,
    _PLAIN: _Strategies.plain,
}
