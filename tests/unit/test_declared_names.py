"""A declaration has what a handler may call and nothing else; the engine's methods are in classes of their own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import jedi
import msgspec
import pytest

from statehold import (
    Dedupe,
    Handler,
    Hopping,
    JoinBuffer,
    Output,
    Record,
    Reference,
    Session,
    Sink,
    Table,
    Timer,
    Tumbling,
)
from statehold.errors import UsageError
from statehold.testing import Driver


class Row(msgspec.Struct, frozen=True):
    id: int


TABLE = {"delete", "first", "get", "items", "keys", "last", "put", "range", "values"}
WINDOWS = TABLE | {"at", "update"}
DECLARATIONS: dict[str, tuple[Any, set[str]]] = {
    "table": (Table(key=str, value=int), TABLE),
    "expiring": (Table(key=str, value=int, ttl=60, sorted=True), TABLE),
    "tumbling": (Tumbling(timedelta(minutes=1), key=str, value=int), WINDOWS),
    "hopping": (Hopping(60, 30, key=str, value=int), WINDOWS),
    "sessions": (Session(60, key=str, value=int, merge=max), WINDOWS),
    "joined": (JoinBuffer(60, key=str, left=int, right=str), TABLE | {"left", "right"}),
    "dedupe": (Dedupe(key=str, ttl=60), {"seen"}),
    "output": (Output("out", value=int), {"send", "send_all"}),
    "reference": (Reference("prices", key=str, value=int), {"get", "items"}),
    "sink": (Sink("rows", value=Row, key="id"), {"delete", "put"}),
}
OPERATORS = {"__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__setitem__"}


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_lists_what_a_handler_may_call(name: str) -> None:
    declaration, callable_names = DECLARATIONS[name]
    assert public(dir(declaration)) == callable_names


def test_a_handler_lists_its_hooks_and_what_they_may_call() -> None:
    hooks = {
        "on_batch",
        "on_command",
        "on_failure",
        "on_late",
        "on_live",
        "on_record",
        "on_stop",
        "on_timer",
        "on_unmatched",
        "on_window",
    }
    assert public(dir(Handler)) == hooks | {
        "cancel",
        "effect",
        "partition",
        "renamed_effects",
        "replaying",
        "schedule",
        "system_prefix",
    }
    assert public(dir(Timer)) == {"at", "due", "id", "payload", "record_key"}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_an_editor_completes_the_same(root: Path, name: str) -> None:
    declaration, callable_names = DECLARATIONS[name]
    source = (
        "from statehold import *\n"
        "class Book(Handler[int]):\n"
        f"    attribute: {type(declaration).__name__}\n"
        "    def on_record(self, record):\n"
        "        self.attribute."
    )
    script = jedi.Script(source, project=jedi.Project(root, sys_path=[str(root / "src")]))
    assert public([each.name for each in script.complete()]) == callable_names


@pytest.mark.parametrize("name", DECLARATIONS)
def test_every_use_of_a_declaration_says_that_it_is_one(name: str) -> None:
    declaration, callable_names = DECLARATIONS[name]
    arguments = {"update": 3, "left": 2, "right": 2, "at": 2, "put": 2, "range": 0} | {
        "first": 0,
        "last": 0,
        "items": 0,
        "keys": 0,
        "values": 0,
    }
    if name == "sink":
        arguments["put"] = 1
    given = {"__setitem__": (1, 1), "__len__": (), "__iter__": ()}
    used = {name: given.get(name, (1,)) for name in OPERATORS if hasattr(declaration, name)}
    used |= {name: (1,) * arguments.get(name, 1) for name in callable_names}
    for called, values in used.items():
        with pytest.raises(UsageError, match=rf"this {type(declaration).__name__} is a declaration: use it as self\.<"):
            getattr(declaration, called)(*values)


class Positions(Table[str, int]):
    """A table with a method of the user's own."""

    def add(self, key: str, amount: int) -> int:
        self[key] = total = self.get(key, 0) + amount
        return total


class Minutes(Tumbling[str, int]):
    def add_one(self, record: Record[int], key: str) -> None:
        self.update(record, key, lambda before: (before or 0) + 1)


class Owned(Handler[int]):
    positions = Positions(key=str, value=int)
    copied = Positions(key=str, value=int, mutable=True, sorted=True)
    minutes = Minutes(60, key=str, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.positions.add("a", record.value)
        self.copied.add("a", record.value)
        self.minutes.add_one(record, "a")

    def on_window(self, name: str, key: Any, start: int, end: int, value: Any) -> None: ...


@pytest.mark.parametrize("crash", [False, True])
def test_a_subclass_of_a_declaration_keeps_its_methods(crash: bool) -> None:
    driver = Driver(Owned)
    driver.feed(3)
    if crash:
        driver.crash()
        driver.restore()
    driver.feed(4)
    assert (driver.table("positions"), driver.table("copied")) == ({"a": 7}, {"a": 7})
    assert list(driver.table("minutes").values()) == [2]
