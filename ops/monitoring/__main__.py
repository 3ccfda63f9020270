"""`python -m statehold.ops.monitoring [FOLDER] [--runbook URL]`: write the rules and the dashboard, into deploy/."""

from __future__ import annotations

import argparse
from pathlib import Path

from statehold.ops.monitoring.alerts import RUNBOOK, rules
from statehold.ops.monitoring.dashboard import dashboard


def files(runbook: str = RUNBOOK) -> dict[str, str]:
    """Path below deploy/ -> what stands in it."""
    return {"prometheus/statehold.rules.yml": rules(runbook), "grafana/statehold.json": dashboard()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("deploy"))
    parser.add_argument("--runbook", default=RUNBOOK, metavar="URL", help="where the pages of docs/runbook are served")
    given = parser.parse_args()
    for name, text in files(given.runbook).items():
        path = given.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)  # noqa: T201  this is what it is run for


if __name__ == "__main__":
    main()
