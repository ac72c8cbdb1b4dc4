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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from system_tests.benchmarks import (
    accepting,
    compaction,
    costs,
    fetch_sessions,
    group_members,
    groups,
    growth,
    large_batches,
    share_records,
    small,
    snapshots,
    transactions,
)
from system_tests.benchmarks.measures import MORE_BROKERS, OWN_BROKER
from system_tests.benchmarks.peers import KAFKA, MINIBROKER, MOCK


class Target(NamedTuple):
    """A bound that the project set itself: a figure, or a factor of a peer's figure."""

    bound: float
    unit: str = ""
    peer: str | None = None
    least: bool = False

    def __str__(self) -> str:
        sign = ">=" if self.least else "<="
        if self.peer is None:
            return f"{sign} {self.bound:g} {self.unit}"
        return f"{sign} {self.bound:g} x {self.peer}"

    def reached(self, medians: Mapping[str, float]) -> bool | None:
        """Whether it is reached, None without the figures."""
        ours = medians.get(MINIBROKER)
        bound = self.bound
        if self.peer is not None:
            bound *= medians.get(self.peer, 0.0)
            if not bound:
                return None
        if ours is None:
            return None
        return ours >= bound if self.least else ours <= bound


def least_of(factor: float, peer: str = KAFKA) -> Target:
    return Target(factor, peer=peer, least=True)


def most_of(factor: float, peer: str = KAFKA) -> Target:
    return Target(factor, peer=peer)


class Row(NamedTuple):
    """A figure's unit and the project's targets for it. A row without them explains others."""

    name: str
    unit: str
    targets: tuple[Target, ...] = ()


def row(name: str, unit: str, *targets: Target, most: float | None = None) -> Row:
    """Return a row; `most` is a highest figure."""
    return Row(name, unit, targets if most is None else (*targets, Target(most, unit)))


def rows_of_limits(name: Callable[[str], str], *targets: Target) -> list[Row]:
    """Return the rows of one kind of acceptor, with the targets of its rate."""
    return [
        row(name(accepting.PLAIN), "/s", *targets),
        row(name(accepting.LIMITED), "/s"),
        row(name(accepting.COST), "%", most=10),
        row(name(accepting.ALONE), "us"),
        row(name(accepting.BESIDE), "us"),
        row(name(accepting.RATIO), "x", most=2),
    ]


