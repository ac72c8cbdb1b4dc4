from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from minibroker.pipeline.report.figures import (
    BUCKETS_MAX,
    ENTITIES_MAX,
    HEAT_MAX,
    REST,
    SERIES_MAX,
    Figures,
    Heat,
    Point,
    ReportedClient,
)
from minibroker.pipeline.report.page import page, tiles
from tests.pipeline.report.sample_figures import (
    HOSTILE,
    START_S,
    calm,
    figures,
    lonely,
    silent,
    use,
)

ODD = {"figures": figures(), "calm": calm(), "lonely": lonely(), "silent": silent()}
VOID = {"meta", "link", "br", "img"}


class Read(HTMLParser):
    """Parses a page: its elements, their contents, and whether they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


@pytest.mark.parametrize("made", ODD.values(), ids=ODD)
def test_page_loads_nothing_and_runs_only_its_own_script(made: Figures) -> None:
    written = page(made)
    read = Read(written)
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    linked = [value for name, value in read.attributes if name in ("src", "href", "xlink:href")]
    assert all(value == "data:," or str(value).startswith("#") for value in linked)
    assert "url(" not in written
    assert "@import" not in written


def test_content_security_policy_allows_only_own_script() -> None:
    written = page(figures())
    script = written[written.index("<script>") + 8 : written.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in written
    assert "default-src 'none'" in written


def test_hostile_name_is_shown_as_plain_text() -> None:
    made = replace(figures(), source=HOSTILE)
    read = Read(page(made))
    assert "</script><script>alert(1)</script><img src=x" in read.text
    assert "\u202e" not in read.text
    assert "\x00" not in read.text


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (calm(), ["No request was throttled", "No connections were opened or closed"]),
        (silent(), ["No requests were recorded", "No request was throttled"]),
        (replace(calm(), fits=()), ["The quota file contains no quotas"]),
    ],
    ids=["calm", "silent", "none recommended"],
)
def test_page_reports_missing_data(made: Figures, says: list[str]) -> None:
    text = Read(page(made)).text
    assert [each for each in says if each not in text] == []


def test_its_size_is_bounded() -> None:
    made = figures()
    starts = [START_S + 60 * n for n in range(BUCKETS_MAX)]
    clients = [ReportedClient("u" * 30_000 + str(n), HOSTILE * 900) for n in range(ENTITIES_MAX)]
    cover = made.coverage
    full = replace(
        made,
        coverage=cover._replace(last_us=(starts[-1] + 1) * 1_000_000),
        entities=tuple(use(who) for who in clients),
        points=tuple(
            Point(at, who, 1, 1, 1, 1) for at in starts for who in [*clients[:SERIES_MAX], REST]
        ),
        heat=tuple(Heat(at, who, 1, 1) for at in starts for who in clients[:HEAT_MAX]),
    )
    assert len(page(full)) < 5_000_000


def test_summary_matches_the_table() -> None:
    found = {tile.name: (tile.value, tile.more) for tile in tiles(figures())}
    assert found["Requests"] == ("1,234", "6.89 requests/s")
    assert found["Entities"] == ("10,002", "on 1 broker")
    assert found["Throttled"] == ("1.6 %", "of requests, 800 ms in total")
    assert found["Not recorded"] == ("7 events", "sampled: 50 % of connections or more")


def test_links_at_the_top_lead_to_sections() -> None:
    written = page(figures())
    linked = re.findall(r'<a href="#(\w+)">', written)
    assert linked == re.findall(r'<section class="panel" id="(\w+)"', written)
    assert linked[-3:] == ["recommended", "whatif", "coverage"]
