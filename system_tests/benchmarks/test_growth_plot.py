"""The points of the pictures, and the pictures' files."""

from __future__ import annotations

from pathlib import Path

from system_tests.benchmarks import growth, growth_plot
from system_tests.benchmarks.peers import KAFKA, MINIBROKER

RUNS = {
    growth.with_connections(1): {MINIBROKER: [3.0, 1.0, 2.0], KAFKA: [9.0]},
    growth.with_connections(64): {MINIBROKER: [5.0], KAFKA: []},
}


def test_points_are_medians_of_the_steps_that_a_peer_was_measured_at() -> None:
    found = growth_plot.points(RUNS, growth.CONNECTIONS, growth.with_connections)
    assert found == {MINIBROKER: ([1, 64], [2.0, 5.0]), KAFKA: ([1], [9.0])}


def test_draw_writes_a_picture_of_what_was_measured(tmp_path: Path) -> None:
    [file] = growth_plot.draw(RUNS, tmp_path / "new")
    assert file.name == growth_plot.BY_CONNECTIONS
    assert file.stat().st_size > 1000
