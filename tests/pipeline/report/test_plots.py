from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from minibroker.pipeline.report import plots
from minibroker.pipeline.report.figures import REST, Figures, Fit, Heat, ReportedClient, step_for
from tests.pipeline.report.sample_figures import ALICE, MALLORY, START_S, figures, lonely


def texts_of(svg: str) -> list[str]:
    """Return the texts of the marks."""
    return [unescape(each) for each in re.findall(r'<path aria-label="([^"]*)"', svg)]


@pytest.mark.parametrize("made", [figures(), lonely()], ids=["figures", "lonely"])
def test_usage_plot_has_text_for_every_bucket(made: Figures) -> None:
    unit, drawing = plots.over_time(made, lambda point: point.bytes_in, "B/s", "Bytes in")
    for svg in drawing:
        ET.fromstring(svg)
        assert len(texts_of(svg)) == len(made.starts_s)
    assert unit == ("kB/s" if made.step_s == 60 else "B/s")


def test_stacked_bucket_text_reports_total_and_parts() -> None:
    _, drawing = plots.over_time(figures(), lambda point: point.bytes_in, "B/s", "Bytes in")
    first = texts_of(drawing.wide)[0]
    assert first.startswith("2026-11-18 ")
    assert "300 kB/s in total · alice / etl: 100 kB/s" in first
    assert first.endswith("all others: 100 kB/s")


def test_plot_colours_follow_the_style_sheet() -> None:
    _, drawing = plots.over_time(figures(), lambda point: point.requests, "/s", "Requests")
    assert 'fill="var(--s1)"' in drawing.wide
    assert 'fill="var(--rest)"' in drawing.wide
    assert not re.search(r'(fill|stroke)="#(?!0*")', drawing.wide)


def test_rest_is_grey_and_last() -> None:
    assert plots.series(figures()) == [ALICE, MALLORY, REST]
    assert plots.series_colours([ALICE, REST]) == {ALICE: "var(--s1)", REST: "var(--rest)"}


def test_name_with_markup_is_text_in_plot() -> None:
    drawing = plots.heat(figures())
    for svg in drawing:
        assert {each.tag.split("}")[1] for each in ET.fromstring(svg).iter()} <= {
            "svg", "g", "path", "line", "text", "rect", "defs",
        }  # fmt: skip
        assert "<script" not in svg


def test_throttle_map_cell_colour_reflects_throttle_time() -> None:
    drawing = plots.heat(figures())
    alice, mallory = sorted(texts_of(drawing.wide), key=lambda text: "alice" not in text)
    assert alice.endswith("alice / etl: 1 request throttled, 1 min 30 s in this interval")
    assert mallory.endswith("20 requests throttled, 800 ms in this interval")
    assert 'fill="var(--h5)"' in drawing.wide  # 90 s in a minute
    assert 'fill="var(--h1)"' in drawing.wide


@pytest.mark.parametrize("span_s", [100, 613, 3000, 7000, 40_000, 100_000, 700_000])
def test_labels_of_the_time_axis_are_at_equal_distances(span_s: int) -> None:
    made = figures()
    last_us = made.coverage.first_us + span_s * 1_000_000
    step_s = step_for(made.coverage.first_us, last_us)
    coverage = made.coverage._replace(last_us=last_us)
    for svg in plots.heat(replace(made, coverage=coverage, step_s=step_s)):
        shown = re.findall(r'translate\(([\d.]+)[^>]*opacity="1"[^>]*>(?:\d\d:\d\d|Nov )', svg)
        gaps = {round(float(b) - float(a)) for a, b in pairwise(shown)}
        assert max(gaps) - min(gaps) <= 1, shown


def test_throttle_map_rows_are_sorted_by_throttle_time() -> None:
    made = replace(
        figures(),
        heat=tuple(Heat(START_S, ReportedClient("u", f"c{n}"), 1, 1000 * n) for n in range(1, 6)),
    )
    labels = [each.text for each in ET.fromstring(plots.heat(made).wide).iter() if each.text]
    assert [each for each in labels if each.startswith("u / ")] == [
        f"u / c{n}" for n in (5, 4, 3, 2, 1)
    ]


def test_fits_plot_reports_use_as_share_of_quota() -> None:
    drawing = plots.fits(figures().fits or ())
    assert "median 17 %, 99th percentile 83 %, most 133 %" in texts_of(drawing.wide)[0]
    assert "most 2,000 %" in texts_of(drawing.wide)[1]


def test_zero_quota_does_not_divide_by_zero() -> None:
    assert (
        texts_of(plots.fits([Fit("user a", "producer_byte_rate", 0, 0, 0, None, 0, "")]).wide) == []
    )


def test_proposals_plot_has_bar_per_throttled_entity() -> None:
    made = figures()
    names = [each.name for each in made.proposals]
    unit, drawing = plots.proposals(made.outcomes, names, ["one", "two"])
    assert unit == "s"
    assert len(texts_of(drawing.wide)) == 4
    assert "under one: 10 of 100 requests, 4 s in total, 900 ms at the longest" in drawing.wide


def test_line_plot_is_interrupted_at_gap() -> None:
    made = figures()
    rows = {each.start_s: (each.p50_ms,) for each in made.latency}
    drawing = plots.lines(made, rows, ("p50",), ("var(--s1)",), shown=str, title="Latency")
    line = re.search(r'd="([^"]*)"[^>]*stroke="var\(--s1\)"', drawing.wide)
    assert line is not None
    assert line[1].count("M") == 2
    assert len(texts_of(drawing.wide)) == 2
