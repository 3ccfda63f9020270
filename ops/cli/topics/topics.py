"""`statehold topics create | check`: creates and checks the topics of a service, before its explicit first start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.text import Text

from statehold.admin.topics import ServiceTopics, TopicFinding
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Outputs
from statehold.ops.cli.topics.acl import acl

app = typer.Typer(
    help="Create and check the topics of a service; print the access rights that it needs.", no_args_is_help=True
)


@app.command()
@with_subject
def create(
    about: Subject,
    start_at: Annotated[
        str,
        typer.Option(
            "--start-at",
            metavar="WHERE",
            help="Begin here: beginning, end, group (its committed offsets), "
            "a time such as 2026-11-21T08:00:00Z, or milliseconds since 1970.",
        ),
    ],
    outputs: Outputs = None,
    partitions: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Create missing inputs and outputs with N partitions, in development also reference topics. "
            "[default: create none, and name them]",
        ),
    ] = 0,
    replication: Annotated[
        int, typer.Option(min=0, metavar="R", help="Give the topics it creates R replicas. [default: the broker's]")
    ] = 0,
    control: Annotated[
        bool,
        typer.Option(
            "--control", help="Create the control topic, too, which `pause`, `dlq` and `--via-control-topic` use."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create missing topics, check existing ones, and store where each partition begins to read.

    statehold topics create order_totals.app:service \\
        --start-at beginning --partitions 4

    A service needs this once, before its first start. You may repeat it: a partition that has begun keeps its position.

    Exit code 0: all is correct; 1: something is wrong.
    """
    topics = ServiceTopics(about.settings, about.names, about.outputs(outputs), about.references)
    _show(about, topics.create(start_at, partitions, replication, control=control), as_json)


@app.command()
@with_subject
def check(
    about: Subject,
    outputs: Outputs = None,
    as_json: AsJson = False,
) -> None:
    """Compare each topic of a service with the settings that it needs.

    statehold topics check order_totals.app:service

    Exit code 0: all is correct; 1: something is missing or differs.
    """
    topics = ServiceTopics(about.settings, about.names, about.outputs(outputs), about.references)
    _show(about, topics.check(), as_json)


app.command()(acl)


_COLOURS: Final = {"created": "green", "ok": "green", "missing": "red"}


def _show(about: Subject, findings: Sequence[TopicFinding], as_json: bool) -> None:
    good = all(finding.good for finding in findings)
    if as_json:
        output.print_json([{"topic": f.topic, "good": f.good, "state": f.state} for f in findings])
    else:
        rows = [(f.topic, Text(f.state, _COLOURS.get(f.state, "yellow" if f.good else "red"))) for f in findings]
        output.print_table(("topic", "state"), rows)
    if not good:
        wrong = [finding.topic for finding in findings if not finding.good]
        missing = {finding.topic for finding in findings if finding.state == "missing"}
        foreign = missing.intersection(about.references) if about.settings.service.mode == "production" else set()
        remedies = ["the table shows each wrong setting"] if not missing else []
        if missing - foreign:
            remedies.append("`statehold topics create ... --start-at ... --partitions N` creates the missing ones")
        if foreign:
            remedies.append(
                f"the owner of reference data creates {', '.join(sorted(foreign))} with cleanup.policy=compact "
                f"(`topics create --partitions N` does it with service.mode = 'development')"
            )
        output.complain(f"{about.names.group}: wrong or missing topics: {', '.join(wrong)}; {'; '.join(remedies)}")
        raise typer.Exit(1)
