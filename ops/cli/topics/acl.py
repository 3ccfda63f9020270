"""`statehold topics acl`: what each role needs to be allowed, as lines for Kafka's own tool."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.common.access_rights import ROLES, TOPIC, Right, principal_of, rights_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Outputs
from statehold.reference import references


@with_subject
def acl(
    about: Subject,
    outputs: Outputs = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help=f"{', '.join(ROLES)}. [default: all of them]")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option("--principal", help="Such as User:clearing. [default: of the settings; of others User:ROLE]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the `kafka-acls` lines of each role: what it needs, and no more. Asks and changes nothing.

    statehold topics acl examples.clearing.app:service --role service

    The lines take a file admin.properties with the login of whoever administers the cluster.
    """
    settings, names, service = about
    chosen = {each: rights_of(each, names, about.outputs(outputs)) for each in role or ROLES}
    if service and "service" in chosen:
        read = references(service.handler_class).values()
        chosen["service"] += [Right("READ", TOPIC, each.topic, "reference data") for each in read]
    who = {each: principal or _principal(settings, names, each) for each in chosen}
    servers = settings.kafka.bootstrap_servers
    if as_json:
        output.print_json(
            [
                {
                    "role": each,
                    "principal": who[each],
                    **right._asdict(),
                    "command": right.grant(who[each], servers),
                }
                for each, rights in chosen.items()
                for right in rights
            ]
        )
        return
    for each, rights in chosen.items():
        output.tell(f"# {each}: {(ROLES[each].__doc__ or '').splitlines()[0]}")
        for right in rights:
            output.tell(f"# {right.why}{' (optional)' if right.optional else ''}")
            output.tell(right.grant(who[each], servers))


def _principal(settings: Settings, names: Names, role: str) -> str:
    """Several roles with one principal are no separation, so only the service's own is taken from the settings."""
    own = principal_of(settings)
    return own if role == "service" and own not in ("", "User:ANONYMOUS") else f"User:{names.group}-{role}"
