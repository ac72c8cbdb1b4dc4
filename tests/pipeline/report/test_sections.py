from __future__ import annotations

from dataclasses import replace

from minibroker.pipeline.report import sections
from minibroker.pipeline.report.tables import ReportTable, Row
from tests.pipeline.report.sample_figures import figures


def texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells]


def rows(table: ReportTable | None) -> list[list[str]]:
    assert table is not None
    return [texts(row) for row in table.rows]


def test_entities_table_has_shares_and_one_row_for_rest() -> None:
    table = sections.entities(figures()).table
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
    section = sections.recommended(figures())
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
    section = sections.compared(figures())
    assert rows(section.table)[0] == ["now.quotas", "2 of 2", "20", "10 %", "8 s", "900 ms", "0"]
    assert len(section.plots) == 1


def test_proposals_table_reports_delay_of_closed_loop() -> None:
    made = figures()
    first, second = made.proposals
    waiting = second._replace(late_ms=90_000, given_up=1234)
    section = sections.compared(replace(made, proposals=(first, waiting)))
    assert [row[6:] for row in rows(section.table)] == [["0", "-"], ["1,234", "1 min 30 s"]]
    assert "late is the largest delay" in section.notes[0]
    assert "closed loop" not in sections.compared(made).notes[0]


def test_proposals_without_throttles_have_no_plot() -> None:
    made = figures()
    none = tuple(each._replace(throttle_ms=0) for each in made.proposals)
    section = sections.compared(replace(made, proposals=none))
    assert section.plots == ()
    assert section.nothing == "No proposal would have throttled any client."


def test_coverage_reports_missing_events() -> None:
    section = sections.coverage(figures())
    assert section.notes[1] == "2 malformed events are in the quarantine."
    assert rows(section.table) == [
        ["7", "2026-11-18 11:07:00 to 11:09:59 UTC", "1,234", "5", "50 %"]
    ]


def test_sections_without_quotas_are_omitted() -> None:
    made = replace(figures(), fits=None, proposals=())
    assert [each.id for each in sections.sections(made)] == [
        "usage", "entities", "throttles", "latency", "connections", "coverage",
    ]  # fmt: skip
