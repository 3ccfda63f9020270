"""Every alert and every error has its section in the runbook, and no section is of one that is gone."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.monitoring.shipped import ALERTS, Alert, rules

import statehold
from statehold import errors

ROOT = Path(__file__).parents[2]
RUNBOOK = "docs/runbook"
PARTS = ("Meaning", "Safe", "Look at", "Do", "Call")


def sections(page: str) -> dict[str, str]:
    text = (ROOT / RUNBOOK / f"{page}.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)+)", text, re.MULTILINE))


def test_each_alert_has_its_section_and_links_to_it() -> None:
    assert list(sections("alerts")) == [alert.name for alert in ALERTS]
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}/alerts.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_section_says_what_one_needs_at_night(alert: Alert) -> None:
    reported = re.findall(r"^- \*\*(.+?)\*\* (.+)$", sections("alerts")[alert.name], re.MULTILINE)
    assert [part for part, _ in reported] == list(PARTS)
    assert all(len(text) > 3 for _, text in reported)


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

    return list(
        dict.fromkeys(each for each in below(errors.StateholdError) if each.__module__.startswith("statehold."))
    )


def test_each_error_has_its_section() -> None:
    declared = [
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.StateholdError)
    ]
    reported = [name for name in sections("errors") if name != "Of tools"]
    assert sorted(reported) == sorted(declared), (
        "docs/runbook/errors.md has a section for each class of src/statehold/errors.py"
    )


def test_each_section_of_an_error_says_what_one_needs_at_night() -> None:
    for name, text in sections("errors").items():
        if name != "Of tools":
            assert [part for part, _ in re.findall(r"^- \*\*(.+?)\*\* (.+)$", text, re.MULTILINE)] == list(PARTS), name


@pytest.mark.slow
def test_the_errors_of_tools_are_named_too() -> None:
    reported = sections("errors")["Of tools"]
    missing = [
        each.__name__
        for each in all_errors()
        if each.__module__ != "statehold.errors" and f"`{each.__name__}`" not in reported
    ]
    assert missing == []
