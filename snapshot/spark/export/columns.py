"""Converts stored values to typed columns: msgspec's types to Spark's types.

| Python | Spark |
|---|---|
| int, float, bool, str, bytes | bigint, double, boolean, string, binary |
| Decimal | decimal(38, 18) |
| datetime, date | timestamp (UTC), date |
| timedelta, time, UUID | double (seconds), string, string |
| Enum, Literal | bigint if all values are int, else string |
| list, set, tuple[X, ...] | array |
| tuple[X, Y] | struct of _1, _2 |
| dict | map |
| Struct, dataclass, TypedDict, NamedTuple | struct; the value itself: a column for each field |
| X or None | X, nullable |
| any other union, Any, a recursive type, values of a custom serde | string: JSON |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from inspect import signature
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import inspect
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from statehold.api.table import Table
from statehold.api.values import serde
from statehold.api.values.serde import Serde
from statehold.api.values.versioned_values import Upcaster
from statehold.errors import UsageError, class_and_text
from statehold.snapshot.inspect import typed
from statehold.snapshot.spark.fold.newest import Keys, as_msgpack
from statehold.state.partition_table import PartitionTable

Convert = Callable[[Any], Any]
_field: Final[Callable[..., Any]] = msgspec.field


class Kind(NamedTuple):
    """A Spark type, and the function that converts a value other than None to it."""

    type: spark.DataType
    convert: Convert


def _same(value: Any) -> Any:
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


_JSON: Final = Kind(spark.StringType(), _json)
_PLAIN: Final[dict[type, Kind]] = {
    inspect.IntType: Kind(spark.LongType(), _same),
    inspect.FloatType: Kind(spark.DoubleType(), _same),
    inspect.BoolType: Kind(spark.BooleanType(), _same),
    inspect.StrType: Kind(spark.StringType(), _same),
    inspect.BytesType: Kind(spark.BinaryType(), _same),
    inspect.ByteArrayType: Kind(spark.BinaryType(), bytes),
    inspect.MemoryViewType: Kind(spark.BinaryType(), bytes),
    inspect.DateTimeType: Kind(spark.TimestampType(), _same),
    inspect.DateType: Kind(spark.DateType(), _same),
    inspect.TimeType: Kind(spark.StringType(), lambda value: value.isoformat()),
    inspect.TimeDeltaType: Kind(spark.DoubleType(), lambda value: value.total_seconds()),
    inspect.UUIDType: Kind(spark.StringType(), str),
    inspect.DecimalType: Kind(spark.DecimalType(38, 18), _same),
}


def kind_of(info: inspect.Type, within: tuple[type, ...] = ()) -> Kind:
    """Return the column for a type; `within` are the enclosing classes, to detect recursive types."""
    plain = _PLAIN.get(type(info))
    if plain is not None:
        return plain
    match info:
        case inspect.Metadata():
            return kind_of(info.type, within)
        case inspect.EnumType():
            return _one_of([member.value for member in info.cls])
        case inspect.LiteralType():
            return _one_of(info.values)
        case inspect.UnionType():
            rest = [each for each in info.types if not isinstance(each, inspect.NoneType)]
            return kind_of(rest[0], within) if len(rest) == 1 else _JSON
    return _nested(info, within)


def _nested(info: inspect.Type, within: tuple[type, ...]) -> Kind:
    match info:
        case inspect.DictType():
            return _map(kind_of(info.key_type, within), kind_of(info.value_type, within))
        case inspect.TupleType():
            return _struct([(f"_{i}", kind_of(each, within)) for i, each in enumerate(info.item_types, 1)], _at)
        case inspect.CollectionType():
            return _array(kind_of(info.item_type, within))
    parts = parts_of(info, within)
    return _JSON if parts is None else _struct(parts, _get)


def parts_of(info: inspect.Type, within: tuple[type, ...] = ()) -> list[tuple[str, Kind]] | None:
    """Return the fields of a struct-like type; None for any other type and for a recursive one."""
    known = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
    if not isinstance(info, known) or info.cls in within or not info.fields:
        return None
    return [(field.name, kind_of(field.type, (*within, info.cls))) for field in info.fields]


def _one_of(values: Iterable[Any]) -> Kind:
    if all(type(value) is int for value in values):
        return Kind(spark.LongType(), _plain_value)
    return Kind(spark.StringType(), lambda value: str(_plain_value(value)))


def _plain_value(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _nullable(convert: Convert) -> Convert:
    if convert is _same:
        return _same
    return lambda value: None if value is None else convert(value)


def _array(item: Kind) -> Kind:
    convert = _nullable(item.convert)
    return Kind(spark.ArrayType(item.type), lambda value: [convert(each) for each in value])


def _map(key: Kind, item: Kind) -> Kind:
    convert = _nullable(item.convert)
    return Kind(
        spark.MapType(key.type, item.type), lambda value: [(key.convert(k), convert(v)) for k, v in value.items()]
    )


def _get(value: Any, _: int, name: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return None if found is msgspec.UNSET else found


def _at(value: Any, i: int, _: str) -> Any:
    return value[i]


def _struct(parts: list[tuple[str, Kind]], get: Callable[[Any, int, str], Any]) -> Kind:
    converts = [(i, name, _nullable(kind.convert)) for i, (name, kind) in enumerate(parts)]
    return Kind(
        spark.StructType([spark.StructField(name, kind.type) for name, kind in parts]),
        lambda value: {name: convert(get(value, i, name)) for i, name, convert in converts},
    )


class Columns:
    """Function for `mapInArrow`: from columns partition, key (msgpack) and value (as stored) to typed columns.

    It is pickled with the table's declaration, so the service's module must be importable on the executors.
    """

    def __init__(self, table: PartitionTable[Any, Any]) -> None:
        self.name, self.key_type, self._value = table.name, table.key_type, table.value_type
        self._format: Callable[[Any], Serde[Any]] | None = None
        if isinstance(self._value, serde.Json | serde.MsgPack):  # a decoder does not travel, its type does
            self._format, self._value = type(self._value), self._value.decode.__self__.type  # type: ignore[attr-defined]
        self._version, self._upcasters = table.version, dict[int, Upcaster](table.upcasters)

    def __getstate__(self) -> Mapping[str, Any]:
        names = ("name", "key_type", "_value", "_format", "_version", "_upcasters")
        return {name: self.__dict__[name] for name in names}

    @cached_property
    def schema(self) -> spark.StructType:
        partition = spark.StructField("partition", spark.IntegerType(), nullable=False)
        key = spark.StructField("key", self.key.type, nullable=False)
        rest = [spark.StructField(name, kind.type) for name, kind, _ in self._parts]
        return spark.StructType([partition, key, *rest])

    @cached_property
    def key(self) -> Kind:
        return kind_of(inspect.type_info(self.key_type))

    @cached_property
    def value(self) -> Kind:
        """Return the type of a whole value: a struct of its columns, or that of its only column `value`."""
        parts = self._parts
        if parts[0][2] is None:
            return parts[0][1]
        found = _struct([(field or name, kind) for name, kind, field in parts], _get)
        names = [spark.StructField(name, kind.type) for name, kind, _ in parts]
        convert = found.convert
        return Kind(spark.StructType(names), lambda value: dict(zip(self._names, convert(value).values(), strict=True)))

    @cached_property
    def _names(self) -> list[str]:
        return [name for name, _, _ in self._parts]

    @cached_property
    def _parts(self) -> list[tuple[str, Kind, str | None]]:
        """Column, kind, and the field of the value; None for the value itself."""
        if not isinstance(self._value, type) and isinstance(self._value, Serde):
            return [("value", _JSON, None)]
        info = inspect.type_info(self._value)
        parts = parts_of(info)
        if parts is None:
            return [("value", kind_of(info), None)]
        taken = ("partition", "key")
        return [(f"value_{name}" if name.lower() in taken else name, kind, name) for name, kind in parts]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _converted(self, batches)

    def batch(self, partition: pa.Array, keys: Keys, stored: list[bytes], wanted: pa.Schema) -> pa.RecordBatch:
        """Return the `wanted` columns of these rows. Decode only keys and values of which a column is wanted.

        :raises UsageError: a value does not fit its column.
        """
        try:
            decode = self._decoder(tuple(wanted.names))
            found = list(map(decode, stored)) if decode is not None else []
            arrays = []
            for field in wanted:
                if field.name == "partition":
                    column: Any = partition
                elif field.name == "key":
                    column = self.keys(keys)
                else:
                    column = self._column(found, *self._by_name[field.name])
                arrays.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
        except Exception as error:
            raise self.unfit(error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def unfit(self, error: Exception) -> UsageError:
        return UsageError(f"table {self.name!r}: convert a value to its column: {class_and_text(error)}")

    def keys(self, keys: Keys) -> list[Any]:
        """Convert keys."""
        if self.key_type is str and keys and isinstance(keys[0], str):
            return keys
        found = map(self._decode_key, as_msgpack(keys))
        return list(found if self.key.convert is _same else map(self.key.convert, found))

    def values(self, stored: list[bytes | None]) -> list[Any]:
        """Convert stored values to the type of a whole value; None stays None."""
        held = map(self._table.serde.decode, [each for each in stored if each is not None])
        return [None if each is None else _nullable(self.value.convert)(next(held)) for each in stored]

    @cached_property
    def _decode_key(self) -> Callable[[bytes], Any]:
        return msgspec.msgpack.Decoder(self.key_type).decode

    @cached_property
    def _table(self) -> PartitionTable[Any, Any]:
        declaration: Table[Any, Any] = Table(
            key=self.key_type,
            value=self._format(self._value) if self._format else self._value,
            version=self._version,
            upcasters=self._upcasters,
            mutable=True,
        )
        return PartitionTable(declaration)

    @cached_property
    def _by_name(self) -> dict[str, tuple[Kind, str | None]]:
        return {name: (kind, field) for name, kind, field in self._parts}

    @cached_property
    def _decoders(self) -> dict[tuple[str, ...], Callable[[bytes], Any] | None]:
        return {}

    def _decoder(self, asked: tuple[str, ...]) -> Callable[[bytes], Any] | None:
        """Return the function that decodes a value for these columns; None if none of them is of the value."""
        if asked not in self._decoders:
            fields = {self._by_name[name][1] for name in asked if name in self._by_name}
            decode: Callable[[bytes], Any] | None = self._table.serde.decode if fields else None
            if fields and len(fields) < len(self._parts):
                decode = narrow_decoder(self._table.serde, fields) or decode
            self._decoders[asked] = decode
        return self._decoders[asked]

    def _column(self, found: list[Any], kind: Kind, field: str | None) -> list[Any]:
        convert = _nullable(kind.convert)
        if field is None:
            return [convert(value) for value in found]
        if convert is _same and found and not isinstance(found[0], dict):
            return list(map(attrgetter(field), found))
        return [convert(_get(value, 0, field)) for value in found]


def narrow_decoder(given: Serde[Any], names: Collection[str | None]) -> Callable[[bytes], Any] | None:
    """Return what decodes only these fields of a Struct; None for other types.

    Also None if the class sees each value that is decoded, or the place of a field in it has a meaning.
    """
    if type(given) is not serde.Json and type(given) is not serde.MsgPack:  # a class of the user's own may do more
        return None
    cls = given.type
    if not isinstance(cls, type) or not issubclass(cls, msgspec.Struct) or hasattr(cls, "__post_init__"):
        return None
    config = cls.__struct_config__
    if config.array_like or config.tag is not None or config.forbid_unknown_fields:
        return None
    fields = [
        (
            each.name,
            each.type,
            _field(default=each.default, default_factory=each.default_factory, name=each.encode_name),
        )
        for each in msgspec.structs.fields(cls)
        if each.name in names
    ]
    return type(given)(msgspec.defstruct(cls.__name__, fields, kw_only=True, gc=False)).decode


class Untyped:
    """Does the same as `Columns` for a table that the handler does not declare: key and value are JSON."""

    key_type: Final = None
    key: Final = _JSON
    value: Final = _JSON
    schema: Final = spark.StructType(
        [
            spark.StructField("partition", spark.IntegerType(), nullable=False),
            spark.StructField("key", spark.StringType(), nullable=False),
            spark.StructField("value", spark.StringType()),
        ]
    )

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _converted(self, batches)

    def batch(self, partition: pa.Array, keys: Keys, stored: list[bytes], wanted: pa.Schema) -> pa.RecordBatch:
        columns: dict[str, Callable[[], Any]] = {
            "partition": lambda: partition,
            "key": lambda: pa.array(self.keys(keys), pa.string()),
            "value": lambda: pa.array(self.values([*stored]), pa.string()),
        }
        return pa.RecordBatch.from_arrays([columns[name]() for name in wanted.names], schema=wanted)

    def unfit(self, error: Exception) -> UsageError:
        return UsageError(f"table {self.name!r}: convert a value to its column: {class_and_text(error)}")

    def keys(self, keys: Keys) -> list[str]:
        return [_json(typed.key(msgspec.msgpack.decode(key))) for key in as_msgpack(keys)]

    def values(self, stored: list[bytes | None]) -> list[str | None]:
        types = typed.Typed()
        return [None if each is None else _json(types.value(self.name, each)) for each in stored]


def _converted(columns: Columns | Untyped, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert batches of partition, key (msgpack) and value (as stored)."""
    wanted = arrow_schema(columns.schema)
    for batch in batches:
        partition, keys, values = (batch.column(i) for i in range(3))
        yield columns.batch(partition.cast(pa.int32()), keys.to_pylist(), values.to_pylist(), wanted)


def partition_column(partition: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(partition, pa.int32()), count)


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Return the schema for pyarrow. Later releases of PySpark must be given the session's time zone."""
    more: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **more)
