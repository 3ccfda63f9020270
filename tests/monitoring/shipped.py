"""The shipped alert rules and dashboard, as tests read them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
RULES: Final = (DEPLOY / "prometheus" / "statehold.rules.yml").read_text(encoding="utf-8")
DASHBOARD: Final[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "statehold.json").read_text(encoding="utf-8"))

#: `<series> <operator> <number>`, or the same in parentheses with a set operation behind it
_BARE: Final = re.compile(r"(?P<series>.+?) (?P<operator>>|<|==) (?P<limit>-?[\d.e+]+)")
_WITH_MORE: Final = re.compile(
    r"\((?P<series>.+?) (?P<operator>>|<|==) (?P<limit>-?[\d.e+]+)\) (?P<more>(and|unless) .+)"
)


@dataclass(frozen=True)
class Alert:
    """One rule; `series` exist while a service is well, too."""

    name: str
    expression: str
    series: str
    operator: str
    limit: str
    more: str

    def quick(self, window: str, limit: str = "") -> str:
        """Return the expression with a shorter window and, if given, another limit."""
        compared = f"{self.series} {self.operator} {limit or self.limit}"
        return shorter(f"({compared}) {self.more}" if self.more else compared, window)


def shorter(expression: str, window: str) -> str:
    """Return the expression with each range replaced; a subquery gets a resolution of 2 s."""
    return re.sub(r"\[\w+\]", f"[{window}]", re.sub(r"\[\w+:\]", f"[{window}:2s]", expression))


def rules(text: str = RULES) -> list[dict[str, Any]]:
    """Return the rules of a rule file."""
    found: list[dict[str, Any]] = yaml.safe_load(text)["groups"][0]["rules"]
    return found


def _alert(rule: dict[str, Any]) -> Alert:
    match = _WITH_MORE.fullmatch(rule["expr"]) or _BARE.fullmatch(rule["expr"])
    assert match, f"{rule['alert']}: {rule['expr']} compares nothing with a number"
    parts = match.groupdict()
    return Alert(
        rule["alert"], rule["expr"], parts["series"], parts["operator"], parts["limit"], parts.get("more") or ""
    )


ALERTS: Final = [_alert(rule) for rule in rules()]


def panels(row: str = "") -> list[dict[str, Any]]:
    """Return the panels of the dashboard, or of one of its rows; a collapsed row holds its panels itself."""
    found: list[dict[str, Any]] = []
    title = ""
    for each in DASHBOARD["panels"]:
        if each["type"] == "row":
            title = each["title"]
        if row in ("", title):
            found += each["panels"] if each["type"] == "row" else [each]
    return found
