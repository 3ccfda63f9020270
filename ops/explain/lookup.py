"""Finds entries by what a person types, in any case."""

from __future__ import annotations

import difflib
import re
from typing import Final

from statehold.ops.explain.entries import Entry, entries

_EXIT_CODE: Final = re.compile(r"(?:exit)?[\s_-]*(?:code)?[\s_:=-]*(\d+)", re.IGNORECASE)
#: what an error's text may name as its cause, with the entry that explains it
_CAUSES: Final = {"unreadablekey": "UndecodableRecord"}
#: at most this many names are suggested
_SUGGESTED: Final = 3


def find(name: str) -> list[Entry]:
    """Return the entries of a name: the one that is spelled like it, otherwise all that differ in case only.

    `4`, `exit 4` and `exit code 4` are the same name.
    """
    name = " ".join(name.split())
    if code := _EXIT_CODE.fullmatch(name):
        name = f"exit {int(code[1])}"
    if name in entries():
        return [entries()[name]]
    wanted = _folded(_CAUSES.get(_folded(name), name))
    return [each for each in entries().values() if _folded(each.name) == wanted]


def nearest(name: str) -> list[str]:
    """Return the names that are most like an unknown one, best first; none if nothing is like it."""
    folded: dict[str, list[str]] = {}
    for each in entries():
        folded.setdefault(_folded(each), []).append(each)
    wanted = _folded(name)
    close = difflib.get_close_matches(wanted, folded, n=_SUGGESTED, cutoff=0.6)
    within = [each for each in folded if len(wanted) > 2 and wanted in each and each not in close]
    return [known for each in [*close, *within][:_SUGGESTED] for known in folded[each]][:_SUGGESTED]


def _folded(name: str) -> str:
    """Return a name without case and separators."""
    return re.sub(r"[\s_-]+", "", name).casefold()
