"""Which role a command belongs to: what its error says to ask for when the brokers reject it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer.main

from statehold.common.access_rights import ROLES
from statehold.ops.cli.lazy_commands import loaded
from statehold.ops.cli.main import app
from statehold.ops.reports import acl_hint


def commands(group: object, words: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in getattr(loaded(group), "commands", {}).items():
        yield " ".join((*words, name))
        yield from commands(command, (*words, name))


def test_every_command_that_is_named_is_there() -> None:
    assert set(acl_hint._ROLES) <= set(commands(typer.main.get_command(app)))
    assert set(acl_hint._ROLES.values()) <= set(ROLES)


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ("lag --name a --input b", "reader"),
        ("snapshot list", "reader"),
        ("snapshot take", "commander"),
        ("dlq replay", "commander"),
        ("state repartition", "operator"),
        ("topics check", "reader"),
        ("topics create", "operator"),
        ("", "reader"),
    ],
)
def test_the_role_of_a_command(words: str, role: str) -> None:
    assert acl_hint.role_of(words.split()) == role
