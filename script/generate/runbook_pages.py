"""Generates the pages of docs/reference/ from the entries of `statehold explain`."""

from __future__ import annotations

from collections.abc import Iterator

from statehold.ops.explain.entries import PLACEHOLDERS, Entry, Kind, of_kind
from statehold.ops.explain.text import blocks

_GENERATED = """\
This file is generated: `python -m script.generate`. A test compares the two. `statehold explain NAME` prints the same
without this page.
"""
_WORDS = f"In the commands {', '.join(f'{word} is {what}' for word, what in PLACEHOLDERS.items())}.\n"
_ERRORS = """\
# Errors

One section for each error. Its name is in the log (`error=` of `failed`), in `statehold status` and `statehold top`,
and at the end of a command's error line. [The runbook](../how-to/operate/runbook.md) has the general procedure.
"""
_ALERTS = """\
# Alerts

One section for each alert of `deploy/prometheus/statehold.rules.yml`
([monitoring](../how-to/operate/monitoring.md)); the alert's `runbook_url` points here. Severity `page` needs an
operator now, `ticket` can wait. In every case statehold has reset, deleted and skipped nothing: committed records stay
committed, others are processed again.
"""
_EVENTS = """\
# Log events

One section for each event that a service logs, in the order of a partition's life, then by subject.
"""
_CODES = """\
# Exit codes

One section for each exit code of `statehold run` and of the other commands. [The command
line](cli.md#exit-codes) has them in one table.
"""


def errors() -> str:
    return _page(_ERRORS, "error")


def alerts() -> str:
    return _page(_ALERTS, "alert")


def events() -> str:
    return _page(_EVENTS, "log event")


def exit_codes() -> str:
    return _page(_CODES, "exit code")


def _page(head: str, kind: Kind) -> str:
    return "\n".join([head, _GENERATED, _WORDS, *(line for each in of_kind(kind) for line in _section(each))])


def _section(entry: Entry) -> Iterator[str]:
    yield f"## {entry.name}"
    for title, text in entry.parts().items():
        yield from _item(title, text)
    yield ""


def _item(title: str, text: str) -> Iterator[str]:
    """One item of the list; commands that follow one another are one block."""
    head, inside = f"- **{title}**", False
    for block in blocks(text):
        if inside and not block.command:
            yield "  ```"
        if block.command and not inside:
            if head:
                yield head
            yield "  ```sh"
        yield f"  {block.text}" if block.command or not head else f"{head} {block.text}"
        head, inside = "", block.command
    if inside:
        yield "  ```"
