"""`statehold command NAME` and `statehold snapshot take`: send commands to a service as records of its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from statehold.admin.commands import Commander, CommandResult
from statehold.messages.command import COMMAND_HEADER, GO_ON, OWN, PAUSE, TAKE, WORKERS
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, ViaControlTopic, partitions_of
from statehold.ops.cli.common.waiting import progress

#: what a partition reports after a command
_STATES = {PAUSE: "paused from", GO_ON: "continues from"}

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the commit records that acknowledge it.")]
Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait at most this long for all partitions.")]


@with_subject
def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that on_command receives.")],
    about: Subject,
    partitions: Partitions = None,
    value: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Send this value. [default: null, which other readers skip]")
    ] = None,
    via_control_topic: ViaControlTopic = False,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Send a command to every partition, ordered with the input; the service passes it to on_command.

    statehold command close-day order_totals.app:service --no-wait

    The command is a record in the input. With --via-control-topic it takes effect between two transactions.

    Exit code 0: acknowledged, or sent with --no-wait; 1: not acknowledged in time (it stays in the input).
    """
    if name in WORKERS:
        raise WrongOption(f"{name!r} is an entry that only a worker makes; sent by hand it has no effect")
    if name in OWN:
        instead = "statehold snapshot take" if name == TAKE else f"statehold {name}"
        raise WrongOption(f"{name!r} is statehold's own command: `{instead}`")
    sent = None if value is None else value.encode()
    send(about, name, partitions, sent, timeout if wait else None, as_json, control=via_control_topic)


@with_subject
def take(
    about: Subject,
    partitions: Partitions = None,
    via_control_topic: ViaControlTopic = False,
    wait: Wait = True,
    timeout: Timeout = 300.0,
    as_json: AsJson = False,
) -> None:
    """Take a full snapshot of each partition of a running service.

    statehold snapshot take order_totals.app:service

    Needs the right WRITE on the input: the command is a record with the header statehold-command and a null value.

    Exit code 0: every snapshot is written, or the command is sent with --no-wait; 1: not in time; it stays pending.
    """
    send(about, TAKE, partitions, None, timeout if wait else None, as_json, control=via_control_topic)


def send(
    about: Subject,
    name: str,
    partitions: str | None,
    value: bytes | None,
    timeout: float | None,
    as_json: bool,
    *,
    control: bool,
) -> None:
    """Send a command and print the answer of each partition for at most `timeout` seconds; None: do not wait.

    :raises typer.Exit: code 1, not every partition has answered in time.
    """
    commander, full = Commander(about.settings, about.names), name == TAKE
    sent = commander.send(name, partitions_of(partitions), value, control=control)
    if timeout is None:
        answers = [CommandResult(partition=each.partition, id=each.id, offset=each.offset) for each in sent]
    else:
        each_answer = (lambda _: None) if as_json else (lambda answer: output.report(_said(name, answer)))
        with progress(f"the partitions' answers to {name}", timeout):
            answers = commander.await_answers(sent, timeout, full=full, report=each_answer)
    if as_json:
        output.print_json(answers)
    elif timeout is None:
        places = ", ".join(f"{answer.partition}@{answer.offset}" for answer in answers)
        output.report(f"{name}: sent with id {answers[0].id} to partitions {places}")
    late = [answer for answer in answers if (answer.full if full else answer.transaction) is None]
    if timeout is not None and late:
        output.complain(_late(name, late, timeout))
        raise typer.Exit(1)


def _said(name: str, answer: CommandResult) -> str:
    if answer.transaction is None:
        return f"partition {answer.partition}: command at {answer.offset} not acknowledged"
    if (state := _STATES.get(name)) is not None:
        return f"partition {answer.partition}: {state} position {answer.position} on (transaction {answer.transaction})"
    said = f"partition {answer.partition}: acknowledged by transaction {answer.transaction}, position {answer.position}"
    if name != TAKE:
        return said
    if answer.full is None:
        return f"{said}; no full snapshot yet"
    held = "truncated since" if answer.keys is None else f"{answer.keys} keys, {answer.bytes} bytes"
    return f"{said}; full snapshot at {answer.full}, {held}"


def _late(name: str, late: Sequence[CommandResult], timeout: float) -> str:
    where = ", ".join(f"{answer.partition}@{answer.offset}" for answer in late)
    said = (
        f"{name}: partitions {where} have not answered within {timeout:.0f} s. The records (header {COMMAND_HEADER}) "
        f"stay in the input and take effect in their turn. Next: run `statehold status`"
    )
    if name not in _STATES:
        return said
    return said.replace("in the input", "in the control topic") + (
        ". A service that was started before its control topic was made reads it from its next start on"
    )