ROWS = (
    *(row(small.requests_of(count), "/s", least_of(1.0)) for count in small.PRODUCERS),
    *(row(small.cpu_of(count), "us", most=60) for count in small.PRODUCERS),
    row("one acknowledged 100-byte record, median", "us", most_of(1.2)),
    row("one acknowledged 100-byte record, p99", "us", most_of(1.0)),
    row(f"{small.PINNED}, median", "us", most_of(0.7)),
    row(f"{small.PINNED}, p99", "us"),
    row(f"{small.END_TO_END}, median", "us", most_of(1.0)),
    row(f"{small.END_TO_END}, p99", "us"),
    row(small.POLL_CPU, "us", most=50),
    row("produce 100-byte records", "/s", least_of(0.8)),
    row("consume 100-byte records", "/s", least_of(0.8)),
    row("produce 1,000-byte records", "MB/s", least_of(1.2), least_of(0.7, MOCK)),
    row("consume 1,000-byte records", "MB/s", least_of(1.2)),
    *(row(transactions.rate_of(count), "/s", least_of(0.7)) for count in transactions.PRODUCERS),
    *(row(transactions.median_of(count), "us") for count in transactions.PRODUCERS),
    *(row(transactions.cpu_of(count), "us") for count in transactions.PRODUCERS),
    row(transactions.WITHOUT, "us"),
    row(transactions.BESIDE, "us"),
    row(transactions.RATIO, "x", most=1.03),
    *(
        each
        for name in (large_batches.CHECKS, large_batches.SEARCHES)
        for each in (
            row(f"{name}, median", "us"),
            row(f"{name}, p99", "us", most_of(1.0)),
        )
    ),
    Row(compaction.SPEED, "MB/s", (Target(50, "MB/s", least=True),)),
    row(compaction.BEFORE, "us"),
    row(compaction.DURING, "us"),
    row(compaction.RATIO, "x", most=1.5),
    *(row(fetch_sessions.idle_of(size), "us") for size in fetch_sessions.COMPARED),
    row(fetch_sessions.RATIO, "x", most=1.5),
    row("Metadata of 50 topics, median", "us", most_of(0.5)),
    row("Metadata of 50 topics, p99", "us"),
    *(row(groups.row(name), "us", most_of(1.5)) for name in groups.NAMES),
    *(
        each
        for kind in group_members.KINDS
        for each in (
            row(kind.settling, "ms", most_of(1.0)),
            row(kind.settling_cpu, "ms"),
            row(kind.rate, "/s", least_of(1.0)),
            row(kind.cpu, "us", most_of(1.0)),
        )
    ),
    row(share_records.RATE, "/s", least_of(1.0)),
    row(share_records.CPU, "us", most_of(1.0)),
    *rows_of_limits(str, least_of(1.0)),
    *rows_of_limits(accepting.sharded),
    row(accepting.ADDRESSES_KEPT, "MB", most=100),
    row(accepting.ADDRESSES_GONE, "MB"),
    row(small.IDLE_MEMORY, "KB", most=8),
    row("memory at rest", "MB", most=70),
    row(OWN_BROKER, "ms", most=30),
    row(MORE_BROKERS, "ms", most=30),
    row("fixture `minibroker`, first run of pytest", "ms", most=200),
    row("fixture `minibroker`, later runs of pytest", "ms", most=200),
    row("cold start to first acknowledged record", "ms", most=500),
    row("reset of 5 topics", "ms", most=10),
    row(snapshots.TAKEN, "ms", most=10),
    *(row(snapshots.restored(changed), "ms", most=10) for changed in snapshots.CHANGED),
    row(costs.QUOTAS_LATENCY, "us", most=10),
    row(costs.QUOTAS_CPU, "us"),
    row(costs.ACTIVITY_CPU, "us", most=15),
    row(costs.JOURNAL_RATE, "%", most=10),
    row(costs.JOURNAL_CPU, "us"),
    row("produce: broker's CPU per GB", "s"),
    row("consume: broker's CPU per GB", "s"),
    row("produce: client's CPU share", "%"),
    row("consume: client's CPU share", "%"),
    *(row(growth.with_connections(count), "/s") for count in growth.CONNECTIONS),
    *(row(growth.with_partitions(count), "us") for count in growth.PARTITION_COUNTS),
    *(row(growth.with_size(size), "us") for size in growth.SIZES),
    *(row(growth.with_batch(records), "us") for records in growth.BATCHES),
)
Runs = dict[str, dict[str, list[float]]]  # by row, by peer


def compact(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def summary(row: Row, by_peer: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the summary of one row: per peer median, least, most; ratio; target; reached."""
    medians = {peer: statistics.median(values) for peer, values in by_peer.items() if values}
    ours, kafkas = medians.get(MINIBROKER), medians.get(KAFKA)
    ratio = ours / kafkas if ours is not None and kafkas else None
    return {
        "name": row.name,
        "unit": row.unit,
        "peers": {
            peer: {"median": medians[peer], "min": min(runs), "max": max(runs), "runs": runs}
            for peer, runs in by_peer.items()
            if runs
        },
        "ratio_to_kafka": ratio,
        "target": ", ".join(map(str, row.targets)),
        "reached": reached(row, medians),
    }


def reached(row: Row, medians: Mapping[str, float]) -> bool | None:
    """Whether all targets are reached, None if that is unknown or there are none."""
    results = [target.reached(medians) for target in row.targets]
    if False in results:
        return False
    return True if results and None not in results else None


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
