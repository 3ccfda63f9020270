"""`statehold schema`: prints the topics of a service and their types, for other producers and consumers."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import Code, find_service
from statehold.ops.generate import asyncapi


def schema(
    target: Code,
    form: Annotated[
        Literal["asyncapi", "json-schema"],
        typer.Option("--format", metavar="asyncapi|json-schema", help="Print a whole document, or the schemas alone."),
    ] = "asyncapi",
    as_json: AsJson = False,
) -> None:
    """Print the topics of a service and the types of their values as JSON, without asking a broker.

    statehold schema order_totals.app:service > asyncapi.json

    Exit code 0: printed; 1: the service does not exist.
    """
    service = find_service(target)
    document = asyncapi.asyncapi(service) if form == "asyncapi" else asyncapi.json_schemas(service)
    output.print_json(document, indent=None if as_json else 2)
