"""Serdes with a schema registry: Avro, JSON Schema, Protobuf (extra `schema`).

confluent-kafka serializes: a magic byte, the schema's id, then the value (its default framing; the subject is
`<topic>-value`, for keys `<topic>-key`). statehold checks the schemas at the start, and distinguishes an unreachable
registry from bad data.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from statehold.common.decoding import make_decoder
from statehold.errors import RegistryUnreachable, SchemaRefused, StartError, UsageError

T = TypeVar("T")
_Call = Callable[[Any, SerializationContext], Any]
#: The dialect that every registry supports; some recognize a JSON Schema only by it.
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
#: Types that Avro's logical types accept without conversion.
_AVRO: Final = (bytes, bytearray, datetime, date, time, Decimal, UUID)


class Registry:
    """A schema registry with Confluent's REST interface; the first use connects to it.

    `conf` is the URL, or the dict of confluent-kafka's SchemaRegistryClient (credentials, certificates), or a function
    that returns one of them. With `register=True` a starting service registers the schemas of its outputs; otherwise
    they must be registered. `mock://` is a registry inside the process, for tests.
    """

    def __init__(self, conf: str | Mapping[str, Any] | Callable[[], Mapping[str, Any]], *, register: bool = False):
        self._conf, self.register = conf, register

    @cached_property
    def client(self) -> SchemaRegistryClient:
        conf = self._conf() if callable(self._conf) else self._conf
        return SchemaRegistryClient.new_client({"url": conf} if isinstance(conf, str) else dict(conf))

    @property
    def _writing(self) -> dict[str, bool]:
        return {"auto.register.schemas": self.register, "normalize.schemas": True}

    def avro(self, kind: type[T], schema: str) -> Registered[T]:
        """Return the serde for values of `kind`, a type that msgspec converts, by an Avro `schema` in JSON."""
        make_decoder(msgspec.msgpack.Decoder, kind)  # reads the class, because `convert` does so on any thread

        def make() -> tuple[_Call, _Call]:
            return (
                AvroSerializer(self.client, schema, lambda value, _: _avro(value), self._writing),
                AvroDeserializer(self.client, schema, lambda data, _: msgspec.convert(data, kind)),
            )

        return Registered(self, Schema(schema, "AVRO"), make)

    def json(self, kind: type[T], schema: str | None = None) -> Registered[T]:
        """Return the serde for values of `kind` by a JSON Schema; msgspec derives the default from the type."""
        make_decoder(msgspec.msgpack.Decoder, kind)  # reads the class, because `convert` does so on any thread
        text = schema or json.dumps({"$schema": _DIALECT, "title": kind.__name__, **msgspec.json.schema(kind)})

        def make() -> tuple[_Call, _Call]:
            return (
                JSONSerializer(text, self.client, lambda value, _: msgspec.to_builtins(value), self._writing),
                JSONDeserializer(text, lambda data, _: msgspec.convert(data, kind), self.client),
            )

        return Registered(self, Schema(text, "JSON"), make)

    def protobuf(self, message: type[T]) -> Registered[T]:
        """Return the serde for messages of a class that protoc generated."""

        def make() -> tuple[_Call, _Call]:
            return (
                ProtobufSerializer(message, self.client, {**self._writing, "use.deprecated.format": False}),
                ProtobufDeserializer(message, {"use.deprecated.format": False}, self.client),
            )

        return Registered(self, _of_message(message), make, name=message.DESCRIPTOR.full_name)  # type: ignore[attr-defined]


class Registered(Generic[T]):
    """A serde of one topic's values, or keys. `Output(topic, ...)` and `Annotated` in `Handler[...]` set its topic.

    Tables reject it, because a state must be readable without the registry. Any thread.
    """

    def __init__(
        self,
        registry: Registry,
        schema: Schema,
        make: Callable[[], tuple[_Call, _Call]],
        topic: str = "",
        name: str = "",
        field: str = "value",
    ) -> None:
        """`name`: the Protobuf message's name. `field`: "key" for the serde of a topic's keys."""
        self.registry, self.schema, self.topic, self.name, self.field = registry, schema, topic, name, field
        self._make = make

    def for_topic(self, topic: str) -> Registered[T]:
        """Return a copy for that topic; each partition has its own."""
        return Registered(self.registry, self.schema, self._make, topic, self.name, self.field)

    def for_keys_of(self, topic: str) -> Registered[T]:
        """Return a copy for the keys of that topic, whose subject is `<topic>-key`."""
        return Registered(self.registry, self.schema, self._make, topic, self.name, "key")

    @property
    def subject(self) -> str:
        """The name by which the registry knows the schema."""
        return f"{self.topic}-{self.field}"

    @cached_property
    def _calls(self) -> tuple[_Call, _Call]:
        return self._make()

    def encode(self, value: T, /) -> bytes:
        if not self.topic:
            raise UsageError("a serde of a schema registry is for inputs and outputs, not for tables: it has no topic")
        data: bytes = self._call(0, value)
        return data

    def decode(self, data: bytes, /) -> T:
        if data is None:
            raise ValueError(f"the record has no {self.field}")
        value: T = self._call(1, data)
        return value

    def _call(self, which: int, given: Any) -> Any:
        try:
            field = MessageField.KEY if self.field == "key" else MessageField.VALUE
            return self._calls[which](given, SerializationContext(self.topic, field))
        except Exception as error:
            if (away := _away(error)) is not None:
                raise RegistryUnreachable(f"the schema registry does not answer: {away}") from error
            raise

    # At the start of a service; any thread

    def check_output(self) -> None:
        """Check the output's schema.

        :raises SchemaRefused: the schema is not registered, or is incompatible.
        :raises StartError: the registry does not answer.
        """
        subject, client = self.subject, self.registry.client
        try:
            if self.registry.register:
                client.register_schema(subject, self.schema, normalize_schemas=True)
            else:
                client.lookup_schema(subject, self.schema, normalize_schemas=True)
        except Exception as error:
            advice = "" if self.registry.register else "; register it first, or use Registry(..., register=True)"
            raise _at_start(error, f"{self.topic}: use the output's schema as {subject}", advice) from error

    def check_input(self) -> None:
        """Check that the newest registered schema is readable, by the subject's rule; raises as `check_output`."""
        subject, client = self.subject, self.registry.client
        try:
            newest = client.get_latest_version(subject).schema
            fits = newest.schema_type == self.schema.schema_type and client.test_compatibility(subject, self.schema)
        except Exception as error:
            if isinstance(error, SchemaRegistryError) and error.http_status_code == 404:
                return  # the subject has no schema yet
            raise _at_start(error, f"{self.topic}: compare the input's schema with {subject}", "") from error
        if not fits:
            raise SchemaRefused(
                f"{self.topic}: compare the input's schema with {subject}: it cannot read records of the newest "
                f"registered schema. Next: update the service's schema"
            )


def _avro(value: object) -> Any:
    return msgspec.to_builtins(value, builtin_types=_AVRO)


def _of_message(message: Any) -> Schema:
    """Return the message's schema as a file descriptor in base64, which a registry accepts instead of the source."""
    return Schema(b64encode(message.DESCRIPTOR.file.serialized_pb).decode("ascii"), "PROTOBUF")


def _away(error: BaseException | None) -> str | None:
    """Return why the registry did not answer; None if it did, or was not involved."""
    if error is None:
        return None
    if isinstance(error, SchemaRegistryError):
        return str(error) if error.http_status_code >= 500 or error.http_status_code in (408, 429) else None
    if isinstance(error, OSError) or type(error).__module__.startswith("httpx"):
        return f"{type(error).__name__}: {error}"
    return _away(error.__cause__ or error.__context__)


def _at_start(error: Exception, what: str, advice: str) -> StartError:
    if (away := _away(error)) is not None:
        return StartError(f"{what}: the schema registry does not answer: {away}")
    return SchemaRefused(f"{what}: {error}{advice}")
