"""Formats the parts of an entry: text and commands, for a terminal and for the console."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final, NamedTuple

from statehold.ops.explain.entries import Entry

_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_PROMPT: Final = "$ "
_INDENT: Final = "    "


class Block(NamedTuple):
    """A paragraph, or one command without its prompt."""

    text: str
    command: bool


def blocks(text: str) -> Iterator[Block]:
    """Yield paragraphs and commands in their order; lines of text that follow one another are one paragraph."""
    paragraph: list[str] = []
    for line in text.strip().splitlines():
        if not line.startswith(_PROMPT):
            paragraph.append(line.strip())
            continue
        if paragraph:
            yield Block(" ".join(paragraph), command=False)
            paragraph = []
        yield Block(line.removeprefix(_PROMPT), command=True)
    if paragraph:
        yield Block(" ".join(paragraph), command=False)


def commands(text: str) -> list[str]:
    """Return the commands of a part, without their prompts."""
    return [block.text for block in blocks(text) if block.command]


def plain(text: str) -> str:
    """Return a text with the words of its Markdown links only."""
    return _LINK.sub(r"\1", text)


def for_console(entry: Entry) -> dict[str, str]:
    """Return the parts by their titles; each paragraph and each command is a line."""
    return {
        title: "\n".join(_PROMPT + each.text if each.command else plain(each.text) for each in blocks(text))
        for title, text in entry.parts().items()
    }


def for_terminal(entry: Entry, width: int) -> str:
    """Return the whole entry. Paragraphs are folded to `width` characters, commands stay whole."""
    lines = [f"{entry.name} ({entry.kind})"]
    for title, text in entry.parts().items():
        lines += ["", title]
        for block in blocks(text):
            if block.command:
                lines.append(f"{_INDENT}{_PROMPT}{block.text}")
            else:
                lines += textwrap.wrap(
                    plain(block.text), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
                )
    return "\n".join(lines)
