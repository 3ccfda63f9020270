"""`statehold doctor`: finds problems before they cause an outage."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from statehold.common.visible import visible
from statehold.config.settings import Settings
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import subject_of, with_settings
from statehold.ops.cli.common.target import InputName, Outputs, ServiceName, Target
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import CHECKS, examine
from statehold.ops.doctor.report import Finding, Level, answer

_COLOURS: Final = {Level.PASS: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.UNKNOWN: "magenta"}


@with_settings
def doctor(
    settings: Settings,
    target: Target = None,
    name: ServiceName = None,
    input_topic: InputName = None,
    outputs: Outputs = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Run only this check; may be repeated.")
    ] = None,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Write nothing: skip the check of the clocks, which needs its own topic.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read and verify everything stored.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide checks that pass.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the cluster, the service's topics and this machine, and print a fix for each problem.

    statehold doctor order_totals.app:service \\
        -c order-totals.toml

    Without a service it checks the cluster and this machine only.

    Exit code 0: all checks pass; 10: warnings; 11: a check could not run;
    12: a check failed.
    """
    strange = set(only or ()) - {each.name for each in CHECKS}
    if strange:
        raise WrongOption(f"no check {sorted(strange)[0]!r}; there are {', '.join(each.name for each in CHECKS)}")
    if target or name or input_topic:
        about = subject_of(settings, target, name, input_topic)
        case = Case(
            about.settings,
            about.names,
            about.outputs(outputs),
            probes=not no_probe,
            deep=deep,
            sinks=about.sinks,
            references=about.references,
        )
    else:
        case = Case(settings, None, outputs or [], probes=not no_probe, deep=deep)
    findings = examine(case, only or ())
    if as_json:
        output.print_json(_as_json(findings))
    else:
        _print([each for each in findings if not quiet or each.level is not Level.PASS])
    raise typer.Exit(answer(findings))


def _as_json(findings: list[Finding]) -> dict[str, Any]:
    counts = {str(level): sum(each.level is level for each in findings) for level in Level}
    return {"worst": answer(findings).name, "counts": counts, "findings": msgspec.to_builtins(findings)}


def _print(findings: list[Finding]) -> None:
    """Print findings with one reason and one fix as one line, because an outage causes nearly all of them."""
    console = Console(highlight=False, soft_wrap=True)
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        key = (each,) if each.level is Level.PASS else (each.level, each.reason, each.fix)
        alike.setdefault(key, []).append(each)
    for group in alike.values():
        first = group[0]
        checks = ", ".join(dict.fromkeys(each.check for each in group))
        abouts = ", ".join(dict.fromkeys(each.about for each in group))
        about = f" {abouts}:" if abouts != "-" else ""
        console.print(
            Text.assemble(
                (f"{first.level:7} ", _COLOURS[first.level]), (checks, "bold"), visible(f"{about} {first.reason}")
            )
        )
        if first.fix:
            console.print(Text(visible(f"        fix: {first.fix}"), "dim"))
