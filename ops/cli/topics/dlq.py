"""`statehold dlq list | show | replay | discard | add`: handles dead letters and blocked keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from statehold.admin.commands import SentCommand
from statehold.admin.dead_letter_request import FailedRecord, RequestedDeadLetter
from statehold.admin.dead_letters import DeadLetterResult, DeadLetters, by_key
from statehold.api.call import Call
from statehold.api.handler import Handler
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.policies import sends_dead_letters
from statehold.bound.topics import class_of
from statehold.common.visible import key_as_text, key_of_text
from statehold.errors import UsageError
from statehold.messages.dead_letter import DISCARD, REPLAY, DeadLetter, Resolution
from statehold.ops.cli.common import output as shown
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.shared_options import NumbersCommand
from statehold.ops.cli.common.subject import Choice, Subject, with_choice, with_subject
from statehold.ops.cli.common.target import OptionalWhy, OutcomeWhy, Partitions, partitions_of
from statehold.ops.cli.common.waiting import progress
from statehold.ops.remote import local_services
from statehold.ops.remote.local_services import NoProcess

app = typer.Typer(
    help="List, redrive and discard dead letters (records that the handler could not process); make one.",
    no_args_is_help=True,
)

#: seconds between two looks whether the service still has a process
_LOOK: Final = 5.0

Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="TEXT",
        help="Only the dead letters of this key; one that is not text is written as `hex:` and its bytes.",
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--dead-letter",
        metavar="P@OFFSET",
        help="Only this one: partition and offset of its record, such as 3@1207; with several inputs TOPIC:3@1207.",
    ),
]


def _dead_letters(about: Subject) -> DeadLetters:
    declared = () if about.service is None else tables_and_outputs(class_of(about.service.handler))[0].values()
    calls = any(isinstance(table, Call) for table in declared)
    advice = f"`statehold calls list {about.target} --dead` lists dead calls; for records " if calls else ""
    return DeadLetters(about.settings, about.names, advice)


@app.command("list")
@with_subject
def list_(
    about: Subject,
    partitions: Partitions = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List waiting dead letters: for each key the one that failed first, and how many wait.

    statehold dlq list order_totals.app:service

    Exit code 0: listed, even if the list is empty.
    """
    dead = _dead_letters(about)
    found = dead.waiting(partitions_of(partitions), _wanted(about, key, None))
    dead_letters = [dead_letter for each in found.values() for dead_letter in each]
    if as_json:
        shown.print_json([{"dead_letter": dead_letter.name, **_plain(dead_letter)} for dead_letter in dead_letters])
        return
    if not dead_letters:
        shown.report("no dead letter waits")
        return
    rows = []
    for line in by_key(dead_letters).values():
        first = line[0]
        said = f"{first.error}: {first.text}" if first.why == "raised" else f"(follows) {first.error}"
        rows.append((first.name, key_as_text(first.key), len(line), shown.moment(first.timestamp), said))
    shown.print_table(("dead letter", "key", "waiting", "failed", "error"), rows)


