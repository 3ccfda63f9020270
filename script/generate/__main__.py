"""Write the generated pages of docs/ and the container files of deploy/: `python -m script.generate`, from the root."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from script.generate import (
    api_pages,
    cli_page,
    doctor_page,
    figures,
    metrics_page,
    rooms_svg,
    runbook_pages,
    settings_page,
)

from statehold.ops.generate import scaffold

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "reference/cli-reference.md": cli_page.document,
    "reference/doctor.md": doctor_page.document,
    "reference/metrics.md": metrics_page.document,
    "reference/alerts.md": runbook_pages.alerts,
    "reference/errors.md": runbook_pages.errors,
    "reference/events.md": runbook_pages.events,
    "reference/exit-codes.md": runbook_pages.exit_codes,
    "reference/settings.md": settings_page.document,
    "images/rooms.svg": rooms_svg.document,
}
PAGES |= {f"reference/api/{name}.md": partial(api_pages.document, name) for name in api_pages.PAGES}
PAGES |= {
    f"../deploy/{name.removeprefix('deploy/') if '/' in name else f'container/{name}'}": partial(str, text)
    for name, text in scaffold.files("clearing").items()
    if name == "Dockerfile" or name.startswith("deploy/kubernetes/")
}

if __name__ == "__main__":
    for name, document in PAGES.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(document(), encoding="utf-8")
        print(DOCS / name)
    figures.write()
