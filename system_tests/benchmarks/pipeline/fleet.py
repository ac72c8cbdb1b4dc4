"""Requirements of a fleet of brokers, calculated from measurements on one core.

Owns the measured figures and the arithmetic from them to cores, bytes and memory; it measures
nothing. Invariant: everything in the page's tables is calculated here (a test compares it);
``python -m system_tests.benchmarks.pipeline.fleet --write`` updates the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path("docs/guides/fleet.md")
BEGINS, ENDS = "<!-- computed -->", "<!-- end of what is computed -->"
DAY_S: Final = 86_400
HOUR_S: Final = 3_600


class Measured(NamedTuple):
    """One core of the machine that benchmarks ran on: events a second of processor time, and bytes
    an event. Replays and usage were of fifty million events, ingest of one, the rest of five;
    DuckDB, the recorder and ingest were measured on a crowded machine.
    """

    recorder_us: float = 13.0
    """Of the broker's processors, a request."""
    topic_bytes: float = 72.0
    """In the activity topic, compressed."""
    arrow_bytes: float = 418.0
    table_bytes: float = 59.0
    """In the activity table's Parquet files."""
    ingest: float = 0.2e6
    usage: float = 0.66e6
    kernel: float = 10.9e6
    """A replay without reading: quotas of bytes and of time, of all clients."""
    replay: float = 3.5e6
    """A replay under one proposal with the same quotas."""
    replay_mb: float = 1_177.0
    """Of Spark's process and a worker."""
    replay_few_mb: float = 1_072.0
    """The same for a tenth of the events."""
    duckdb: float = 1.0e6
    """DuckDB sorts the same table, and the same kernel replays it."""
    duckdb_mb: float = 8_380.0
    duckdb_few_mb: float = 1_510.0


class Fleet(NamedTuple):
    """Brokers, requests per second of each, and the share of connections that are recorded."""

    brokers: int
    requests: int
    sample: float = 1.0

    @property
    def events(self) -> float:
        """A second, of all."""
        return self.brokers * self.requests * self.sample


MEASURED: Final = Measured()
FLEETS: Final = (
    Fleet(1, 1_000),
    Fleet(10, 10_000),
    Fleet(1_000, 100_000),
    Fleet(1_000, 100_000, 0.1),
    Fleet(1_000, 100_000, 0.01),
)
NODE_CORES: Final = 64


def scaled(value: float, unit: str) -> str:
    """With the prefix that leaves at most three digits before the point."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


def cores(events: float, rate: float) -> str:
    """Return the cores that process so many events per second."""
    needed = events / rate
    return f"{needed:,.0f}" if needed >= 10 else f"{needed:.2g}"


def row(fleet: Fleet, measured: Measured = MEASURED) -> list[str]:
    """A fleet's line of the table."""
    events = fleet.events
    return [
        f"{fleet.brokers:,} x {fleet.requests:,}/s",
        f"{fleet.sample:.0%}",
        scaled(events, "/s"),
        scaled(events * DAY_S * measured.topic_bytes, "B"),
        scaled(events * DAY_S * measured.table_bytes, "B"),
        cores(events, measured.ingest),
        cores(events, measured.usage),
        cores(events, measured.replay),
    ]


HEAD: Final = [
    *("brokers", "sample", "events", "topics, a day", "table, a day"),
    *("cores: ingest", "usage", "replay"),
]


def _grown(few_mb: float, many_mb: float) -> str:
    return f"{few_mb:,.0f} MB of 5 million events, {many_mb:,.0f} MB of 50 million"


def one_core(measured: Measured = MEASURED) -> list[list[str]]:
    """Return the measurements, for the page."""
    return [
        ["recording, at the broker", f"{measured.recorder_us:g} µs a request"],
        [
            "an event in the topic",
            f"{measured.topic_bytes:g} B, of {measured.arrow_bytes:g} B uncompressed",
        ],
        ["an event in the table", f"{measured.table_bytes:g} B"],
        ["ingest", f"{measured.ingest / 1e6:g} million events/s"],
        ["usage by minute", f"{measured.usage / 1e6:g} million events/s"],
        ["the kernel of a replay", f"{measured.kernel / 1e6:g} million events/s"],
        ["replay under one proposal", f"{measured.replay / 1e6:g} million events/s"],
        ["memory of that", _grown(measured.replay_few_mb, measured.replay_mb)],
        ["DuckDB's sort and the same kernel", f"{measured.duckdb / 1e6:g} million events/s"],
        ["memory of that", _grown(measured.duckdb_few_mb, measured.duckdb_mb)],
    ]


def consequences(fleet: Fleet, measured: Measured = MEASURED) -> list[list[str]]:
    """Return the consequences of the fleet's figures."""
    events = fleet.events
    recording = fleet.requests * fleet.sample * measured.recorder_us / 1e6
    ingest = events / measured.ingest
    day_s = events * DAY_S / measured.replay / NODE_CORES
    hour_bytes = events * HOUR_S * measured.table_bytes
    return [
        ["recording, at each broker", f"{recording:.2g} cores"],
        ["read from brokers", scaled(events * measured.topic_bytes, "B/s")],
        ["written to the table", scaled(events * measured.table_bytes, "B/s")],
        [f"nodes of {NODE_CORES} cores for ingest", f"{ingest / NODE_CORES:.2g}"],
        ["an hour of the table", scaled(hour_bytes, "B")],
        [f"what-if of a day on one such node, {NODE_CORES} cores", f"{day_s / HOUR_S:.2g} h"],
    ]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def computed() -> str:
    """All tables of the page."""
    whole, sampled = FLEETS[2], FLEETS[4]
    beside = [
        [first[0], first[1], second[1]]
        for first, second in zip(consequences(whole), consequences(sampled), strict=True)
    ]
    return "\n\n".join(
        [
            "One core does this:",
            markdown(["what", "measured"], one_core()),
            "So this is what keeps up with a fleet:",
            markdown(HEAD, [row(fleet) for fleet in FLEETS]),
            "And of 1,000 brokers with 100,000 requests/s each in particular:",
            markdown(["", "all events", "1 % of connections"], beside),
        ]
    )


def with_tables(page: str) -> str:
    """Return the page with updated tables."""
    before, _, rest = page.partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    return f"{before}{BEGINS}\n\n{computed()}\n\n{ENDS}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a fleet would need.")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE}")
    if parser.parse_args().write:
        PAGE.write_text(with_tables(PAGE.read_text()))
    else:
        print(computed())


if __name__ == "__main__":
    main()
