"""Throughput over time in a run of `fairness`, as a picture.

Owns colours and axes and nothing that is measured; only this needs matplotlib. Invariant: all peers
are drawn on the same scale, which is linear below 1 MB/s and logarithmic above.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from system_tests.benchmarks.fairness_timelines import (
    BEFORE_S,
    SITUATION_S,
    SLICES_A_SECOND,
    Flow,
    Timeline,
    Timelines,
)

COLOURS = {"bulk": "#d1495b", "busy": "#e9a03b"}
NEIGHBOUR = "#2a6f97"
MB_SHOWN_MAX = 9000
TICKS = (0, 1, 10, 100, 1000)


def draw(found: Timelines, file: Path) -> None:
    """Draw the first run of each neighbor (a row) and each peer (a column)."""
    peers = list(dict.fromkeys(peer for peer, _ in found))
    neighbours = list(dict.fromkeys(neighbour for _, neighbour in found))
    size = (7.0 * len(peers), 3.0 * len(neighbours) + 0.6)
    with mpl.rc_context({"svg.hashsalt": "fairness", "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(
            len(neighbours), len(peers), sharex=True, sharey="row", squeeze=False
        )
        for row, neighbour in zip(grid, neighbours, strict=True):
            for axes, peer in zip(row, peers, strict=True):
                _draw_one(axes, found[peer, neighbour][0])
                axes.set_title(f"{peer}: a neighbour with {neighbour}", fontsize=9, loc="left")
            row[0].set_ylabel("MB/s acknowledged")
        for axes in grid[-1]:
            axes.set_xlabel("seconds")
        handles, labels = grid[0][0].get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=len(named))
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _draw_one(axes: Axes, timeline: Timeline) -> None:
    for number, situation in enumerate(timeline.order):
        start = BEFORE_S + SITUATION_S * number
        if number % 2 == 0:
            axes.axvspan(start, start + SITUATION_S, color="0.94", zorder=0)
        text = situation.replace(" held to ", "\nheld to ").replace(", ", ",\n")
        axes.text(
            start + 0.05, 0.98, text, transform=axes.get_xaxis_transform(), va="top", fontsize=7
        )
    _draw_flow(axes, timeline.neighbour, NEIGHBOUR, "neighbour")
    for name, flow in timeline.abusers.items():
        kind = name.partition("-")[0]
        label = {"bulk": "abuser: as many bytes as it can", "busy": "abuser: a request a record"}
        _draw_flow(axes, flow, COLOURS[kind], label[kind])
    axes.set_xlim(0, BEFORE_S + SITUATION_S * len(timeline.order))
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, MB_SHOWN_MAX)
    axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
    axes.spines[["top", "right"]].set_visible(False)


def _draw_flow(axes: Axes, flow: Flow, colour: str, label: str) -> None:
    first = next((at for at, amount in enumerate(flow) if amount), 0)
    seconds = [at / SLICES_A_SECOND for at in range(first, len(flow))]
    rates = [amount * SLICES_A_SECOND / 1e6 for amount in flow[first:]]
    axes.plot(seconds, rates, color=colour, label=label, linewidth=1.2, drawstyle="steps-post")
