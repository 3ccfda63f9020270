"""Write the generated pages of docs/: `python -m script.generate`, from the repository's root."""

from __future__ import annotations

from pathlib import Path

from script.generate import cli_page, doctor_page, figures, metrics_page, runbook_pages, settings_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "reference/cli-reference.md": cli_page.document,
    "reference/doctor.md": doctor_page.document,
    "reference/metrics.md": metrics_page.document,
    "reference/alerts.md": runbook_pages.alerts,
    "reference/errors.md": runbook_pages.errors,
    "reference/events.md": runbook_pages.events,
    "reference/exit-codes.md": runbook_pages.exit_codes,
    "reference/settings.md": settings_page.document,
}

if __name__ == "__main__":
    for name, document in PAGES.items():
        (DOCS / name).write_text(document(), encoding="utf-8")
        print(DOCS / name)
    figures.write()
