"""The site's settings; `script/docs` builds it into build/site."""

from __future__ import annotations

import os
import re
from typing import Any

from statehold.common.version import __version__

project = "statehold"
author = "the statehold authors"
copyright = "the statehold authors, Apache-2.0"  # noqa: A001 - Sphinx's own name
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "notfound.extension"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

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
html_context = {"versions": os.environ.get("STATEHOLD_DOCS_VERSIONS", "").split()}
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


def _literals(*event: Any) -> None:
    """Docstrings write `code` with single backticks, as one reads it in an editor; the site wants two."""
    lines: list[str] = event[-1]
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines))
    lines[:] = re.sub(r"(``[^`]+``)(?=\w)", r"\1\\ ", text).split("\n")


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _literals)
