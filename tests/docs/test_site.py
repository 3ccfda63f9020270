"""The site builds without a warning: every link and picture is there, every page is in the menu."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.browser import Browser, missing

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


def test_the_api_reference_shows_no_markup(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference" / "api").glob("*.html")]
    text = "".join(page[page.index("<article") : page.index("</article>")] for page in pages)
    plain = re.sub(r"<[^>]+>", "", text)
    for stray in ("\\", "``", ":raises", ":param", ":py:", ":doc:", "object at 0x", "~statehold", "docs/"):
        found = [plain[max(0, at.start() - 40) : at.end() + 40] for at in re.finditer(re.escape(stray), plain)]
        assert not found, f"{stray!r}: {found[:3]}"


def test_every_link_and_picture_is_there(site: Path) -> None:
    assert (site / "404.html").exists()
    assert broken(site) == []


def broken(site: Path) -> list[str]:
    """The links and pictures of the built pages that lead nowhere on the site."""
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    names = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    found = []
    for page, text in texts.items():
        for link in sorted(set(re.findall(r'(?:href|src)="(?!\w+:|//|data:)([^"]*)"', text))):
            path, _, name = link.partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            if not target.exists() or (name and target in names and name not in names[target]):
                found.append(f"{page.relative_to(site)}: {link}")
    return found


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="#here"></a><a href="#gone"></a><img src="gone.png"></p>')
    assert broken(tmp_path) == ["a.html: #gone", "a.html: gone.png"]


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_no_page_is_wider_than_a_phone_and_every_picture_shows(site: Path) -> None:
    """Tables and code scroll in their own box; the page does not move sideways."""
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]  # its links begin at the root
    wide, without = [], []
    with Browser(390, 844) as browser:
        for page in pages:
            browser.open(page.as_uri())
            if browser.run("const box = document.querySelector('.content'); return box.scrollWidth > box.clientWidth"):
                wide.append(page.name)
            without += browser.run("return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
        complaints = browser.complaints()
    assert (wide, without, complaints) == ([], [], [])
