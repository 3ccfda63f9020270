"""`statehold schema`: an AsyncAPI document of a service, and its schemas alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel

from statehold import Handler, Output, Record, Service
from statehold.ops.generate.asyncapi import asyncapi, json_schemas

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
APP = '''
from typing import Annotated
import msgspec
from statehold import Handler, Output, Service
from statehold import Registry

registry = Registry("http://127.0.0.1:1")  # never asked


class Side(msgspec.Struct):
    name: str


class Trade(msgspec.Struct):
    """One deal."""
    id: int
    side: Side


class Cents:
    def encode(self, value: int, /) -> bytes: return b""
    def decode(self, data: bytes, /) -> int: return 0


class Ledger(Handler[Trade]):
    sent = Output("sent/loud", value=registry.avro(Side, '{"type": "record", "name": "Side", "fields": []}'))
    text = Output("text", value=str)
    sums = Output("sums", value=Cents())
    again = Output("again", value=Trade)


service = Service("ledger", input="trades", handler=Ledger)
'''


def document_of(directory: Path, *options: str) -> dict[str, Any]:
    (directory / "ledger_app.py").write_text(APP)
    command = [sys.executable, "-m", "statehold.ops.cli.entry", "schema", "ledger_app:service", *options]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def resolve(document: dict[str, Any], pointer: str) -> Any:
    """RFC 6901, by hand."""
    found: Any = document
    for step in pointer.removeprefix("#/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for value in node.values() for each in references(value)]
    return [each for value in node for each in references(value)] if isinstance(node, list) else []


def test_the_document_names_what_is_read_and_what_is_sent(tmp_path: Path) -> None:
    document = document_of(tmp_path)
    assert document["asyncapi"] == "3.0.0"
    directions = {
        resolve(document, operation["channel"]["$ref"])["address"]: operation["action"]
        for operation in document["operations"].values()
    }
    assert directions == {"trades": "receive", "sent/loud": "send", "text": "send", "sums": "send", "again": "send"}
    assert all(resolve(document, reference) is not None for reference in references(document))
    sent_as = {name: channel["messages"]["value"] for name, channel in document["channels"].items()}
    assert sent_as["sent/loud"]["contentType"] == "application/vnd.apache.avro"
    assert sent_as["sent/loud"]["payload"]["schema"]["name"] == "Side"
    assert (sent_as["text"]["contentType"], sent_as["text"]["payload"]["type"]) == ("text/plain", "string")
    assert "Cents" in sent_as["sums"]["payload"]["description"]


@pytest.mark.parametrize(
    ("value", "good"), [({"id": 1, "side": {"name": "buy"}}, True), ({"id": "x"}, False)], ids=["fits", "does-not"]
)
def test_a_schema_alone_judges_values(tmp_path: Path, value: object, good: bool) -> None:
    schema = document_of(tmp_path, "--format", "json-schema")["trades"]
    assert jsonschema.Draft202012Validator(schema).is_valid(value) is good


class Leg(BaseModel):
    cents: int


class Deal(BaseModel):
    legs: list[Leg]


class Deals(Handler[Deal | None]):
    text = Output("text", value=str | None)

    def on_record(self, record: Record[Deal | None]) -> None: ...


def test_models_and_null_values_are_described() -> None:
    service = Service("deals", input="deals", handler=Deals)
    document = asyncapi(service)
    messages = {topic: channel["messages"]["value"] for topic, channel in document["channels"].items()}
    assert messages["deals"]["payload"]["properties"]["legs"]["items"] == {"$ref": "#/components/schemas/Leg"}
    assert document["components"]["schemas"]["Leg"]["properties"] == {"cents": {"title": "Cents", "type": "integer"}}
    assert messages["text"] == {"contentType": "text/plain", "payload": {"type": "string"}}
    jsonschema.validate({"legs": [{"cents": 1}]}, json_schemas(service)["deals"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"legs": [{}]}, json_schemas(service)["deals"])


def test_declared_keys_are_bindings_of_the_messages() -> None:
    class Keyed(Handler[str, int]):
        out = Output("out", value=str, key=UUID)
        plain = Output("plain", value=str)

        def on_record(self, record: Record[str, int]) -> None: ...

    channels = asyncapi(Service("keyed", input="in", handler=Keyed))["channels"]
    messages = {topic: channel["messages"]["value"] for topic, channel in channels.items()}
    assert messages["in"]["bindings"]["kafka"]["key"]["pattern"] == "^-?[0-9]+$"
    assert messages["out"]["bindings"]["kafka"]["key"] == {"type": "string", "format": "uuid"}
    assert "bindings" not in messages["plain"]
