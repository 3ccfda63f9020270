"""The page of `statehold shadow` and its data: what differs, by partition and table, and the first examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from statehold.common.names import Names
from statehold.config.sections.ops import OpsSettings
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, as_json
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.small_server import Route
from statehold.shadow.report import ShadowReport

_FILES: Final = Path(__file__).parents[1] / "http" / "console" / "static"
_PAGE: Final = {
    "/": ("shadow.html", "text/html; charset=utf-8"),
    "/shadow.js": ("shadow.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
#: of an example, what state queries would show
_VALUES: Final = ("key", "live", "new")
#: JavaScript rounds ints beyond it
_ROUNDED: Final = 2**53 - 1
_UNREADABLE: Final = "what it is, `statehold shadow` prints"


class ShadowPage:
    """Answers for one shadow (rule O1). Any thread."""

    def __init__(self, settings: OpsSettings, names: Names, report: Callable[[], ShadowReport]) -> None:
        self._settings, self._names, self._report = settings, names, report
        self._guard = RequestGuard(settings, exposed=not settings.local_only)

    def routes(self) -> dict[str, Route]:
        return {"/report": self._told, **dict.fromkeys(_PAGE, self._file)}

    def _told(self, request: HttpRequest) -> HttpAnswer:
        """Return the report; its keys and values only to those who may ask for state."""
        hidden = self._hidden(request)
        document: dict[str, Any] = msgspec.to_builtins(self._report())
        for partition in document["partitions"] if hidden else ():
            _blank(partition)
        for example in (each for partition in document["partitions"] for each in partition["examples"]):
            example.update({name: _exact(example[name]) for name in _VALUES})
        about = {"service": self._names.group, "inputs": list(self._names.inputs), "hidden": hidden}
        return as_json(about | document)

    def _hidden(self, request: HttpRequest) -> str:
        """Return why keys and values are not shown; '' if they are."""
        if self._settings.state != "on":
            return "state queries are off. Next: set ops.state = 'on' and ops.token"
        try:
            self._guard.check_token(request, needed=True)
        except Rejected as rejected:
            return str(rejected)
        return ""

    def _file(self, request: HttpRequest) -> HttpAnswer:
        name, kind = _PAGE[request.path]
        return HttpAnswer(200, (_FILES / name).read_bytes(), kind, {"Cache-Control": "no-cache"})


def _exact(value: Any) -> Any:
    """Return a value with the ints as text that a browser would round: two of them could look equal."""
    if isinstance(value, dict):
        return {key: _exact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > _ROUNDED else value


def _blank(partition: dict[str, Any]) -> None:
    """Take out what has, or may have, keys and values: texts of errors quote them, and fields may be keys of maps."""
    for example in partition["examples"]:
        example.update(dict.fromkeys(_VALUES), fields=[])
    for compared in partition["compared"]:
        compared["fields"] = {}
    partition.update(why="", notes=[], unreadable=[_UNREADABLE for _ in partition["unreadable"]])
