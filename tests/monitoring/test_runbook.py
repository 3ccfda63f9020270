"""Every error, alert, log event and exit code has its explanation, and no explanation is of one that is gone."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.monitoring.shipped import ALERTS, rules

import statehold
from statehold import errors
from statehold.common.exit_codes import BY_SIGNAL, Answer, Exit
from statehold.ops.explain.entries import FILES, Entry, entries, of_kind
from statehold.telemetry.log_events import EVENTS

ROOT = Path(__file__).parents[2]
RUNBOOK = "docs/reference"
TEXTS = ROOT / "ops" / "explain" / "texts"


def names(kind: str) -> list[str]:
    return [each.name for each in entries().values() if each.kind == kind]


def test_each_alert_has_its_explanation_and_links_to_its_section() -> None:
    assert names("alert") == [alert.name for alert in ALERTS]
    page = (ROOT / RUNBOOK / "alerts.md").read_text(encoding="utf-8")
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}/alerts.md#{rule['alert'].lower()}"
        assert f"\n## {rule['alert']}\n" in page


def all_errors() -> list[type[errors.StateholdError]]:
    """Every class, of all packages: the test fails as well when a new module brings one."""
    for module in pkgutil.walk_packages(statehold.__path__, "statehold."):
        if not module.name.endswith((".__main__", "pytest_plugin")):
            with suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)

    def below(kind: type[errors.StateholdError]) -> Iterator[type[errors.StateholdError]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    found = dict.fromkeys([errors.StateholdError])
    found.update(dict.fromkeys(below(errors.StateholdError)))
    return [each for each in found if each.__module__.startswith("statehold.")]


def test_each_error_of_the_api_has_its_explanation() -> None:
    declared = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert declared <= set(names("error"))


@pytest.mark.slow
def test_each_error_has_its_explanation() -> None:
    assert sorted(names("error")) == sorted(each.__name__ for each in all_errors())


def test_each_log_event_has_its_explanation() -> None:
    assert sorted(names("log event")) == sorted(EVENTS)


def test_each_exit_code_has_its_explanation() -> None:
    assert names("exit code") == [f"exit {code}" for code in sorted({*map(int, Exit), *map(int, Answer), *BY_SIGNAL})]


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.name)
def test_an_explanation_says_what_one_needs_at_night(entry: Entry) -> None:
    for part in (entry.meaning, entry.safe, entry.look, entry.do):
        assert len(part.strip()) > 3
    assert entry.call or entry.kind == "log event"


def test_a_name_has_one_explanation() -> None:
    """`entries` finds what is in two files; what is in one file twice is no TOML."""
    count = sum(len(re.findall(r"(?m)^\[[^\]]+\]$", path.read_text(encoding="utf-8"))) for path in TEXTS.glob("*.toml"))
    assert count == len(entries())


def test_each_file_is_read() -> None:
    assert {file for files in FILES.values() for file in files} == {path.stem for path in TEXTS.glob("*.toml")}
    assert all(of_kind(kind) for kind in FILES)


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.name)
def test_a_link_leads_to_a_section(entry: Entry) -> None:
    home = {"error": "errors.md", "alert": "alerts.md", "log event": "events.md", "exit code": "exit-codes.md"}
    for target in re.findall(r"\]\(([^)]+)\)", " ".join(entry.parts().values())):
        page, _, section = target.partition("#")
        text = (ROOT / RUNBOOK / (page or home[entry.kind])).read_text(encoding="utf-8")
        headings = [
            re.sub(r"[^\w -]", "", each).strip().replace(" ", "-") for each in re.findall(r"(?m)^#+ (.+)", text)
        ]
        assert not section or section in [each.lower() for each in headings], target
