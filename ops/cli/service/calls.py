"""`statehold calls list | show | retry | discard | fail`: durable calls that are pending or dead."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from statehold.admin.commands import Commander
from statehold.admin.inspection.topic_view import topic_view
from statehold.api.call import PendingCall
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.errors import UsageError
from statehold.messages import command
from statehold.messages.call_outcome import DISCARD, FAIL, RETRY, CallRequest
from statehold.ops.cli.common import output as shown
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import Choice, Subject, with_choice, with_subject
from statehold.ops.cli.common.target import OptionalWhy, OutcomeWhy, Partitions, partitions_of
from statehold.ops.cli.common.waiting import progress
from statehold.state.kinds.calls import CallTable

app = typer.Typer(help="List durable calls of a service; retry, discard or fail some.", no_args_is_help=True)

#: ids in one command
_ROUND: Final = 500

Name = Annotated[str | None, typer.Option("--call", metavar="NAME", help="Only calls of this `Call`.")]
Dead = Annotated[bool, typer.Option("--dead", help="Only dead calls: those whose attempts are used up.")]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this call; may be repeated.")]


class StoredCall(NamedTuple):
    """A call in the state of a partition, as of its last commit record with a delta."""

    partition: int
    id: str
    call: str
    row: PendingCall[Any]

    @property
    def plain(self) -> dict[str, Any]:
        row = self.row
        return {
            "id": self.id,
            "call": self.call,
            "partition": self.partition,
            "state": "dead" if row.error else "pending",
            "argument": msgspec.to_builtins(row.argument, builtin_types=(bytes,)),
            "key": None if row.key is None else row.key.decode(errors="replace"),
            "requested": row.time,
            "attempts": row.attempts,
            "error": row.error,
        }


@app.command("list")
@with_subject
def list_(
    about: Subject, partitions: Partitions = None, call: Name = None, dead: Dead = False, as_json: AsJson = False
) -> None:
    """List calls that wait for an answer or are dead, the oldest first.

    statehold calls list order_totals.app:service --dead

    They are those of each partition's last commit record that carries a delta.

    Exit code 0: listed, even if the list is empty.
    """
    found = _stored(about, partitions_of(partitions), call, dead=dead)
    if as_json:
        shown.print_json([each.plain for each in found])
        return
    if not found:
        shown.report("no call is pending or dead")
        return
    now = time.time() * 1000
    rows = [
        (
            each.id,
            "dead" if each.row.error else "pending",
            f"{max(0.0, now - each.row.time) / 1000:.0f} s",
            each.row.error,
        )
        for each in found
    ]
    shown.print_table(("call", "state", "age", "error"), rows)


@app.command("show")
@with_subject
def show_(
    name: Annotated[str, typer.Argument(metavar="ID", help="The id of the call.")],
    about: Subject,
    as_json: AsJson = False,
) -> None:
    """Show one call with its argument.

    statehold calls show orders/3/1207/score/0 order_totals.app:service

    Exit code 0: shown; 1: it is neither pending nor dead.
    """
    found = [each for each in _stored(about, [_partition(name)], None, dead=False) if each.id == name]
    if not found:
        shown.complain(f"{name} is neither pending nor dead; `statehold calls list` names those that are")
        raise typer.Exit(1)
    if as_json:
        shown.print_json(found[0].plain)
        return
    for field, value in found[0].plain.items():
        shown.report(f"{field:>10}  {shown.compact(value)}")


@app.command()
@with_choice
def retry(choice: Choice, call: Name = None, ids: Ids = None, why: OptionalWhy = "") -> None:
    """Make dead calls again, with the same ids.

    statehold calls retry order_totals.app:service --all

    Exit code 0: they are pending again; 1: not in time, no instance runs, or no dead call matches.
    """
    _resolve(choice, RETRY, call, ids, why)


@app.command()
@with_choice
def discard(why: OutcomeWhy, choice: Choice, call: Name = None, ids: Ids = None) -> None:
    """Forget calls, pending or dead: the handler gets neither an answer nor a failure.

    statehold calls discard order_totals.app:service \\
        --id orders/3/1207/score/0 --why "a test order"

    The other system may have received a call, or may receive it while an attempt is in progress.

    Exit code 0: they are gone; 1: not in time, no instance runs, or no call matches.
    """
    _resolve(choice, DISCARD, call, ids, why)


@app.command()
@with_choice
def fail(why: OutcomeWhy, choice: Choice, call: Name = None, ids: Ids = None) -> None:
    """End calls as failed: the method of on_failed gets them with the reason; without one they are dead.

    statehold calls fail order_totals.app:service \\
        --call score --all --why "the scorer is gone"

    Exit code 0: they have failed; 1: not in time, no instance runs, or no call matches.
    """
    _resolve(choice, FAIL, call, ids, why)


def _resolve(choice: Choice, what: str, call: str | None, ids: Sequence[str] | None, why: str) -> None:
    about, timeout, as_json = choice.about, choice.timeout, choice.as_json
    if bool(ids) == choice.everything:
        raise WrongOption("give --id ID, once or more, or --all")
    stored = _stored(about, choice.partitions, call, dead=what == RETRY)
    found = [each for each in stored if choice.everything or each.id in (ids or ())]
    if not found:
        shown.complain(f"no {'dead ' * (what == RETRY)}call matches; `statehold calls list` names them")
        raise typer.Exit(1)
    if choice.dry_run:
        _report(found, as_json, f"{what.removeprefix('calls-')} ")
        return
    by_partition = defaultdict[int, list[str]](list)
    for each in found:
        by_partition[each.partition].append(each.id)
    commander, asked = Commander(about.settings, about.names), command.new_id()
    sent = [
        commander.send_each(what, partition, [CallRequest(part, why).value() for part in _parts(names)], asked)
        for partition, names in by_partition.items()
    ]
    if commander.is_stopped():
        shown.complain(
            f"no instance of {about.names.group} runs. The command stays on the control topic and takes effect at the "
            f"next start. Next: `statehold run {about.target}`"
        )
        raise typer.Exit(1)
    with progress("the partitions' answers", timeout):
        answers = commander.await_answers(sent, timeout, full=False)
    _report(found, as_json, "")
    if late := [answer.partition for answer in answers if answer.transaction is None]:
        shown.complain(
            f"partitions {', '.join(map(str, late))} have not answered within {timeout:.0f} s. The command stays on "
            f"the control topic and takes effect in its turn. Next: run `statehold status`"
        )
        raise typer.Exit(1)


def _parts(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(names[start : start + _ROUND]) for start in range(0, len(names), _ROUND)]


def _report(found: Sequence[StoredCall], as_json: bool, doing: str) -> None:
    if as_json:
        shown.print_json([each.plain for each in found])
        return
    for each in found:
        shown.report(f"{doing}{each.id}{f': {each.row.error}' if each.row.error else ''}")


def _stored(about: Subject, partitions: Sequence[int], call: str | None, *, dead: bool) -> list[StoredCall]:
    """Return the calls in the state, the oldest first."""
    if about.service is None:
        raise WrongOption("give MODULE:SERVICE: only the code knows what the arguments of its calls are")
    kind = class_of(about.service.handler)
    declared = tables_and_outputs(kind)[0].values()
    tables = {table.name: table for table in declared if isinstance(table, CallTable)}
    if not tables:
        raise UsageError(f"the handler {kind.__name__} declares no Call")
    if call is not None and call not in tables:
        raise UsageError(f"there is no Call {call!r}; there are: {', '.join(tables)}")
    found: list[StoredCall] = []
    with topic_view(about.settings, about.names) as view:
        for partition in view.numbers(partitions):
            held = view.state(partition, "latest").contents.tables
            found += [
                StoredCall(partition, str(key), name, table.decode(data))
                for name, table in tables.items()
                for key, data in held.get(name, {}).items()
                if call in (None, name)
            ]
    return sorted((each for each in found if each.row.error or not dead), key=lambda each: each.row.time)


def _partition(name: str) -> int:
    """:raises WrongOption: the text is no id of a call."""
    parts = name.split("/")
    if len(parts) < 5 or not parts[-4].isdigit():
        raise WrongOption(f"{name!r} is no id of a call, such as orders/3/1207/score/0")
    return int(parts[-4])
