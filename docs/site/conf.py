"""Sphinx's configuration of the documentation (docs/site/build.py runs it)."""

import os
import re
from pathlib import Path
from typing import Any

project = "torch-remote"
author = copyright = "the torch-remote authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["**/*.md", "*.md"]
html_theme = "furo"
html_title = "torch-remote"
html_copy_source = False
# GitHub's anchors of headings, which links between pages use.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# The pages name languages that Pygments does not know with a file name behind them.
suppress_warnings = ["misc.highlighting_failure"]
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True, "undoc-members": False}
maximum_signature_line_length = 90

PAGES = Path(os.environ["DOCS_PAGES"])  # what the site is made of
# "https://github.com/owner/name". If it is empty, links to sources are text.
REPOSITORY = os.environ.get("REPOSITORY_URL", "")


def _link(page: Path, match: re.Match[str]) -> str:
    """A link to a file of the repository that is no page of the site."""
    text, target = match.groups()
    file = (page.parent / target.partition("#")[0]).resolve()
    if target.startswith(("http", "#", "mailto:")) or file.suffix in (".md", ".png", ".svg"):
        return match.group(0)
    path = os.path.relpath(file, PAGES.resolve())
    return f"[{text}]({REPOSITORY}/blob/main/{path})" if REPOSITORY else text


def _read(app: Any, name: str, source: list[str]) -> None:
    page = PAGES / f"{name}.md"
    parts = re.split(r"(^```.*?^```$)", source[0], flags=re.M | re.S)
    for i in range(0, len(parts), 2):  # not in code
        parts[i] = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", lambda match: _link(page, match), parts[i])
    source[0] = "".join(parts)


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings have Markdown's code spans, and indented blocks of code, also without a blank line before them."""
    text = re.sub(r"(?<![`:])`([^`]+)`(?!`)", lambda match: f"``{' '.join(match.group(1).split())}``", "\n".join(lines))
    text = re.sub(r"(?<!`)\b([A-Za-z]\w*)_(?![\w`])", r"\1\\_", text)  # "copy_" is no reference
    made: list[str] = []
    in_list = in_code = False
    for line in text.split("\n"):
        indented = line.startswith(" ")
        if line and not indented:
            in_list = bool(re.match(r"[-*] |\d+\. |(?:Args|Attributes|Raises|Returns|Yields):$", line))
            if in_code:
                made.append("")
            in_code = False
        elif indented and not in_list and not in_code:
            made += ["", "::", ""]
            in_code = True
        made.append(line)
    lines[:] = made


def setup(app: Any) -> None:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon
