"""`statehold deploy systemd`: writes the units of one service on this machine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from statehold.errors import UsageError
from statehold.ops.cli.common import output as show
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.target import Code, find_service, load_settings
from statehold.ops.generate import systemd_units

app = typer.Typer(help="Write the systemd units that run a service.", no_args_is_help=True)

_SYSTEM = Path("/etc/systemd/system")


@app.command()
def systemd(
    target: Code,
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="Read settings from this TOML file.")],
    instances: Annotated[int, typer.Option("--instances", metavar="N", help="Run N instances on this machine.")] = 1,
    processes: Annotated[
        str, typer.Option("--processes", metavar="N|auto", help="Run N processes in each instance. [default: one]")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Name the units. [default: the service's name]")] = "",
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Write the units here.")] = _SYSTEM,
    directory: Annotated[
        Path | None, typer.Option("--directory", metavar="DIR", help="Import the module from here. [default: this one]")
    ] = None,
    secrets_dir: Annotated[
        Path | None, typer.Option("--secrets-dir", metavar="DIR", help="Read secrets from here, one file per setting.")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Run as this user, which needs no login.")] = "statehold",
    memory: Annotated[
        str,
        typer.Option("--memory", metavar="SIZE", help="Set MemoryMax of one instance. [default: 75 % in equal parts]"),
    ] = "",
    ops_port: Annotated[
        int, typer.Option("--ops-port", metavar="PORT", help="Let instance i listen on PORT + i; 0: on any free port.")
    ] = 8470,
    compaction: Annotated[bool, typer.Option("--compaction/--no-compaction", help="Add a nightly compaction.")] = True,
    systemd_version: Annotated[
        int | None,
        typer.Option("--systemd", metavar="VERSION", help="Write units for this version. [default: this machine's]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the units and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the systemd units of a service: a template, its instances, a target, a nightly compaction.

    statehold deploy systemd order_totals.app:service \\
        --config order-totals.toml \\
        --instances 2 --dry-run

    It replaces existing files; put your own changes in drop-ins (`systemctl edit`).

    Exit code 0: written, or shown; 1: rejected, and nothing was changed.
    """
    settings = load_settings(config, None, secrets_dir, "production")
    made = systemd_units.units(
        systemd_units.UnitPlan(
            name=name or find_service(target).name,
            subject=target,
            config=config.absolute(),
            instances=instances,
            stop_timeout=settings.service.stop_timeout,
            directory=(directory or Path.cwd()).absolute(),
            program=Path(sys.executable).with_name("statehold"),
            secrets=secrets_dir.absolute() if secrets_dir else None,
            user=user,
            memory=memory,
            ops_port=ops_port,
            systemd=_version() if systemd_version is None else systemd_version,
            compaction=compaction,
            processes=processes,
        )
    )
    if not dry_run:
        _write(made, output)
    _show(made, output, written=not dry_run, as_json=as_json)


def _version() -> int:
    with contextlib.suppress(OSError):
        done = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False)
        return systemd_units.version_of(done.stdout)
    return 0


def _write(made: dict[str, str], output: Path) -> None:
    """Write each file atomically, because systemd may read the directory at any moment."""
    try:
        for path, text in made.items():
            target = output / path
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.new")
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(0o644)
            fresh.replace(target)
    except OSError as error:
        raise UsageError(
            f"{output} cannot be written ({error.strerror}): run it with sudo, or give --output"
        ) from error


def _show(made: dict[str, str], output: Path, *, written: bool, as_json: bool) -> None:
    if as_json:
        found = [{"path": str(output / path), "content": text} for path, text in made.items()]
        show.print_json({"written": written, "units": found})
        return
    for path, text in made.items():
        show.report(str(output / path) if written else f"# {output / path}\n{text}")
    if written:
        target = next(path for path in made if path.endswith(".target"))
        show.report(f"next: systemctl daemon-reload && systemctl enable --now {target}")
