"""Adds the missing right, and the command that grants it, to the error of a command that the brokers reject."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from statehold.common.access_rights import TOPIC, Right, rights_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateholdError

#: roles other than reader, by the first words of the command line
_ROLES: Final = {
    "command": "commander",
    "pause": "commander",
    "resume": "commander",
    "finish-upgrade": "commander",
    "dlq": "commander",
    "snapshot take": "commander",
    "snapshot restore": "operator",
    "topics create": "operator",
    "state": "operator",
    "repair": "operator",
    "txn abort": "operator",
    "compact": "compactor",
}


class About(NamedTuple):
    """The service and topics of this process, which runs one command."""

    settings: Settings
    group: str
    #: the rights of a role; called after the command has failed
    rights: Callable[[str], Sequence[Right]]


_about: list[About] = []


def remember(
    settings: Settings,
    names: Names,
    outputs: Callable[[], Sequence[str]] = list,
    references: Callable[[], Sequence[str]] = list,
) -> None:
    """Store the service of the command."""
    _about[:] = [About(settings, names.group, lambda role: rights_of(role, names, outputs(), references()))]


def remember_topic(settings: Settings, topic: str) -> None:
    """Store a topic that the command reads."""
    _about[:] = [About(settings, "statehold", lambda role: [Right("READ", TOPIC, topic, "")])]


def group() -> str:
    """Return the group of the command's service; '' if it names none."""
    return _about[0].group if _about else ""


def role_of(words: Sequence[str]) -> str:
    """Return the role of a command, by its first words."""
    return _ROLES.get(" ".join(words[:2]), _ROLES.get(words[0], "reader") if words else "reader")


def explained(error: StateholdError) -> str:
    """Return `; <missing right, and the command that grants it>`, or ''. Blocks for some seconds; raises nothing."""
    if not _about:
        return ""
    from statehold.kafka.admin.acl_diagnosis import missing_right

    about, role = _about[0], role_of(sys.argv[1:])
    right = missing_right(about.settings, about.group, about.rights(role), role, error)
    return f"; {right}" if right else ""
