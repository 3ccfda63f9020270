"""The site's settings; `script/docs` builds it into build/site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from statehold.common.version import __version__

project = "statehold"
author = "the statehold authors"
copyright = "the statehold authors, Apache-2.0"  # noqa: A001 - Sphinx's own name
version = release = __version__

extensions = ["myst_parser", "sphinx_copybutton", "notfound.extension"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_links_external_new_tab = False

highlight_language = "text"  # of a block that does not say
copybutton_prompt_text = r"\$ "  # a copy holds the commands, without prompts and output
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
notfound_urls_prefix = os.environ.get("STATEHOLD_DOCS_PREFIX", "/")  # the path of the site on its server

html_theme = "furo"
html_title = f"statehold {release}"
templates_path = ["_templates"]
html_static_path = ["_static"]
#: the versions that are built next to this one, newest first; script/docs --versions sets it
html_context = {
    "versions": os.environ.get("STATEHOLD_DOCS_VERSIONS", "").split(),
    "this_version": os.environ.get("STATEHOLD_DOCS_VERSION", ""),
}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/versions.html",
        "sidebar/scroll-end.html",
    ]
}
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def _directives(app: Any, page: str, source: list[str]) -> None:
    """Turn comments, which GitHub does not show, into the site's menu, and into a file that replaces the page."""
    if (found := re.search(r"^<!-- instead: (\S+) -->$", source[0], re.MULTILINE)) is not None:
        file = (Path(app.srcdir) / page).parent / found[1]
        source[0] = re.sub(r"\]\(docs/", "](", file.read_text(encoding="utf-8"))
    source[0] = re.sub(r"^<!-- toctree(?:: ([^\n]+))?\n(.*?)^-->$", _toctree, source[0], flags=re.DOTALL | re.MULTILINE)


def _toctree(found: re.Match[str]) -> str:
    caption = f":caption: {found[1]}\n" if found[1] else ""
    return f"```{{toctree}}\n{caption}:hidden:\n:maxdepth: 1\n\n{found[2]}```"


def setup(app: Any) -> None:
    app.connect("source-read", _directives)