@app.command("show")
@with_subject
def show_(
    place: Annotated[
        str,
        typer.Argument(
            metavar="P@OFFSET", help="Partition and offset of its record; with several inputs TOPIC:P@OFFSET."
        ),
    ],
    about: Subject,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: the record, the reason, and its outcome.

    statehold dlq show 3@1207 order_totals.app:service

    Exit code 0: shown; 1: that record has no dead letter.
    """
    topic, partition, offset = _parsed(about, place)
    dead = _dead_letters(about)
    dead_letters = [each for _, records in dead.records([partition]) for each in records]
    mine = {
        each.place
        for each in dead_letters
        if isinstance(each, DeadLetter) and each.offset == offset and topic in ("", each.topic)
    }
    found = [each for each in dead_letters if each.place in mine]
    if not found:
        shown.complain(f"no dead letter of record {place}; `statehold dlq list` names those that wait")
        raise typer.Exit(1)
    if as_json:
        shown.print_json([_plain(each) for each in found])
        return
    for each in found:
        for name, value in _plain(each).items():
            shown.report(f"{name:>10}  {shown.compact(value)}")
        shown.report("")


@app.command()
@with_choice
def replay(choice: Choice, key: Key = None, dead_letter: Place = None, why: OptionalWhy = "") -> None:
    """Redrive dead letters: the running service handles each once more, those of a key in order.

    statehold dlq replay order_totals.app:service --key ann

    The service gets the command through its control topic. A dead letter that fails again stays, and so do
    those of its key behind it.

    Exit code 0: all were handled; 1: some were not, or no dead letter matches.
    """
    _settle(choice, REPLAY, key, dead_letter, why)


@app.command()
@with_choice
def discard(why: OutcomeWhy, choice: Choice, key: Key = None, dead_letter: Place = None) -> None:
    """Discard dead letters: the service never handles them, and later records of their keys continue.

    statehold dlq discard order_totals.app:service \\
        --dead-letter 3@1207 --why "a test order"

    Exit code 0: all were discarded; 1: some were not, or no dead letter matches.
    """
    _settle(choice, DISCARD, key, dead_letter, why)


@app.command(cls=NumbersCommand)
@with_subject
def add(
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The failed partition.")],
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="The offset of the record at which it has failed.")
    ],
    why: OutcomeWhy,
    about: Subject,
    overtake: Annotated[
        bool,
        typer.Option(
            "--overtake", help="Allow later records of its key to be handled first, if the handler blocks no keys."
        ),
    ] = False,
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Name the record's input, if the service has several.")
    ] = "",
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Wait at most this long until the partition has passed it.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Add the record at which a partition has failed to the dead letters, and continue behind it.

    statehold dlq add 3 1207 order_totals.app:service \\
        --why "no such account, ticket 17"

    The command goes through the control topic. The worker obeys when a retry meets the record and it fails again: this
    command retries the partition if its process is on this machine, otherwise run `statehold retry` there. A stopped
    service obeys at its next start, before the handler gets the record.

    Exit code 0: it is a dead letter, or becomes one at the next start; 1: the partition has not passed it in time, or
    the handler has processed it.
    """
    topic = _input_of(about, topic, "--topic TOPIC")
    requested = RequestedDeadLetter(about.settings, about.names, topic, partition, offset)
    found = requested.find()
    if about.service is not None and not overtake and found.message.key() is not None:
        _require_order(class_of(about.service.handler), partition, offset)
    if requested.is_stopped():
        _add_unseen(requested, found, why, overtake=overtake, as_json=as_json)
        return
    sent = requested.send(found, why, overtake=overtake)
    elsewhere = ""
    try:
        local_services.retry(about.names.group, partition, 0.0)
    except (NoProcess, UsageError) as error:
        elsewhere = str(error)
    retry = f"statehold retry {partition} --name {about.names.service}"
    if elsewhere and not as_json:
        shown.report(f"sent. Next: `{retry}` on the machine of the partition ({elsewhere})")
    passed = _await_passing(requested, sent, timeout)
    if passed is None:  # its last process had died, and its group has noticed it
        _add_unseen(requested, found, why, overtake=overtake, as_json=as_json)
        return
    dead_letter = requested.dead_letter() if passed else None
    if as_json:
        shown.print_json(None if dead_letter is None else {"dead_letter": dead_letter.name, **_plain(dead_letter)})
    elif dead_letter is not None:
        shown.report(
            f"{dead_letter.name} is a dead letter{_made_by(dead_letter, requested.id)}: {dead_letter.error}: "
            f"{dead_letter.text}"
        )
    if dead_letter is None:
        shown.complain(_not_passed(about.names.dead_letter_name(topic, partition, offset), retry, passed=passed))
        raise typer.Exit(1)


def _await_passing(requested: RequestedDeadLetter, sent: SentCommand, timeout: float) -> bool | None:
    """Return whether the partition has passed the record in time; None if the service is stopped."""
    until = time.monotonic() + timeout
    while not requested.passed(sent, max(0.0, min(_LOOK, until - time.monotonic()))):
        if time.monotonic() >= until:
            return False
        if requested.is_stopped():
            return None
    return True


def _add_unseen(
    requested: RequestedDeadLetter, found: FailedRecord, why: str, *, overtake: bool, as_json: bool
) -> None:
    """Leave the command for the next start of a stopped service."""
    requested.send(found, why, overtake=overtake, unseen=True)
    if as_json:
        shown.print_json({"command": requested.id, "waits_for": "start"})
        return
    shown.report(
        "the service is stopped. Its next start dead-letters the record before the handler gets it. Next: start the "
        "service"
    )


def _require_order(kind: type[Handler[Any]], partition: int, offset: int) -> None:
    """:raises UsageError: later records of the key would overtake it."""
    if not sends_dead_letters(kind):
        raise UsageError(
            f"{partition}@{offset}: {kind.__name__} declares no dead_letter policy, so it blocks no key, and later "
            f"records of the same key would overtake this one. Nothing was sent. Next: add --overtake if that is safe"
        )


def _made_by(dead_letter: DeadLetter, own: str) -> str:
    """Return who made it, if it was not the command with the id `own`."""
    if dead_letter.id == own:
        return ""
    return (
        f", made by another command of {dead_letter.who} ({dead_letter.reason})"
        if dead_letter.id
        else ", made by the policy"
    )


def _not_passed(name: str, retry: str, *, passed: bool) -> str:
    if passed:
        return f"{name}: the handler has processed the record, so it is no dead letter"
    return (
        f"{name}: the partition has not passed the record in time. The command stays on the control "
        f"topic and counts when a retry meets the record and it fails again. Next: `{retry}`; if "
        f"that failed, the event command_rejected in the service's log says why"
    )


def _settle(choice: Choice, what: str, key: str | None, place: str | None, why: str) -> None:
    """:raises UsageError: it is not one of --key, --dead-letter and --all that chooses the dead letters."""
    if (key is not None) + (place is not None) + choice.everything != 1:
        raise WrongOption("choose dead letters by one of --key TEXT, --dead-letter P@OFFSET and --all")
    about, chosen = choice.about, choice.partitions
    dead, wanted = _dead_letters(about), _wanted(about, key, place)
    if choice.dry_run:
        dead_letters = [dead_letter for each in dead.waiting(chosen, wanted).values() for dead_letter in each]
        if choice.as_json:
            shown.print_json([_plain(dead_letter) for dead_letter in dead_letters])
        else:
            for dead_letter in dead_letters:
                key_shown = key_as_text(dead_letter.key)
                shown.report(f"{what.removeprefix('dlq-')} {dead_letter.name} key {key_shown}: {dead_letter.error}")
        _require_some(dead_letters)
        return
    with progress("the partitions' answers", choice.timeout):
        outcomes = dead.resolve(what, chosen, wanted, why, choice.timeout)
    if choice.as_json:
        shown.print_json(outcomes)
    else:
        for outcome in outcomes:
            shown.report(f"partition {outcome.partition}: {outcome.done} of {outcome.asked} {_past(what)}")
    _require_some(outcomes)
    for outcome in outcomes:
        if outcome.done < outcome.asked:
            shown.complain(_undone(outcome))
    if any(outcome.done < outcome.asked for outcome in outcomes):
        raise typer.Exit(1)


def _undone(outcome: DeadLetterResult) -> str:
    if outcome.failed:
        return (
            f"partition {outcome.partition}: {len(outcome.failed)} failed again, and those behind them wait. Next: "
            f"`statehold dlq show {outcome.failed[0]}` shows the reason"
        )
    if outcome.late:
        return (
            f"partition {outcome.partition}: not acknowledged in time. The commands stay on the control topic and run "
            f"once the partition is live. Next: `statehold status`; you may repeat the command, because a dead letter "
            f"is resolved only once"
        )
    return (
        f"partition {outcome.partition}: some were resolved before, or an older dead letter comes first. Next: "
        f"`statehold dlq list`"
    )


def _require_some(found: Sequence[object]) -> None:
    if not found:
        shown.complain("no matching dead letter waits. Next: `statehold dlq list`")
        raise typer.Exit(1)


def _wanted(about: Subject, key: str | None, place: str | None) -> Callable[[DeadLetter], bool]:
    at = _parsed(about, place) if place is not None else None
    wanted = None if key is None else key_of_text(key)
    return lambda dead_letter: (
        (wanted is None or dead_letter.key == wanted)
        and (at is None or (dead_letter.topic if at[0] else "", dead_letter.partition, dead_letter.offset) == at)
    )


def _parsed(about: Subject, place: str) -> tuple[str, int, int]:
    """Return the record's input, '' if the service has only one, its partition and offset.

    :raises UsageError: it is not `P@OFFSET`, with several inputs `TOPIC:P@OFFSET`.
    """
    topic, _, record = place.rpartition(":")
    partition, at, offset = record.partition("@")
    if not (at and partition.isdecimal() and offset.isdecimal()):
        raise WrongOption(f"{place!r}: write partition@offset, such as 3@1207")
    topic = _input_of(about, topic, f"TOPIC:{record}")
    return topic if about.names.others else "", int(partition), int(offset)


def _input_of(about: Subject, topic: str, form: str) -> str:
    """Return the input of this name, or the only one. :raises UsageError:"""
    inputs = about.names.inputs
    if topic in inputs or (not topic and len(inputs) == 1):
        return topic or inputs[0]
    raise WrongOption(f"{form}: name the record's input: {', '.join(inputs)}")


def _plain(each: DeadLetter | Resolution) -> dict[str, Any]:
    """Return bytes as text if they are printable."""
    plain: dict[str, Any] = {name: getattr(each, name) for name in each.__struct_fields__}
    if isinstance(each, DeadLetter) and not each.id:  # a policy made it
        plain = {name: value for name, value in plain.items() if name not in ("id", "who", "reason")}
    for name, shown_as in (("key", key_as_text), ("value", _text)):
        if name in plain:
            plain[name] = shown_as(plain[name])
    if "headers" in plain:
        plain["headers"] = {name: _text(value) for name, value in plain["headers"]}
    return plain


def _text(data: bytes | None) -> str:
    return "-" if data is None else data.decode(errors="backslashreplace")


def _past(what: str) -> str:
    return "replayed" if what == REPLAY else "discarded"
