"""Describes the topics and types of a service as an AsyncAPI 3.0 document, or as JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin
from uuid import UUID

import msgspec

from statehold.api.values.serde import OfTopic, Serde, is_pydantic, without_none
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.inputs import key_types, value_types
from statehold.bound.output import KeyedOutput
from statehold.bound.reference import references
from statehold.bound.topics import class_of, replies_of
from statehold.service import Service

Json = dict[str, Any]
_PLAIN: dict[Any, Json] = {
    str: {"type": "string"},
    int: {"type": "string", "pattern": "^-?[0-9]+$", "description": "a decimal number as text"},
    bytes: {"type": "string", "format": "binary"},
    UUID: {"type": "string", "format": "uuid"},
}
#: schema type of a registry -> media type of the values, AsyncAPI's name of the schema's format
_REGISTERED = {
    "AVRO": ("application/vnd.apache.avro", "application/vnd.apache.avro+json;version=1.9.0"),
    "JSON": ("application/json", "application/schema+json;version=draft-07"),
}


def asyncapi(service: Service) -> Json:
    """https://www.asyncapi.com/docs/reference/specification/v3.0.0"""
    channels: Json = {}
    operations: Json = {}
    schemas: Json = {}
    keys = _keys(service)
    for topic, action, kind in _topics(service):
        message, components = _message(kind, keys.get((topic, action)))
        schemas |= components
        messages = channels.setdefault(topic, {"address": topic, "messages": {}})["messages"]
        messages.setdefault("value", message)
        operation = {
            "action": action,
            "channel": {"$ref": _pointer("channels", topic)},
            "messages": [{"$ref": _pointer("channels", topic, "messages", "value")}],
        }
        operations[f"{action}-{topic}"] = operation
    return {
        "asyncapi": "3.0.0",
        "info": {"title": service.name, "version": "1.0.0"},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": schemas},
    }


def json_schemas(service: Service) -> Json:
    """Return a complete JSON Schema of the values of each topic; Avro and Protobuf schemas are passed unchanged."""
    return {topic: _alone(kind) for topic, _, kind in _topics(service)}


def _topics(service: Service) -> list[tuple[str, str, Any]]:
    outputs = tables_and_outputs(class_of(service.handler))[1].values()
    types = value_types(class_of(service.handler), service.names)
    read = [(topic, "receive", kind) for topic, kind in types.items()]
    read += [(topic, "send", types[topic]) for topic in service.names.rekeys]
    looked_up = [(each.topic, "receive", each.value_type) for each in references(class_of(service.handler)).values()]
    replies = replies_of(class_of(service.handler))
    answers = [] if replies is None else [(service.names.replies, "send", replies.reply_type)]
    return [*read, *looked_up, *((output.topic, "send", output.value_type) for output in outputs), *answers]


def _keys(service: Service) -> dict[tuple[str, str], Any]:
    """Return the declared type of the keys by topic and action."""
    kind, rekeys = class_of(service.handler), service.names.rekeys
    types = key_types(service.handler, service.names)
    found = {(topic, "receive"): key for topic, key in types.items()}
    found |= {(topic, "send"): types[topic] for topic in rekeys if topic in types}
    outputs = tables_and_outputs(kind)[1].values()
    return found | {(each.topic, "send"): each.keys.type for each in outputs if isinstance(each, KeyedOutput)}


def _message(kind: Any, key: Any) -> tuple[Json, Json]:
    """Return a message object, and the schemas that it refers to. `key` None: the keys have no declared type."""
    components: Json = {}

    def derive(wanted: Any) -> Json:
        if is_pydantic(wanted):
            schema = _pydantic(wanted, ref_template="#/components/schemas/{model}")
            found = schema.pop("$defs", {})
        else:
            (schema,), found = msgspec.json.schema_components([wanted], ref_template="#/components/schemas/{name}")
        components.update(found)
        return schema

    payload = _payload(kind, derive)
    content = payload.pop("x-content", None)
    message = ({"contentType": content} if content else {}) | {"payload": payload}
    if key is not None:
        form = _payload(key, derive)
        form.pop("x-content", None)
        message["bindings"] = {"kafka": {"key": form, "bindingVersion": "0.5.0"}}
    return message, components


def _alone(kind: Any) -> Json:
    payload = _payload(kind, _pydantic if is_pydantic(kind) else msgspec.json.schema)
    payload.pop("x-content", None)
    return payload


def _payload(kind: Any, derive: Callable[[Any], Json]) -> Json:
    """Return the schema of a value, with its media type under x-content unless it is JSON.

    A null value has no schema, because no bytes represent it.
    """
    kind = without_none(kind)
    given = _serde(kind)
    if isinstance(given, OfTopic):
        return _registered(given)
    if given is not None:
        return {"x-content": "application/octet-stream", "description": f"bytes of {type(given).__name__}"}
    if kind in _PLAIN:
        return {"x-content": "application/octet-stream" if kind is bytes else "text/plain", **_PLAIN[kind]}
    return derive(kind)


def _pydantic(kind: Any, **options: Any) -> Json:
    from pydantic import TypeAdapter

    return TypeAdapter(kind).json_schema(**options)


def _registered(given: Any) -> Json:
    schema = given.schema
    if schema.schema_type not in _REGISTERED:
        return {"x-content": "application/vnd.google.protobuf", "description": f"Protobuf message {given.name}"}
    content, schema_format = _REGISTERED[schema.schema_type]
    return {"x-content": content, "schemaFormat": schema_format, "schema": json.loads(schema.schema_str)}


def _serde(kind: Any) -> Serde[Any] | OfTopic | None:
    candidates = get_args(kind)[1:] if get_origin(kind) is Annotated else () if isinstance(kind, type) else (kind,)
    return next((each for each in candidates if isinstance(each, (OfTopic, Serde))), None)


def _pointer(*steps: str) -> str:
    """Return a reference within the document (RFC 6901)."""
    return "#/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in steps)
