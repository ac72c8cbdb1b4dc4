from __future__ import annotations

from minibroker.broker.metrics.cleaner_definitions import CLEANER_METRICS, CleanerFigures


def test_figures_have_a_value_for_each_metric() -> None:
    figures = CleanerFigures()
    assert {name for name, _ in figures.gauges(0)} == {metric.name for metric in CLEANER_METRICS}


def test_cleaning_is_added() -> None:
    figures = CleanerFigures(last_run_ms=1000)
    figures.add(100, 25, 0.5, 7)
    figures.add(100, 75, 0.25, 9)
    values = {
        name.removeprefix("minibroker_log_cleaner_"): v
        for (name, _), v in figures.gauges(1500).items()
    }
    assert values["runs"] == 2
    assert (values["read_bytes"], values["written_bytes"]) == (200, 100)
    assert values["recopy_ratio"] == 0.75
    assert values["clean_time_seconds"] == 9
    assert values["time_since_last_run_seconds"] == 500
