"""`holdfast doctor`: what is wrong before it is felt."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from holdfast.errors import UsageError
from holdfast.names import Names
from holdfast.ops.cli import show
from holdfast.ops.cli.show import AsJson
from holdfast.ops.cli.target import (
    Config,
    InputName,
    Overrides,
    Profile,
    SecretsDir,
    ServiceName,
    Target,
    find_service,
    outputs_of,
    quiet_settings,
)
from holdfast.ops.doctor.case import Case
from holdfast.ops.doctor.examine import CHECKS, examine
from holdfast.ops.doctor.report import Finding, Level, answer

_COLOURS: Final = {Level.PASS: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.UNKNOWN: "magenta"}


def doctor(
    target: Target = None,
    name: ServiceName = None,
    input_topic: InputName = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", metavar="TOPIC", help="An output topic; may be repeated.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Only this check; may be repeated.")
    ] = None,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Write nothing: leave out the clocks, which need a topic of their own.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read everything that is kept, and prove it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out what is good.")] = False,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Look at the cluster, the service's topics and this machine; say what is wrong and what mends it.

    holdfast doctor examples.clearing.app:service \\
        -c examples/clearing/clearing.toml

    Without a service only the cluster and this machine are looked at.

    Exit code 0: all is good; 10: warnings; 11: something could not be looked at;
    12: a check failed. docs/doctor.md has every check.
    """
    settings = quiet_settings(config, overrides, secrets_dir, profile)
    strange = set(only or ()) - {each.name for each in CHECKS}
    if strange:
        raise UsageError(f"no check {sorted(strange)[0]!r}; there are {', '.join(each.name for each in CHECKS)}")
    names, topics = _subject(settings.service.namespace, target, name, input_topic, outputs)
    if target is not None:
        service = find_service(target)
        service.settings = settings
        settings, names, topics = service.settings, service.names, outputs_of(service)
    case = Case(settings, names, topics, probes=not no_probe, deep=deep)
    findings = examine(case, only or ())
    if as_json:
        show.print_json(_as_json(findings))
    else:
        _print([each for each in findings if not quiet or each.level is not Level.PASS])
    raise typer.Exit(answer(findings))


def _subject(
    namespace: str, target: str | None, name: str | None, input_topic: str | None, outputs: list[str] | None
) -> tuple[Names | None, list[str]]:
    if target is not None and (name or input_topic or outputs):
        raise UsageError(f"{target} declares its names itself; leave out --name, --input and --output")
    if bool(name) != bool(input_topic):
        raise UsageError("--name and --input belong together: the service's name and its input topic")
    return (Names(name, input_topic, namespace) if name and input_topic else None), list(outputs or ())


def _as_json(findings: list[Finding]) -> dict[str, Any]:
    counts = {str(level): sum(each.level is level for each in findings) for level in Level}
    return {"worst": answer(findings).name, "counts": counts, "findings": msgspec.to_builtins(findings)}


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for each in findings:
        about = f" {each.about}:" if each.about != "-" else ""
        line = Text.assemble((f"{each.level:7} ", _COLOURS[each.level]), (each.check, "bold"), f"{about} {each.reason}")
        console.print(line)
        if each.mend:
            console.print(Text(f"        mend: {each.mend}", "dim"))
