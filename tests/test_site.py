"""Dead links of the documentation's site, and pages that its search lacks, fail its build."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parent.parent / ".ci/site/check.py"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of two pages, with the index of its search and a copy of a file."""
    for folder in ("guides", "source"):
        (tmp_path / folder).mkdir()
    quotas = '<h1 id="quotas">Quotas</h1> <a href="../index.html#top">index</a>'
    (tmp_path / "guides/quotas.html").write_text(quotas)
    links = ("guides/quotas.html#quotas", "#top", "source/a.py.html", "https://kafka.example/none")
    text = " ".join(f'<a href="{link}">link</a>' for link in links)
    (tmp_path / "index.html").write_text(f'<h1 id="top">Index</h1> {text}')
    (tmp_path / "source/a.py.html").write_text('<a href="nowhere.html">not looked at</a>')
    write_index(tmp_path, ["guides/quotas", "index"])
    return tmp_path


def write_index(site: Path, pages: list[str]) -> None:
    index = {"docnames": pages, "terms": {"a": [0, 1]}, "titleterms": {"throttl": 0}}
    (site / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")


def check(site: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, CHECK, site], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_site_without_dead_links_passes(site: Path) -> None:
    assert check(site) == (0, [])


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ('<a href="gone.html">', "index.html: gone.html leads nowhere"),
        ('<img src="gone.png">', "index.html: gone.png leads nowhere"),
        (
            '<a href="guides/quotas.html#gone">',
            "index.html: guides/quotas.html#gone has no such anchor",
        ),
    ],
)
def test_dead_link_is_reported(site: Path, link: str, problem: str) -> None:
    (site / "index.html").write_text(link)
    (site / "guides/quotas.html").write_text('<h1 id="quotas">Quotas</h1>')
    assert check(site) == (1, [problem])


@pytest.mark.parametrize(
    "text",
    [
        '<script src="{}"></script>',
        '<script type="module">import a from "{}";</script>',
        '<link rel="stylesheet" href="{}">',
        '<img src="{}">',
    ],
)
def test_page_that_loads_from_another_host_is_reported(site: Path, text: str) -> None:
    url = "https://cdn.example/a"
    page = site / "guides/quotas.html"
    page.write_text(page.read_text() + text.format(url) + f"<p>import a from '{url}'</p>")
    problem = f"guides/quotas.html: {url} is loaded from another host"
    assert check(site) == (1, [problem])


def test_page_that_the_search_lacks_is_reported(site: Path) -> None:
    write_index(site, ["index"])
    assert check(site) == (
        1,
        [
            "guides/quotas: the search does not know this page",
            "guides/quotas: the search does not find it by throttl",
        ],
    )
