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
from minibroker.pipeline.report.page import (
    Picture,
    ReportTable,
    Row,
    compared,
    coverage,
    entities,
    number,
    page,
    recommended,
    sections,
    tiles,
)
from minibroker.pipeline.report.plots import Drawing
from tests.pipeline.report.sample_figures import (
    HOSTILE,
    START_S,
    calm,
    figures,
    lonely,
    silent,
    use,
)

# Elements ----------------------------------------------------------------------------------------


def test_bar_stays_in_its_cell() -> None:
    assert [number(5, "5", part).part for part in (None, -1, 0.333, 7)] == [None, 0, 33.3, 100]


def test_drawing_is_markup_already() -> None:
    picture = Picture.of("Title", "unit", Drawing("<svg/>", "<svg/>"))
    assert f"{picture.drawing.wide:s}" == "<svg/>"
    assert hasattr(picture.drawing.narrow, "__html__")


# Sections ----------------------------------------------------------------------------------------


def texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells]


def rows(table: ReportTable | None) -> list[list[str]]:
    assert table is not None
    return [texts(row) for row in table.rows]


def test_entities_table_has_shares_and_one_row_for_rest() -> None:
    table = entities(figures()).table
    assert rows(table)[0] == [
        "alice / etl", "0.2 %", "100", "1 MB", "2 MB", "0 %", "-", "1.0 %", "0.5 ms", "5 ms",
        "50 ms",
    ]  # fmt: skip
    assert rows(table)[2][0] == "10,000 others"
    assert table is not None
    assert [row.rest for row in table.rows] == [False, False, True]
    assert [row.cells[0].colour for row in table.rows] == ["s1", "s2", "rest"]
    assert table.rows[0].cells[0].title == "user 'alice', client-id 'etl'"


def test_recommended_table_shows_quotas_in_their_units() -> None:
    section = recommended(figures())
    assert section.notes[0] == "Recommended: 40 quotas; the 2 with the highest usage are shown."
    assert rows(section.table)[0][:7] == [
        "user alice", "producer_byte_rate", "100 kB/s", "500 kB/s", "800 kB/s", "1 MB/s",
        "600 kB/s",
    ]  # fmt: skip
    assert rows(section.table)[1][1:7] == [
        "request_percentage",
        "1 %",
        "20 %",
        "500 %",
        "-",
        "25 %",
    ]


def test_proposals_table_compares_throttled_entities() -> None:
    section = compared(figures())
    assert rows(section.table)[0] == ["now.quotas", "2 of 2", "20", "10 %", "8 s", "900 ms", "0"]
    assert len(section.plots) == 1


def test_proposals_table_reports_delay_of_closed_loop() -> None:
    made = figures()
    first, second = made.proposals
    waiting = second._replace(late_ms=90_000, given_up=1234)
    section = compared(replace(made, proposals=(first, waiting)))
    assert [row[6:] for row in rows(section.table)] == [["0", "-"], ["1,234", "1 min 30 s"]]
    assert "late is the largest delay" in section.notes[0]
    assert "closed loop" not in compared(made).notes[0]


def test_proposals_without_throttles_have_no_plot() -> None:
    made = figures()
    none = tuple(each._replace(throttle_ms=0) for each in made.proposals)
    section = compared(replace(made, proposals=none))
    assert section.plots == ()
    assert section.nothing == "No proposal would have throttled any client."


def test_coverage_reports_missing_events() -> None:
    section = coverage(figures())
    assert section.notes[1] == "2 malformed events are in the quarantine."
    assert rows(section.table) == [
        ["7", "2026-11-18 11:07:00 to 11:09:59 UTC", "1,234", "5", "50 %"]
    ]


def test_sections_without_quotas_are_omitted() -> None:
    made = replace(figures(), fits=None, proposals=())
    assert [each.id for each in sections(made)] == [
        "usage", "entities", "throttles", "latency", "connections", "coverage",
    ]  # fmt: skip


# The page ----------------------------------------------------------------------------------------

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
