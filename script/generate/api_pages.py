"""Generates docs/reference/api/: a page of Markdown for each group of public names, from the source of the package."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache, partial
from typing import Any, NamedTuple

from script.generate.api_markdown import Member, constructor, function, members, prose, shown, slug, tree

import statehold
from statehold import Policy
from statehold.errors import StateholdError

#: a page with more entries has another overview
_LISTED = 20
NOTE = "This page is generated: `python -m script.generate`. A test compares the two.\n"


class Entry(NamedTuple):
    """A public name, and what of it is shown."""

    #: with its module, as a user imports it
    name: str
    #: members that are no part of the API; None: no member is one
    without: frozenset[str] | None = frozenset()
    #: whether methods such as `__getitem__` are shown
    operators: bool = False
    #: the first base class whose members are not repeated
    until: type = object
    #: whether a user makes objects of it
    made: bool = True
    note: str = ""

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def value(self) -> Any:
        module, _, name = self.name.rpartition(".")
        return getattr(importlib.import_module(module), name)

    @property
    def members(self) -> list[Member]:
        if not isinstance(self.value, type) or self.without is None:
            return []
        return members(self.value, without=self.without, operators=self.operators, until=self.until)


class Page(NamedTuple):
    title: str
    introduction: str
    entries: list[Entry]


def _errors() -> list[Entry]:
    module = importlib.import_module("statehold.errors")
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, StateholdError)]
    return [Entry(f"statehold.errors.{each.__name__}", until=each.__bases__[0]) for each in found]


PAGES: dict[str, Page] = {
    "service": Page(
        "Service and handler",
        "",
        [
            Entry("statehold.Service"),
            Entry("statehold.Handler"),
            Entry("statehold.on"),
            Entry("statehold.Record", frozenset({"message"}), made=False),
            Entry("statehold.Replies", until=statehold.Table),
            Entry("statehold.StoredReply", made=False),
            Entry("statehold.Timer"),
            Entry("statehold.__version__", note="The version of the installed package, a str."),
        ],
    ),
    "tables": Page(
        "Tables",
        "A handler declares its state in the body of its class. In a running partition `self.<name>` is that "
        "partition's table. Windows and joins are tables with the methods of `Table` and those shown here.",
        [
            Entry("statehold.Table", operators=True),
            Entry("statehold.Tumbling", until=statehold.Table),
            Entry("statehold.Hopping", until=statehold.Table),
            Entry("statehold.Session", until=statehold.Table),
            Entry("statehold.JoinBuffer", until=statehold.Table),
            Entry("statehold.BufferedRecord"),
            Entry("statehold.Dedupe"),
            Entry("statehold.Retired"),
            Entry("statehold.Call", until=statehold.Table),
            Entry("statehold.CallResult"),
            Entry("statehold.CallFailure"),
            Entry("statehold.PendingCall"),
            Entry("statehold.renamed"),
        ],
    ),
    "outputs": Page(
        "Outputs, reference data and sinks",
        "",
        [
            Entry("statehold.Output"),
            Entry("statehold.Rekey"),
            Entry("statehold.Reference", operators=True),
            Entry("statehold.Sink"),
        ],
    ),
    "client": Page(
        "Client",
        "[Requests](../../how-to/write/requests.md) shows its use.",
        [
            Entry("statehold.Client", frozenset({"settings", "names"})),
            Entry("statehold.Answered", made=False),
            Entry("statehold.Receipt"),
            Entry("statehold.RowPage", made=False),
            Entry("statehold.TableRow", made=False),
            Entry("statehold.TableChange", made=False),
            Entry("statehold.TableWatch", frozenset({"position"}), made=False),
            Entry("statehold.BlockingTableWatch", frozenset({"position"}), made=False),
            *(
                Entry(f"statehold.asgi.{name}")
                for name in ("lifespan", "client_of", "answer_errors", "status_of", "stream_changes")
            ),
        ],
    ),
    "failures": Page(
        "Failure policies",
        "`Handler.on_failure` maps classes of exceptions to policies. "
        "[Failing records](../../how-to/write/failures.md) explains how to choose.",
        [
            *(Entry(f"statehold.{name}") for name in ("retry", "retry_later", "dead_letter", "park", "stop")),
            Entry("statehold.Policy", frozenset(Policy.__dataclass_fields__) | {"backoff"}, made=False),
        ],
    ),
    "serdes": Page(
        "Serdes and schemas",
        "",
        [
            Entry("statehold.Serde"),
            Entry("statehold.Json"),
            Entry("statehold.MsgPack"),
            Entry("statehold.Int64"),
            Entry("statehold.Registry", frozenset({"client"})),
            Entry(
                "statehold.Registered",
                frozenset({"for_topic", "check_output", "check_input"}),
                made=False,
            ),
        ],
    ),
    "embedding": Page(
        "Settings and embedding",
        "[Embed a service in your program](../../how-to/operate/embed.md) shows their use.",
        [
            Entry(
                "statehold.config.Settings",
                None,
                made=False,
                note="It has one attribute for each section, such as `settings.kafka`. [Settings](../settings.md) "
                "lists every setting with its default.",
            ),
            Entry("statehold.config.load"),
            Entry("statehold.config.SettingsError", None),
            Entry("statehold.FreezeGuard"),
            Entry("statehold.ops.OpsApplication"),
            *(Entry(f"statehold.ops.{name}") for name in ("Finder", "Found", "NotFound", "NotLive", "Elsewhere")),
        ],
    ),
    "testing": Page(
        "Testing",
        "[Test a service](../../how-to/write/testing.md) shows their use.",
        [
            Entry("statehold.testing.Driver"),
            Entry("statehold.testing.OutputRecord"),
            Entry("statehold.testing.EffectCall"),
            Entry("statehold.testing.OpenCall"),
            Entry("statehold.testing.BatchesMatter"),
            Entry("statehold.testing.interleavings"),
            Entry("statehold.testing.check_upcasters"),
            Entry("statehold.testing.Arrival"),
            *(
                Entry(f"statehold.dev.{name}")
                for name in (
                    "Cluster",
                    "DevError",
                    "BrokerFailed",
                    "InUse",
                    "JarsDamaged",
                    "JarsUnavailable",
                    "JavaMissing",
                )
            ),
        ],
    ),
    "spark": Page(
        "Spark tables",
        "[Query the state with Spark](../../how-to/state/spark-tables.md) shows their use. They need "
        "`pip install 'statehold[spark]'`.",
        [
            Entry("statehold.spark.StateholdSource", None, made=False),
            Entry("statehold.spark.views"),
        ],
    ),
    "errors": Page(
        "Errors",
        "Every error of statehold derives from `StateholdError`. The tree groups them by the action that they need. "
        "[Errors in the runbook](../errors.md) has the meaning of each one, and `statehold explain NAME` prints it.\n\n"
        + tree("statehold.errors"),
        _errors(),
    ),
}


@cache
def addresses() -> dict[str, str]:
    """Return where each public name and each of its members has its heading."""
    found: dict[str, str] = {}
    for page, content in PAGES.items():
        for entry in content.entries:
            names = [entry.short, *(f"{entry.short}.{member.name}" for member in entry.members)]
            found |= {name: f"{page}.md#{slug(name)}" for name in names}
    hooks = {name.partition(".")[2]: found[name] for name in found if name.startswith("Handler.on_")}
    return hooks | found


def document(name: str) -> str:
    """The whole page as Markdown."""
    page = PAGES[name]
    few = len(page.entries) <= _LISTED
    listed = " · ".join(f"[`{entry.short}`](#{slug(entry.short)})" for entry in page.entries) if few else ""
    blocks = [f"# {page.title}", page.introduction and prose(page.introduction, partial(_address, "")), listed]
    for entry in page.entries:
        blocks += _entry(entry, partial(_address, entry.short))
    text = "\n\n".join(filter(None, blocks)) + f"\n\n{NOTE}"
    return text.replace(f"]({name}.md#", "](#")


def _entry(entry: Entry, link: Any) -> list[str]:
    module, _, name = entry.name.rpartition(".")
    value = entry.value
    blocks = [f"## `{name}`", f"`from {module} import {name}`"]
    if isinstance(value, type):
        base = value.__bases__[0]
        exception = issubclass(value, Exception)
        blocks.append(shown(constructor(value) if entry.made and not exception else []))
        if exception and base.__name__ in addresses():
            blocks.append(f"Derives from [`{base.__name__}`]({link(base.__name__)}).")
        blocks.append(prose(_doc(value), link))
    elif callable(value):
        found = function(value.__module__, name)
        blocks += [shown(found.signatures), prose(found.doc, link)]
    blocks.append(entry.note and prose(entry.note, link))
    for member in entry.members:
        blocks += [f"### `{name}.{member.name}`", shown(member.signatures), prose(member.doc, link)]
    return blocks


def _doc(kind: type) -> str:
    return inspect.cleandoc(kind.__dict__.get("__doc__") or "")


def _address(within: str, code: str) -> str:
    """Return the address of a name in a docstring of `within`, which needs no link to itself."""
    name = code.removeprefix("statehold.")
    if name == within or not re.fullmatch(r"[A-Z]\w*(\.\w+)?|on_\w+", name):
        return ""
    known = addresses()
    return known.get(name) or known.get(f"{within}.{name}", "")
