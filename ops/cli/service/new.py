"""`statehold new NAME`: writes the files of a new service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.generate import scaffold


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name the service, such as order-totals.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write the files here. [default: ./NAME]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a new service: handler, passing test, settings, systemd unit, Dockerfile.

    statehold new order-totals

    Exit code 0: created; 1: rejected, and nothing was written.
    """
    directory = to or Path(name)
    made = scaffold.write(name, directory)
    if as_json:
        output.print_json({"directory": str(directory), "files": [str(each) for each in made]})
        return
    for each in made:
        output.report(str(each))
    output.report(f"next: cd {directory}; python -m pytest; README.md has the commands that run it")
