"""The commands of whoever operates a service, added to `holdfast` together."""

from __future__ import annotations

import typer

from holdfast.ops.cli import doctor


def add_to(app: typer.Typer) -> None:
    app.command("doctor")(doctor.doctor)
