"""The site builds without a warning: every link leads somewhere, every page is in the menu."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.docs.test_api import anchors

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    """Return the built site; a warning is an error."""
    built = tmp_path_factory.mktemp("built")
    command = [python, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html"]
    command += ["-d", str(built / "doctrees"), "docs", str(built / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=os.environ)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n(a new page needs its line in docs/index.md)"
    return built / "site"


def test_the_site_has_every_page(site: Path) -> None:
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    docs = ROOT / "docs"
    assert {page.relative_to(docs).with_suffix(".html").as_posix() for page in docs.rglob("*.md")} <= pages


def test_the_api_reference_shows_every_member_and_no_markup(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference" / "api").glob("*.html")]
    text = "".join(page[page.index("<article") : page.index("</article>")] for page in pages)
    shown = set(re.findall(r'<dt class="sig[^>]* id="([^"]+)"', text))
    assert anchors() - shown == set()
    plain = re.sub(r"<[^>]+>", "", text)
    for stray in ("\\", "``", ":raises", ":param", ":py:", ":doc:", "object at 0x", "~statehold", "docs/"):
        found = [plain[max(0, at.start() - 40) : at.end() + 40] for at in re.finditer(re.escape(stray), plain)]
        assert not found, f"{stray!r}: {found[:3]}"
