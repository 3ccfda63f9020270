"""`statehold schema`: what a service reads and writes, for those who are to read and write it, too."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import find_service
from statehold.ops.generate import asyncapi


class Format(StrEnum):
    """How to tell it."""

    ASYNCAPI = "asyncapi"
    JSON_SCHEMA = "json-schema"


def schema(
    target: Annotated[str, typer.Argument(metavar="MODULE:SERVICE", help="Such as examples.clearing.app:service.")],
    form: Annotated[Format, typer.Option("--format", help="A whole document, or the schemas alone.")] = Format.ASYNCAPI,
    as_json: AsJson = False,
) -> None:
    """Print the topics of a service and the types of their values as JSON; asks no broker. With --json on one line.

    statehold schema examples.clearing.app:service > asyncapi.json

    Exit code 0: printed; 1: there is no such service.
    """
    service = find_service(target)
    told = asyncapi.asyncapi(service) if form is Format.ASYNCAPI else asyncapi.json_schemas(service)
    typer.echo(json.dumps(told, indent=None if as_json else 2))
