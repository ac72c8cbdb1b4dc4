"""Figures of several runs, as a table for people and as JSON for programs.

It owns medians, ratios, units and the targets that the project set itself; it measures nothing.
The invariant: every figure in the table is in the JSON with all its runs behind it, and a figure
that could not be had is a dash with its reason below the table, never a zero.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from system_tests.benchmarks import accepting
from system_tests.benchmarks.peers import KAFKA, MINIBROKER


class Row(NamedTuple):
    """A figure's unit and the project's target for it.

    `target_ratio` is a least ratio to Kafka's figure, `target_most` a highest figure. Where
    neither is given the row is there to explain others.
    """

    name: str
    unit: str
    target_ratio: float | None = None
    target_most: float | None = None


ROWS = (
    Row("produce 1,000-byte records", "MB/s", target_ratio=1.0),
    Row("consume 1,000-byte records", "MB/s", target_ratio=1.0),
    Row("one acknowledged 100-byte record, median", "us", target_most=250),
    Row("one acknowledged 100-byte record, p99", "us"),
    Row("cold start to first acknowledged record", "ms", target_most=500),
    Row("fixture `minibroker`, first run of pytest", "ms", target_most=150),
    Row("fixture `minibroker`, later runs of pytest", "ms", target_most=150),
    Row("MiniBroker() in a running pytest", "ms", target_most=150),
    Row("reset of 5 topics", "ms", target_most=10),
    Row("memory at rest", "MB", target_most=80),
    *(
        row
        for acceptors in (str, accepting.sharded)
        for row in (
            Row(acceptors(accepting.PLAIN), "/s"),
            Row(acceptors(accepting.LIMITED), "/s"),
            Row(acceptors(accepting.COST), "%", target_most=10),
            Row(acceptors(accepting.ALONE), "us"),
            Row(acceptors(accepting.BESIDE), "us"),
            Row(acceptors(accepting.RATIO), "x", target_most=2),
        )
    ),
    Row(accepting.ADDRESSES_KEPT, "MB", target_most=100),
    Row(accepting.ADDRESSES_GONE, "MB"),
    Row("Metadata of 50 topics, median", "us"),
    Row("Metadata of 50 topics, p99", "us"),
    Row("produce: broker's CPU per GB", "s"),
    Row("consume: broker's CPU per GB", "s"),
    Row("produce: client's CPU share", "%"),
    Row("consume: client's CPU share", "%"),
)
Runs = dict[str, dict[str, list[float]]]  # by row, by peer


def compact(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def summary(row: Row, by_peer: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the summary of one row: per peer median, least, most; ratio; target; reached."""
    medians = {peer: statistics.median(values) for peer, values in by_peer.items() if values}
    ours, kafkas = medians.get(MINIBROKER), medians.get(KAFKA)
    ratio = ours / kafkas if ours is not None and kafkas else None
    reached: bool | None = None
    if row.target_ratio is not None and ratio is not None:
        reached = ratio >= row.target_ratio
    elif row.target_most is not None and ours is not None:
        reached = ours <= row.target_most
    return {
        "name": row.name,
        "unit": row.unit,
        "peers": {
            peer: {"median": medians[peer], "min": min(runs), "max": max(runs), "runs": runs}
            for peer, runs in by_peer.items()
            if runs
        },
        "ratio_to_kafka": ratio,
        "target": target(row),
        "reached": reached,
    }


def target(row: Row) -> str:
    if row.target_ratio is not None:
        return f">= {row.target_ratio:.1f} x Kafka"
    return "" if row.target_most is None else f"<= {row.target_most:g} {row.unit}"


def table(runs: Runs, peers: Sequence[str]) -> str:
    """Return a table: a line each row, a column each peer, with the least and most beneath."""
    head = ["", "unit", *peers, "to Kafka", "target", ""]
    lines = [head]
    for row in ROWS:
        seen = summary(row, runs.get(row.name, {}))
        if not seen["peers"]:
            continue
        cells = []
        for peer in peers:
            figures = seen["peers"].get(peer)
            cells.append(
                f"{compact(figures['median'])} "
                f"({compact(figures['min'])}-{compact(figures['max'])})"
                if figures
                else "-"
            )
        ratio = "" if seen["ratio_to_kafka"] is None else f"{seen['ratio_to_kafka']:.2f}"
        verdict = {None: "", True: "reached", False: "NOT REACHED"}[seen["reached"]]
        lines.append([row.name, row.unit, *cells, ratio, seen["target"], verdict])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in {0, 1} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def as_json(
    runs: Runs, *, versions: Mapping[str, str], about: Mapping[str, Any], notes: Sequence[str]
) -> str:
    rows = [summary(row, runs.get(row.name, {})) for row in ROWS]
    return json.dumps(
        {
            "machine": machine(),
            "versions": dict(versions),
            **about,
            "rows": [row for row in rows if row["peers"]],
            "notes": list(notes),
        },
        indent=2,
    )
