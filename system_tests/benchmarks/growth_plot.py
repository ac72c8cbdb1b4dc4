"""Pictures of `growth`: requests per second, and latency of a request, by what grows.

Owns colors, axes and file names, and nothing that is measured; only this needs matplotlib.
Invariant: a point is the median of a run's rounds, and all peers are on the same logarithmic axes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from system_tests.benchmarks import growth
from system_tests.benchmarks.peers import INTERPRETED, KAFKA, KFAKE, MINIBROKER, MOCK

Runs = Mapping[str, Mapping[str, Sequence[float]]]
Points = tuple[list[int], list[float]]

COLORS = {
    MINIBROKER: "#2a6f97",
    INTERPRETED: "#8fb8d0",
    KAFKA: "#d1495b",
    MOCK: "#8a8a8a",
    KFAKE: "#e9a03b",
}
BY_CONNECTIONS, BY_SIZE = "performance-connections.png", "performance-record-size.png"
BY_PARTITIONS, BY_BATCH = "performance-partitions.png", "performance-batch-size.png"
TICKS = (1, 2, 5)
"""Labelled steps of a decade."""

MEDIAN = "median of one Produce request, µs"


def draw(runs: Runs, folder: Path) -> list[Path]:
    """Draw what was measured; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = (
        (
            folder / BY_CONNECTIONS,
            points(runs, growth.CONNECTIONS, growth.with_connections),
            ("connections with one request in flight each", "requests per second"),
        ),
        (
            folder / BY_SIZE,
            points(runs, growth.SIZES, growth.with_size),
            ("bytes of a record", MEDIAN),
        ),
        (
            folder / BY_PARTITIONS,
            points(runs, growth.PARTITION_COUNTS, growth.with_partitions),
            ("partitions, each used in turn", MEDIAN),
        ),
        (
            folder / BY_BATCH,
            points(runs, growth.BATCHES, growth.with_batch),
            ("100-byte records of a batch", MEDIAN),
        ),
    )
    return [_draw(file, lines, labels) for file, lines, labels in pictures if lines]


def points(runs: Runs, steps: Sequence[int], row: Callable[[int], str]) -> dict[str, Points]:
    """Return the steps that each peer was measured at, and the medians."""
    found: dict[str, Points] = {}
    for step in steps:
        for peer, figures in runs.get(row(step), {}).items():
            if figures:
                at, medians = found.setdefault(peer, ([], []))
                at.append(step)
                medians.append(statistics.median(figures))
    return found


def _draw(file: Path, lines: Mapping[str, Points], labels: tuple[str, str]) -> Path:
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        axes = figure.subplots()
        for peer, (at, medians) in lines.items():
            axes.plot(at, medians, marker="o", color=COLORS[peer], label=peer, linewidth=1.4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        steps = sorted({step for at, _ in lines.values() for step in at})
        axes.set_xticks(steps, [f"{step:,}" for step in steps])
        axes.minorticks_off()
        axes.set_ylim(*_around([median for _, medians in lines.values() for median in medians]))
        axes.yaxis.set_major_locator(LogLocator(subs=TICKS))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(file, dpi=150)
    return file


def _around(values: Sequence[float]) -> tuple[float, float]:
    """The ticks below the least and above the greatest value."""
    ticks = [step * 10.0**power for power in range(-3, 9) for step in TICKS]
    return max(t for t in ticks if t < min(values)), min(t for t in ticks if t > max(values))
