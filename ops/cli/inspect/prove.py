"""`statehold prove`: signs positions, keys and digest of every partition as a document, and checks one."""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from statehold import __version__
from statehold.admin.inspection.topic_view import TopicView, topic_view
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.messages.command import issuer
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import subject_of, with_settings
from statehold.ops.cli.common.target import InputName, ServiceName, Target
from statehold.snapshot.inspect import proof

#: fields that `--recompute` compares
_SAME = ("position", "n", "keys", "digest", "lineage")


@with_settings
def prove(
    settings: Settings,
    target: Target = None,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="POINT",
            help="latest, a time, n:TRANSACTION, an input offset, or one for each partition: 0=1200,1=800.",
        ),
    ] = "latest",
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", envvar="STATEHOLD_PROOF_KEY", metavar="FILE", help="Sign with this secret key of 32 bytes or more."
        ),
    ] = None,
    make_key: Annotated[
        Path | None, typer.Option("--make-key", metavar="FILE", help="Write a new key and do nothing else.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Check a document instead of making one.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="With --check: rebuild the states and compare them.")
    ] = False,
    name: ServiceName = None,
    input_topic: InputName = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the state of every partition, and print a signed document of positions, keys and digests.

    statehold prove order_totals.app:service \\
        --at 2026-11-21T18:00:00Z --key proof.key

    Once before: statehold prove --make-key proof.key

    To check one: statehold prove --check FILE --key proof.key --recompute

    Exit code 0: proven, or the document is valid; 1: it is invalid, or a state cannot be rebuilt.
    """
    if make_key is not None:
        _make(make_key)
        return
    secret = _read_key(key)
    if check is not None:
        raise typer.Exit(_check(check, secret, settings, as_json, recompute=recompute))
    about = subject_of(settings, target, name, input_topic)
    with topic_view(about.settings, about.names) as view:
        proofs = [
            proof.partition(partition, view.state(partition, point), view.names.inputs)
            for partition, point in enumerate(_points(view, at))
        ]
        document = proof.document(_head(view, at), proofs)
    output.print_json(proof.signed(document, secret), indent=None if as_json else 2)


def _head(view: TopicView, at: str) -> dict[str, Any]:
    names, ids = view.names, view.place(0).topic_ids
    several = {"input_ids": {topic: ids[topic] for topic in names.inputs}} if names.others else {}
    return {
        "service": names.service,
        "namespace": names.namespace,
        "input": ",".join(names.inputs),
        "input_id": ids[names.input],
        **several,
        "asked": at,
        "made": output.moment(int(time.time() * 1000)),
        "by": issuer(),
        "statehold": __version__,
    }


def _points(view: TopicView, at: str) -> list[str]:
    """Return a point for each partition."""
    if "=" not in at:
        return [at] * view.partitions
    given: dict[str, str] = dict(piece.strip().split("=", 1) for piece in at.split(",") if "=" in piece)
    wanted = [str(partition) for partition in range(view.partitions)]
    if sorted(given) != sorted(wanted):
        raise WrongOption(f"--at {at}: give a position for each of the partitions {', '.join(wanted)}")
    return [given[partition] for partition in wanted]


def _check(file: Path, secret: bytes, settings: Settings, as_json: bool, *, recompute: bool) -> int:
    given = _read(file)
    faults = [found] if (found := proof.fault(given, secret)) else []
    if not faults and recompute:
        faults = _recomputed(given, settings)
    if as_json:
        output.print_json({"file": str(file), "good": not faults, "recomputed": recompute, "faults": faults})
    elif not faults:
        output.report(
            f"{file}: good: {given['keys']} keys of {given['namespace']}{given['service']} in "
            f"{len(given['partitions'])} partitions, digest {given['digest']}, made {given['made']} by {given['by']}"
            + ("; the states were rebuilt and are the same" if recompute else "")
        )
    for each in faults:
        output.complain(f"{file}: {each}")
    return 1 if faults else 0


def _names(given: dict[str, Any]) -> Names:
    first, *others = given["input"].split(",")
    return Names(given["service"], first, given["namespace"], tuple(others))


def _recomputed(given: dict[str, Any], settings: Settings) -> list[str]:
    """Return the differences between the topics and the document."""
    names = _names(given)
    with topic_view(settings, names) as view:
        known, ids = given.get("input_ids", {names.input: given["input_id"]}), view.place(0).topic_ids
        faults = [
            f"topic {topic} was deleted and created again since: positions mean other records"
            for topic, known_id in known.items()
            if ids.get(topic) != known_id
        ]
        for each in given["partitions"] if not faults else ():
            (partition,) = view.numbers([each["partition"]])
            found = proof.partition(partition, view.state(partition, f"n:{each['n']}"), names.inputs)
            faults += [
                f"partition {partition}: {name} is {found[name]}, the document says {each[name]}"
                for name in (*_SAME, *(["positions"] if names.others else []))
                if found[name] != each[name]
            ]
    return faults


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{file} is no JSON document: {error}") from error


def _make(file: Path) -> None:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"{file} cannot be made: {error.strerror}") from error
    with os.fdopen(handle, "w") as opened:
        opened.write(secrets.token_hex(proof.LEAST_KEY) + "\n")
    output.report(f"{file}: a new key, readable by you alone; keep a copy where the documents are not")


def _read_key(file: Path | None) -> bytes:
    if file is None:
        raise WrongOption("--key FILE is needed: `statehold prove --make-key FILE` makes one")
    try:
        mode, key = file.stat().st_mode, file.read_bytes().strip()
    except OSError as error:
        raise UsageError(f"--key {file} cannot be read: {error.strerror}; --make-key makes one") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"--key {file} may be read by others: chmod 600 {file}")
    return key
