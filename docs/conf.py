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

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
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


def _markup(_app: Any, what: str, *event: Any) -> None:
    """Docstrings are written for an editor: `code`, the name of a page, and :raises X: at the end of a paragraph."""
    lines: list[str] = event[-1]
    if what == "module":
        lines.clear()  # the page has an introduction of its own
        return
    blocks: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        if not paragraph.startswith("    "):
            blocks.append(_prose(paragraph))
        elif blocks and blocks[-1].startswith(".. code-block"):
            blocks[-1] += f"\n\n{paragraph}"
        else:
            blocks.append(f".. code-block:: python\n\n{paragraph}")
    lines[:] = "\n\n".join(blocks).split("\n")


def _prose(paragraph: str) -> str:
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)(\w?)", _code, paragraph)
    return _fields(re.sub(r"\bdocs/([\w/-]+)\.md", r":doc:`/\1`", text))


def _code(found: re.Match[str]) -> str:
    """Return a link to a public name, else code; a letter that follows is text."""
    code, letter = found.groups()
    linked = re.fullmatch(r"(statehold\.)?[A-Z]\w*(\.\w+)?|on_\w+", code)
    return (f":py:obj:`{code}`" if linked else f"``{code}``") + (f"\\ {letter}" if letter else "")


def _fields(paragraph: str) -> str:
    """Put the fields of a paragraph, such as :raises X:, on lines of their own."""
    if not re.search(r"(?m):(raises|param) [^:`]+:", paragraph):
        return paragraph
    first, *fields = re.split(r"\s*(?=:(?:raises|param) [^:`]+:)", paragraph)
    return "\n".join([*([first, ""] if first else []), *(" ".join(field.split()) for field in fields)])


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _markup)
