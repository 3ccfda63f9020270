"""`statehold run module:service`: runs a service as a daemon."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statehold.common.exit_codes import Exit, exit_of
from statehold.config.settings import Settings
from statehold.errors import StartError, StateholdError, class_and_text, text_of
from statehold.health.freeze_guard import FreezeGuard
from statehold.ops.cli.common import early_signals, output
from statehold.ops.cli.common.target import (
    Code,
    Config,
    Overrides,
    Profile,
    SecretsDir,
    find_service,
    load_settings,
)
from statehold.ops.http.server import OpsServer
from statehold.ops.process import stacks
from statehold.ops.process.control import ControlServer
from statehold.ops.process.logs import configure_logging, wants_json
from statehold.ops.process.systemd_status import Supervision
from statehold.service import Service
from statehold.telemetry.log_events import Log

if TYPE_CHECKING:  # the service of one process runs without it
    from statehold.ops.supervisor.launch import Launch
    from statehold.ops.supervisor.member import MemberServer

#: seconds that a child of --reload may take beyond service.stop_timeout before it is killed
_GRACE = 5.0
_JSON_LINES = ["log.format=json"]
_LEAVING = ["group.leave_on_stop=true"]


def run(
    target: Code,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    leave: Annotated[
        bool, typer.Option("--leave", help="Leave the group when a static member stops, as when scaling in.")
    ] = False,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart when a .py or .toml file here changes, for development."),
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="Log JSON lines on a terminal, too.")] = False,
    processes: Annotated[
        str | None,
        typer.Option(
            "--processes", metavar="N|auto", help="Run N processes of the service; auto: two for each three cores."
        ),
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="With --processes: keep each process's Python threads on a core.")
    ] = False,
    launch: Annotated[str | None, typer.Option("--launch", hidden=True)] = None,
) -> None:
    """Run a service until SIGTERM or SIGINT, logging to standard error.

    statehold run order_totals.app:service -c order-totals.toml

    With --processes a supervisor starts that many processes, restarts those that end, and serves one ops address.
    SIGHUP or `statehold restart` restarts one after the other.

    Exit code 0: stopped cleanly; 1: an error, reported in one line;
    3: a partition failed, with failure.on_partition_failure = "exit"; 4: a handler is stuck (failure.stuck_exit);
    5: an obstacle that a restart does not remove.
    `statehold explain 5` explains a code; without a number it lists all.
    """
    try:
        settings = load_settings(
            config,
            [*(overrides or ()), *(_JSON_LINES if json_lines else ()), *(_LEAVING if leave else ())],
            secrets_dir,
            profile,
        )
    except StateholdError as error:
        output.complain(class_and_text(error))
        raise typer.Exit(exit_of(error)) from error
    configure_logging(settings.log)
    stacks.on_signal()
    if processes is not None or pin:
        arguments = _arguments(target, config, overrides, secrets_dir, profile, leave=leave, json_lines=json_lines)
        raise typer.Exit(_supervise(target, arguments, processes, settings, pin=pin, reload=reload))
    if reload:
        raise typer.Exit(_reload(settings, [path.absolute() for path in (config,) if path is not None]))
    raise typer.Exit(_serve(target, settings) if launch is None else _serve_for_supervisor(target, settings, launch))


def _serve_for_supervisor(target: str, settings: Settings, text: str) -> Exit:
    """Run as a process of --processes."""
    from statehold.ops.supervisor.launch import launch_of
    from statehold.ops.supervisor.member import follow

    launch = launch_of(text)
    follow(launch, settings.service.stop_timeout)
    return _serve(target, settings, launch)


def _serve(target: str, settings: Settings, launch: Launch | None = None) -> Exit:
    """Run until the end, and report in one line why it ended unless it was stopped."""
    try:
        service = find_service(target)
        service.settings = settings
        if launch is not None and not launch.socket:
            return Exit.STOPPED  # the code and the settings can be loaded
        control, ops = ControlServer(service), OpsServer(service)
        member = None if launch is None else _member(service, launch)
        try:
            if member is None:
                _open(control)
                _open_ops(ops)
            else:
                member.open()
            early_signals.obey()
            with (
                _ends_when_frozen(settings),
                Supervision(service.status),
                _looked_at(service, settings),
                _bars(service, settings) if launch is None else nullcontext(),
            ):
                service.run()
        finally:
            early_signals.ignore()
            for server in (control, ops, member):
                if server is not None:
                    server.close()
    except StateholdError as error:
        return _ended(error, settings, exit_of(error))
    except Exception as error:  # noqa: BLE001 - a bug of the handler or of statehold: logged with its traceback
        Log().error("stopped", error=type(error).__name__, cause=text_of(error), exc_info=error)
        return Exit.ERROR
    return Exit.STOPPED


@contextmanager
def _ends_when_frozen(settings: Settings) -> Iterator[None]:
    """Guard the process, unless `service.freeze_exit` is off; run without a guard if the system gives it no timer."""
    with ExitStack() as stack:
        if settings.service.freeze_exit != "off":
            try:
                stack.enter_context(FreezeGuard(settings.service.freeze_exit))
            except OSError as error:
                Log().warning("freeze_unguarded", cause=str(error))
        yield


def _bars(service: Service, settings: Settings) -> AbstractContextManager[object]:
    """Show the progress of each restore on a terminal, unless it shows JSON lines."""
    if not sys.stderr.isatty() or wants_json(settings.log, sys.stderr):
        return nullcontext()
    from statehold.ops.cli.common.bars import Bars  # here, because it imports rich

    bars = Bars(lambda: service.status()["partitions"], sys.stderr)
    configure_logging(settings.log, bars.lines)
    return bars


def _looked_at(service: Service, settings: Settings) -> AbstractContextManager[object]:
    """Run the doctor before the start or in parallel; if it is off, only the check that several inputs need.

    :raises StartError: `doctor.at_start` is `fail`, and a check has failed.
    """
    if settings.doctor.at_start == "off" and len(service.names.inputs) < 2:
        return nullcontext()
    from statehold.ops.process.doctor_at_start import DoctorAtStart

    return DoctorAtStart(service)


def _member(service: Service, launch: Launch) -> MemberServer:
    from statehold.ops.supervisor.member import MemberServer

    return MemberServer(service, launch)


def _open(control: ControlServer) -> None:
    """Open the control socket; continue without it, because the service must not stay down for that."""
    try:
        control.open()
        Log().info("control_open", path=str(control.path))
    except OSError as error:
        Log().warning("control_closed", cause=f"statehold status and retry cannot reach this process: {error}")


def _open_ops(ops: OpsServer) -> None:
    """Open the ops server; continue without it after logging an error, because missing metrics raise an alert."""
    try:
        if url := ops.open():
            Log().info("ops_open", url=url)
    except StartError as error:
        Log().error("ops_closed", cause=str(error))


def _ended(error: StateholdError, settings: Settings, code: Exit) -> Exit:
    """Report the error as JSON in a log of JSON lines, as a sentence otherwise."""
    if wants_json(settings.log, sys.stderr):
        Log().error("stopped", error=type(error).__name__, cause=str(error), exit_code=int(code))
    else:
        output.complain(class_and_text(error))
    return code


def _arguments(
    target: str,
    config: Path | None,
    overrides: list[str] | None,
    secrets_dir: Path | None,
    profile: str | None,
    *,
    leave: bool,
    json_lines: bool,
) -> list[str]:
    """Return the command line of each process, without the options of the supervisor."""
    given = [
        *(("--config", str(config)) if config is not None else ()),
        *(part for each in overrides or () for part in ("--set", each)),
        *(("--secrets-dir", str(secrets_dir)) if secrets_dir is not None else ()),
        *(("--profile", profile) if profile is not None else ()),
    ]
    return ["run", target, *given, *(["--leave"] if leave else []), *(["--json"] if json_lines else [])]


def _supervise(
    target: str, arguments: list[str], processes: str | None, settings: Settings, *, pin: bool, reload: bool
) -> int:
    from statehold.ops.supervisor.supervisor import SupervisorPlan, supervise

    if processes is None or reload:
        output.complain("statehold: --pin needs --processes, and --reload goes without it")
        return Exit.USAGE
    try:
        return supervise(SupervisorPlan(target, arguments, processes, pin), settings)
    except StateholdError as error:
        return _ended(error, settings, exit_of(error))


def _reload(settings: Settings, files: list[Path]) -> int:
    from statehold.ops.process.reload import supervise

    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    return supervise(arguments, Path.cwd(), files, settings.service.stop_timeout + _GRACE)
