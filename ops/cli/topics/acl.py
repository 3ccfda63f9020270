"""`statehold topics acl`: prints the access rights of each role as commands of Kafka's own tool."""

from __future__ import annotations

from typing import Annotated

import typer

from statehold.common.access_rights import ROLES, principal_of, rights_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_names
from statehold.ops.cli.common.target import Outputs


@with_names
def acl(
    about: Subject,
    outputs: Outputs = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help=f"Print only this role: {', '.join(ROLES)}. [default: all]"),
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal",
            help="Grant to this principal, such as User:order-totals. "
            "[default: User:ROLE; for the role service that of the settings]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print `kafka-acls` commands that grant each role exactly what it needs, without asking a broker.

    statehold topics acl order_totals.app:service --role service

    The commands read the administrator's login from a file admin.properties.
    """
    settings, names = about.settings, about.names
    chosen = {each: rights_of(each, names, about.outputs(outputs), about.references) for each in role or ROLES}
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
        output.report(f"# {each}: {(ROLES[each].__doc__ or '').splitlines()[0]}")
        for right in rights:
            output.report(f"# {right.why}{' (optional)' if right.optional else ''}")
            output.report(right.grant(who[each], servers))


def _principal(settings: Settings, names: Names, role: str) -> str:
    """Take only the service's principal from the settings, because each role needs its own."""
    own = principal_of(settings)
    return own if role == "service" and own not in ("", "User:ANONYMOUS") else f"User:{names.group}-{role}"
