"""Check the built site: links and pictures lead somewhere, pages load nothing from other hosts, and
the search finds every page.

``python .ci/site/check.py build/site``; ``make site`` runs it. Sphinx checks the links of Markdown,
but not those that ``conf.py`` writes, nor what a theme adds. The exit code is 1 if there
is a problem.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

SITE_ONLY: Final = frozenset({"genindex", "search"})
"""Pages of the generator, which the search leaves out."""
FILES: Final = "source"
"""Folder with copies of files, which are no pages."""
WORD: Final = ("throttl", "guides/quotas")
"""A stem as the search has it, and one of the pages that it must find."""
IMPORTED: Final = re.compile(r"""(?:import|from)\s*\(?\s*["']((?:https?:)?//[^"']+)""")
"""A module that a script loads from another host."""
LOADED: Final = frozenset({"stylesheet", "icon", "preload", "modulepreload"})
"""Relations of links that a browser follows by itself."""


class Page(HTMLParser):
    """The links and the anchors of a page, and what it loads from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, _: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        loaded = values.get("href") if values.get("rel") in LOADED else values.get("src")
        if loaded and urlsplit(loaded).netloc:
            self.loads.append(loaded)
        for name, value in attributes:
            if value and name in {"id", "name"}:
                self.anchors.add(value)
            elif value and name in {"href", "src"}:
                self.links.append(value)

    def handle_data(self, data: str) -> None:
        self.loads += IMPORTED.findall(data) if self.lasttag == "script" else []


def problems(site: Path) -> Iterator[str]:
    """Yield each dead link, what needs a network, and each page that the search does not know."""
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.relative_to(site).parts[0] != FILES
    }
    for path, page in sorted(pages.items()):
        for url in page.loads:
            yield f"{path.relative_to(site)}: {url} is loaded from another host"
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{path.relative_to(site)}: {link} leads nowhere"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site)}: {link} has no such anchor"
    index = json.loads(
        (site / "searchindex.js").read_text(encoding="utf-8").removeprefix("Search.setIndex(")[:-1]
    )
    found = set(index["docnames"])
    for path in sorted(pages):
        name = path.relative_to(site).with_suffix("").as_posix()
        if name not in found | SITE_ONLY:
            yield f"{name}: the search does not know this page"
    stem, name = WORD
    places = {
        index["docnames"][place]
        for kind in ("terms", "titleterms")
        for place in _places(index[kind], stem)
    }
    if name not in places:
        yield f"{name}: the search does not find it by {stem}"


def _places(terms: dict[str, int | list[int]], stem: str) -> list[int]:
    """Return the numbers of the pages with a word; a single one is no list."""
    found = terms.get(stem, [])
    return [found] if isinstance(found, int) else found


def main() -> int:
    """Print all problems of a site."""
    found = list(problems(Path(sys.argv[1]).resolve()))
    for problem in found:
        print(problem, file=sys.stderr)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
