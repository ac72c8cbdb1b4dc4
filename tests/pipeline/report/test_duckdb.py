"""Every figure of a report about recorded events, computed a second time by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from minibroker.pipeline.report import aggregate, formats
from minibroker.pipeline.report.figures import (
    BROKERS_MAX,
    ENTITIES_MAX,
    REST,
    SERIES_MAX,
    Figures,
    ReportedClient,
)
from minibroker.pipeline.report.page import page
from minibroker.pipeline.usage import usage
from tests.pipeline import duckdb_queries as queries
from tests.pipeline.report.sample_events import START_US, Events, connection, dropped, request
from tests.pipeline.sample_events import arrow

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

CLOSE = 1e-9


def events() -> Events:
    """Clients of all kinds at several brokers; some throttled, some sampled."""
    chance = Random(5)
    found = []
    for sequence in range(3000):
        who = min(int(chance.paretovariate(0.7)), 60)
        common = {
            "broker": who % 3, "time_us": START_US + chance.randrange(400_000_000),
            "sample": chance.choice([1.0, 1.0, 0.5, 0.25]),
        }  # fmt: skip
        if chance.random() < 0.1:
            happened = chance.choice(["accepted", "delayed", "held", "refused", "closed"])
            found.append(connection(sequence, happened, ip="10.0.0.1", **common))
            continue
        fetches = chance.random() < 0.5
        found.append(
            request(
                sequence, user=chance.choice(["u", "v", None]), client_id=f"c{who}",
                api_key=1 if fetches else chance.choice([0, 3]), exempt=chance.random() < 0.2,
                request_bytes=chance.randrange(10**5), io_ns=chance.randrange(10**6),
                response_bytes=chance.choice([None, chance.randrange(10**6)]),
                total_ns=chance.choice([None, int(10 ** (4 + 6 * chance.random()))]),
                throttle_ms=chance.choice([0, 0, 50, 9_000]), error_code=chance.choice([0, 0, 3]),
                **common,
            )
        )  # fmt: skip
    return [*found, dropped(9000, 17), dropped(9001, 5, broker=2)]


@pytest.fixture(scope="module")
def recorded() -> pa.Table:
    return arrow(events())


@pytest.fixture(scope="module")
def figures(spark: SparkSession, recorded: pa.Table) -> Figures:
    return aggregate.figures(spark.createDataFrame(recorded), "/data", quarantined=4)


@pytest.fixture(scope="module")
def database(recorded: pa.Table, figures: Figures) -> duckdb.DuckDBPyConnection:
    return queries.connected(recorded, figures.step_s)


def flat(rows: Sequence[Sequence[object]]) -> list[object]:
    return [value for row in rows for value in row]


def test_entities_and_total(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    leaders = [ReportedClient(*row) for row in database.execute(queries.LEADERS).fetchall()]
    assert [use.who for use in figures.entities] == [*leaders, REST]
    assert len(leaders) == ENTITIES_MAX
    found = database.execute(queries.ENTITIES).fetchall()
    assert flat([use[1:8] for use in figures.entities]) == pytest.approx(
        flat([row[1:] for row in found]), rel=CLOSE
    )
    (total,) = database.execute(queries.TOTAL).fetchall()
    assert figures.total[1:8] == pytest.approx(total, rel=CLOSE)
    assert figures.total.bytes_out > 0
    assert (figures.entity_count,) == database.execute(queries.ENTITY_COUNT).fetchone()


def test_usage_over_time(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    found = database.execute(queries.POINTS.format(series=SERIES_MAX)).fetchall()
    clients = [*(use.who for use in figures.entities[:SERIES_MAX]), REST]
    mine = [(p.start_s, clients.index(p.who), *p[2:]) for p in figures.points]
    assert len(mine) == len(found) > 300
    assert flat(mine) == pytest.approx(flat(found), rel=CLOSE)


def test_latencies(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    by_slot = database.execute(queries.LATENCIES.format(by="start_s")).fetchall()
    assert flat(list(figures.latency)) == pytest.approx(flat(by_slot), rel=0.02)
    by_rank = database.execute(queries.LATENCIES.format(by="rank")).fetchall()
    assert flat([use[8:] for use in figures.entities]) == pytest.approx(
        flat([row[1:] for row in by_rank]), rel=0.02
    )
    (whole,) = database.execute(queries.LATENCIES.format(by="1")).fetchall()
    assert figures.total[8:] == pytest.approx(whole[1:], rel=0.02)


def test_connections(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    found = database.execute(queries.CONNECTIONS).fetchall()
    assert flat(list(figures.connections)) == pytest.approx(flat(found), rel=CLOSE)
    assert len(found) > 60


def test_coverage(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    found = database.execute(queries.COVERAGE).fetchall()
    cover = figures.coverage
    assert [tuple(each) for each in cover.brokers] == found[:BROKERS_MAX]
    assert (cover.events, cover.dropped) == (sum(r[3] for r in found), sum(r[4] for r in found))
    assert (cover.first_us, cover.last_us) == (min(r[1] for r in found), max(r[2] for r in found))
    assert (cover.broker_count, cover.sample) == (len(found), min(r[5] for r in found))


def test_throttle_map(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    found = database.execute(queries.HEAT.format(step_s=figures.step_s)).fetchall()
    mine = [(cell.start_s, *cell.who, cell.throttled, cell.throttle_ms) for cell in figures.heat]
    assert [row[:3] for row in mine] == [row[:3] for row in found]
    assert flat([row[3:] for row in mine]) == pytest.approx(
        flat([row[3:] for row in found]), rel=CLOSE
    )


def test_page_shows_the_figures(figures: Figures, database: duckdb.DuckDBPyConnection) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", page(figures)).split())
    (total,) = database.execute(queries.TOTAL).fetchall()
    requests, bytes_in, bytes_out = total[:3]
    for tile in (
        f"Requests {formats.count(requests)}",
        f"Bytes in {formats.amount(bytes_in, 'B')}",
        f"Bytes out {formats.amount(bytes_out, 'B')}",
        f"Throttled {formats.share(total[4] / requests)}",
        f"Errors {formats.share(total[6] / requests)}",
    ):
        assert tile in text
    for row in database.execute(queries.ENTITIES).fetchall():
        shown = " ".join(
            (formats.count(row[1]), formats.amount(row[2], "B"), formats.amount(row[3], "B"),
             formats.share(row[5] / row[1]), formats.duration(row[6]) if row[6] else "-")
        )  # fmt: skip
        assert shown in text


def test_bytes_out_of_fetches_are_those_of_usage(
    spark: SparkSession, recorded: pa.Table, database: duckdb.DuckDBPyConnection
) -> None:
    rows = usage(spark.createDataFrame(recorded), 3600).where("level = 'broker'").collect()
    used = sum(row.used for row in rows if row.quota == "consumer_byte_rate")
    # The quota also counts the length prefix of each response that was sent.
    (sent,) = database.execute(
        "select sum(weight * (sent + 4)) from request where api_key = 1 and not exempt"
        " and throttle_ms = 0 and response_bytes is not null"
    ).fetchall()[0]
    assert used == pytest.approx(sent, rel=1e-6)
