"""Reads the entries: what each error, alert, log event and exit code means, and what to do.

The files `texts/*.toml` have a table for each entry. `meaning` and `safe` are text. In `look` and `do` a line that
begins with `$ ` is a command that can be pasted, once its words in capitals are replaced; other lines are text. `call`
names the person to call. Links are Markdown, relative to docs/reference/.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

Kind = Literal["error", "alert", "log event", "exit code"]

#: the files of each kind, in the order of the runbook
FILES: Final[dict[Kind, tuple[str, ...]]] = {
    "error": (
        "errors_start",
        "errors_record",
        "errors_state",
        "errors_partition",
        "errors_tool",
    ),
    "alert": ("alerts_service", "alerts_kafka"),
    "log event": ("events_life", "events_state", "events_records", "events_process"),
    "exit code": ("exit_codes",),
}
#: the words of the console and of the runbook for the parts of an entry
TITLES: Final = {"meaning": "Meaning", "safe": "Safe", "look": "Look at", "do": "Do", "call": "Call"}
#: what a word in capitals of a command stands for
PLACEHOLDERS: Final = {
    "MODULE:SERVICE": "the argument of `statehold run`",
    "NAME": "the service's name",
    "INPUT": "its input topic",
    "OUTPUT": "an output topic",
    "P": "a partition",
    "GROUP": "the service's consumer group",
    "TEXT": "your reason, which is recorded",
}
_TEXTS: Final = Path(__file__).parent / "texts"


class Entry(msgspec.Struct, frozen=True):
    """What an operator needs to know about one name."""

    name: str
    kind: Kind
    meaning: str
    #: what is not lost and what still runs
    safe: str
    #: what to look at, with commands
    look: str
    #: what to do, with commands
    do: str
    #: whom to call; '' for most log events
    call: str = ""

    def parts(self) -> dict[str, str]:
        """Return the parts that have a text, by their titles."""
        texts = {title: str(getattr(self, part)) for part, title in TITLES.items()}
        return {title: text for title, text in texts.items() if text}


@cache
def entries() -> dict[str, Entry]:
    """Return every entry by its name, in the order of the runbook.

    :raises ValueError: two entries have one name, or an entry lacks a part; a defect of the package.
    """
    found: dict[str, Entry] = {}
    for each in _read():
        if each.name in found:
            raise ValueError(f"two entries for {each.name}")
        found[each.name] = each
    return found


def of_kind(kind: Kind) -> list[Entry]:
    """Return the entries of a kind, in the order of the runbook."""
    return [each for each in entries().values() if each.kind == kind]


def _read() -> Iterator[Entry]:
    for kind, files in FILES.items():
        for file in files:
            tables = tomllib.loads((_TEXTS / f"{file}.toml").read_text(encoding="utf-8"))
            for name, parts in tables.items():
                yield msgspec.convert({"name": name, "kind": kind, **parts}, Entry)
