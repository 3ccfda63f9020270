"""`statehold support-bundle`: collects what a helper needs in one file."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from statehold.common.names import Names
from statehold.config.effective import effective
from statehold.config.settings import Settings
from statehold.errors import StateholdError, UsageError
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import subject_of
from statehold.ops.cli.common.target import (
    Config,
    InputName,
    Overrides,
    Profile,
    SecretsDir,
    ServiceName,
    Target,
    pairs_of,
)
from statehold.ops.cli.common.waiting import patient
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.process.logs import configure_quietly
from statehold.ops.remote import local_services
from statehold.ops.reports import support_bundle as bundle
from statehold.ops.reports.lag import Lags


def support_bundle(
    target: Target = None,
    name: ServiceName = None,
    input_topic: InputName = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Write this file. [default: statehold-NAME-TIME.tar.gz here]"),
    ] = None,
    logs: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="Add this log file; may be repeated.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", metavar="UNIT", help="Add the journal of this systemd unit.")
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Collect settings, status, doctor, lag, stacks and logs in one file, without secrets and records.

    statehold support-bundle order_totals.app:service \\
        -c order-totals.toml

    The file names what did not answer, such as brokers that are down.

    Exit code 0: written; 1: not written.
    """
    settings, effective_settings = effective(config, pairs_of(overrides), secrets_dir=secrets_dir, profile=profile)
    configure_quietly(settings.log)
    about = subject_of(settings, target, name, input_topic)
    settings, names = about.settings, about.names
    path = to or Path(f"statehold-{names.group}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    made = bundle.Bundle(settings)
    made.add_json("settings.json", [each._asdict() for each in effective_settings])
    made.add_json("machine.json", bundle.machine())
    found = local_services.of_service(names.group)
    made.add_json("status.json", [each.status or {"socket": str(each.path), "trouble": each.trouble} for each in found])
    made.add_json("stacks.json", bundle.stacks_of(found))
    case = Case(settings, names, about.outputs(), probes=False, sinks=about.sinks, references=about.references)
    with patient(settings):
        made.add_json("doctor.json", msgspec.to_builtins(examine(case)))
        made.add_json("lag.json", _lag(settings, names))
    _add_logs(made, logs or [], unit)
    try:
        made.write(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; choose another with --to") from error
    if as_json:
        output.print_json({"file": str(path), "holds": made.names})
    else:
        output.report(
            f"{path}: {', '.join(made.names)}. Look through it before you hand it on: logs may hold your data"
        )


def _lag(settings: Settings, names: Names) -> Any:
    try:
        with closing(Lags(settings, names)) as lags:
            return msgspec.to_builtins(lags.now())
    except StateholdError as error:
        return {"trouble": str(error)}


def _add_logs(made: bundle.Bundle, logs: list[Path], unit: str | None) -> None:
    """:raises UsageError: a file cannot be read."""
    for path in logs:
        try:
            made.add_log(path)
        except OSError as error:
            raise UsageError(f"--log {path}: {error.strerror}") from error
    if unit is not None:
        made.add("logs/journal.txt", bundle.journal(unit))
