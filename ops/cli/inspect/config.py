"""`statehold config show | check`: prints or checks the settings in force and their origins."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from statehold.config.effective import effective
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import Config, Overrides, Profile, SecretsDir, pairs_of

app = typer.Typer(help="Show the settings in force and where each was written, or check them.", no_args_is_help=True)


@app.command("show")
def show_(
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that differ from their defaults.")
    ] = False,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its value and origin; passwords and keys are redacted.

    statehold config show -c order-totals.toml --changed

    Exit code 0: shown; 1: a setting is invalid; each one is named with its origin.
    """
    _, shown = effective(config, pairs_of(overrides), secrets_dir=secrets_dir, profile=profile)
    wanted = [each for each in shown if each.changed or not changed]
    if as_json:
        output.print_json([each._asdict() for each in wanted])
        return
    rows = [
        [Text(cell, "" if each.changed else "dim") for cell in (each.key, each.value, each.origin)] for each in wanted
    ]
    output.print_table(("setting", "value", "from"), rows)


@app.command("check")
def check(
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings as `statehold run` would, without asking a broker.

    statehold config check -c order-totals.toml

    Exit code 0: valid; 1: each invalid one is named with its origin and the allowed values.
    """
    _, shown = effective(config, pairs_of(overrides), secrets_dir=secrets_dir, profile=profile)
    written = sum(each.changed for each in shown)
    if as_json:
        output.print_json({"good": True, "settings": len(shown), "written": written})
    else:
        output.report(
            f"good: {written} written, {len(shown) - written} by default; `statehold doctor` asks the brokers"
        )
