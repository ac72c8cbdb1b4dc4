from __future__ import annotations

from minibroker.pipeline.report.plots import Drawing
from minibroker.pipeline.report.tables import Picture, number


def test_bar_stays_in_its_cell() -> None:
    assert [number(5, "5", part).part for part in (None, -1, 0.333, 7)] == [None, 0, 33.3, 100]


def test_drawing_is_markup_already() -> None:
    picture = Picture.of("Title", "unit", Drawing("<svg/>", "<svg/>"))
    assert f"{picture.drawing.wide:s}" == "<svg/>"
    assert hasattr(picture.drawing.narrow, "__html__")
