"""`statehold schema`: prints the topics of a service and their types, for other producers and consumers."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import find_service
from statehold.ops.generate import asyncapi


class Format(StrEnum):
    """The format of the schema."""

    ASYNCAPI = "asyncapi"
    JSON_SCHEMA = "json-schema"


def schema(
    target: Annotated[str, typer.Argument(metavar="MODULE:SERVICE", help="Such as examples.clearing.app:service.")],
    form: Annotated[
        Format, typer.Option("--format", help="Print a whole document, or the schemas alone.")
    ] = Format.ASYNCAPI,
    as_json: AsJson = False,
) -> None:
    """Print the topics of a service and the types of their values as JSON, without asking a broker.

    statehold schema examples.clearing.app:service > asyncapi.json

    Exit code 0: printed; 1: the service does not exist.
    """
    service = find_service(target)
    told = asyncapi.asyncapi(service) if form is Format.ASYNCAPI else asyncapi.json_schemas(service)
    typer.echo(json.dumps(told, indent=None if as_json else 2))
