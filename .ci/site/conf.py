"""Sphinx: the pages of ``docs`` as a site with search; ``make site`` builds it.

It reads a copy of ``docs`` with ``index.md`` of this folder and an empty ``changelog.md``. Markdown
is read by MyST, whose anchors are those of GitHub, so that links work on both. A link to a file
that is no page, such as a module, leads to a copy of it in the site. A link or an anchor that leads
nowhere is a warning, which fails the build.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FILES = "source"
"""Folder of the site with copies of files that are no pages."""

project = "minibroker"
author = "the minibroker developers"
copyright = author  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
# `make site` puts mermaid there.
html_static_path = [str(ROOT / "build" / "mermaid")]
mermaid_use_local = "mermaid/mermaid.esm.min.mjs"
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "minibroker"
html_copy_source = False
html_show_sphinx = False
# Excerpts of files are highlighted as far as they can be.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

PAGES_FROM_ROOT = {"index": "README.md", "changelog": "CHANGELOG.md"}
"""Pages that are files at the top of the repository, before what the page itself has."""

_FOLDER = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
ADDED = {"adr/README": _FOLDER, "exhibits/README": _FOLDER, "learn/README": _FOLDER}
"""What only the site needs at the end of a page."""

_logger = logging.getLogger(__name__)
_linked: set[Path] = set()


def read_source(_: Any, docname: str, source: list[str]) -> None:
    """Put a file of the repository before the page, and replace links to files."""
    page = DOCS / f"{docname}.md"
    text = _with_links(source[0], page, page.parent)
    if docname in PAGES_FROM_ROOT:
        text = _with_links((ROOT / PAGES_FROM_ROOT[docname]).read_text(), page, ROOT) + "\n" + text
    source[0] = text + ADDED.get(docname, "")


def _with_links(text: str, page: Path, folder: Path) -> str:
    """Return the text of ``page`` with links that are relative to ``folder``."""

    def replaced(found: re.Match[str]) -> str:
        image, label, target, anchor = found.groups(default="")
        if ":" in target:
            return found[0]
        path = (folder / target).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            _logger.warning(
                "the link to %s leads nowhere",
                target,
                location=str(page.relative_to(DOCS).with_suffix("")),
            )
        elif docname := next((n for n, f in PAGES_FROM_ROOT.items() if path == ROOT / f), ""):
            path = DOCS / f"{docname}.md"
        elif not path.is_relative_to(DOCS):
            _linked.add(path)
            return f'<a href="{_url(page, path)}">{label}</a>'
        return f"{image}[{label}]({os.path.relpath(path, page.parent)}{anchor})"

    return LINK.sub(replaced, text)


def _url(page: Path, path: Path) -> str:
    up = os.path.relpath(DOCS, page.parent)
    return f"{up}/{FILES}/{path.relative_to(ROOT).as_posix()}.html"


def files(_: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file and folder that a page links to."""
    for path in sorted(_linked):
        name = path.relative_to(ROOT).as_posix()
        body = _folder(path) if path.is_dir() else _highlighted(path)
        context = {"title": name, "body": f"<h1>{html.escape(name)}</h1>{body}"}
        yield f"{FILES}/{name}", context, "page.html"


def _folder(path: Path) -> str:
    names = sorted(each.name for each in path.iterdir() if not each.name.startswith(("_", ".")))
    return f"<ul>{''.join(f'<li>{html.escape(name)}</li>' for name in names)}</ul>"


def _highlighted(path: Path) -> str:
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return f'<div class="highlight">{highlight(path.read_text(), lexer, HtmlFormatter())}</div>'


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above to Sphinx's events."""
    app.connect("source-read", read_source)
    app.connect("html-collect-pages", files)
    return {"parallel_read_safe": False}
