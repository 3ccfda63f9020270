"""What a command adds to its error when the brokers refuse it something: the right that is missing, and its line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from statehold.common.access_rights import TOPIC, Right, rights_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateholdError

#: what is no reader's work, by the first words of the command line
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
    """What this process, which is one command, is about."""

    settings: Settings
    group: str
    #: of a role; asked when the command has failed
    rights: Callable[[str], Sequence[Right]]


_about: list[About] = []


def remember(settings: Settings, names: Names, outputs: Callable[[], Sequence[str]] = list) -> None:
    """The command is about this service."""
    _about[:] = [About(settings, names.group, lambda role: rights_of(role, names, outputs()))]


def remember_topic(settings: Settings, topic: str) -> None:
    """The command reads this topic, whosever it is."""
    _about[:] = [About(settings, "statehold", lambda role: [Right("READ", TOPIC, topic, "")])]


def role_of(words: Sequence[str]) -> str:
    """Which role a command belongs to, by its first words."""
    return _ROLES.get(" ".join(words[:2]), _ROLES.get(words[0], "reader") if words else "reader")


def explained(error: StateholdError) -> str:
    """`; who may not do what, and the line that grants it`, or ''. Blocks for some seconds; raises nothing."""
    if not _about:
        return ""
    from statehold.kafka.admin.acl_diagnosis import missing_right

    about, role = _about[0], role_of(sys.argv[1:])
    told = missing_right(about.settings, about.group, about.rights(role), role, error)
    return f"; {told}" if told else ""
