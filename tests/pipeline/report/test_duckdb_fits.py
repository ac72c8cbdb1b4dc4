"""Every figure of the section on recommended quotas, and `recommend`'s values, also by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest

from minibroker.broker.quotas.command_lines import QuotaFile, parse, render
from minibroker.pipeline.activity_table import scan_frame
from minibroker.pipeline.quota_amounts import CLIENT, USER, USER_AND_CLIENT, amount
from minibroker.pipeline.recommend import Policy, Recommendation, observed, quota_lines, recommend
from minibroker.pipeline.report.aggregate import fits
from minibroker.pipeline.report.figures import FITS_MAX, Fit
from minibroker.pipeline.report.page import page
from tests.pipeline.duckdb_queries import rates_query
from tests.pipeline.report.sample_figures import figures
from tests.pipeline.sample_events import arrow, many, parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEVELS = {USER: ("user",), CLIENT: ("client_id",), USER_AND_CLIENT: ("user", "client_id")}
POLICY = Policy(
    busy_min=40,
    at_least={"request_percentage": 0.5, "connection_creation_rate": 0.001},
    at_most={"producer_byte_rate": 400_000},
)
EVENTS = list(many(6_000, seed=11))

RATES = """
create table seen as select p99.*, p50.usual as p50
from ({p99}) as p99 join ({p50}) as p50 on p99.broker = p50.broker and p99.quota = p50.quota
  and p99.user is not distinct from p50.user and p99.client_id is not distinct from p50.client_id
  and p99.ip is not distinct from p50.ip
"""
VALUES = """
with entity as (
  select quota, user, client_id, ip, max(busy_s) as busy_s, 1.25 * max(usual) as wanted,
    max(most) as most, sum(throttled) as throttled,
    case quota when 'producer_byte_rate' then 65536 when 'consumer_byte_rate' then 65536
      when 'request_percentage' then 0.5 when 'controller_mutation_rate' then 1 else 0.001 end
      as least,
    case quota when 'producer_byte_rate' then 400000 else 1e300 end as greatest
  from seen group by quota, user, client_id, ip)
select quota, user, client_id, ip, busy_s, wanted / 1.25, most, throttled,
  least(greatest(wanted, least), greatest)
from entity where busy_s >= 40 and wanted > least
"""
FITS = """
with highest as (
  select user, client_id, ip, quota, max(p50) as p50, max(usual) as p99, max(most) as most
  from seen group by user, client_id, ip, quota),
looked_at as (
  select 'producer_byte_rate' as quota, time_us, sequence, unnest(produce) from events
  union all select 'consumer_byte_rate', time_us, sequence, unnest("fetch") from events
  union all select 'request_percentage', time_us, sequence, unnest(request) from events
  union all select 'controller_mutation_rate', time_us, sequence, unnest(mutation) from events),
in_force as (
  select quota, user, client_id, arg_max(bound, (time_us, sequence)) as bound
  from looked_at where bound is not null group by quota, user, client_id)
select entity, wanted.quota, p50, p99, most, bound, recommended
from wanted join highest on wanted.quota = highest.quota
  and wanted.user = coalesce(highest.user, '') and wanted.ip = coalesce(highest.ip, '')
  and wanted.client_id = coalesce(highest.client_id, '')
left join in_force on in_force.quota = wanted.quota and in_force.user = wanted.user
  and in_force.client_id = wanted.client_id
order by p99 / recommended desc, entity, wanted.quota
"""


def database(path: Path, level: str) -> duckdb.DuckDBPyConnection:
    """DuckDB with a table of rates by broker and entity, named like ``observed``."""
    found = duckdb.connect(config={"threads": 1})
    query = rates_query(*LEVELS[level])
    parts = {name: query.replace("$share", share).replace("$path", f"'{path}'")
             for name, share in (("p99", "0.99"), ("p50", "0.5"))}  # fmt: skip
    found.execute(RATES.format(**parts))
    found.register("events", arrow(EVENTS))
    return found


class Compared(NamedTuple):
    """A recommendation, its quota file, and the comparison of that file with the usage."""

    level: str
    recommendation: Recommendation
    file: QuotaFile
    fits: tuple[Fit, ...]
    fit_count: int
    connected: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module", params=LEVELS)
def compared(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Compared:
    level = request.param
    path = parquet(tmp_path_factory.mktemp("fits") / "events.parquet", EVENTS)
    activity = spark.read.parquet(str(path))
    scan = partial(scan_frame, activity)
    found = recommend(observed(scan, level, POLICY, len(EVENTS)), level, POLICY)
    file = parse(render(quota_lines(found), []), "quotas")
    connected = database(path, level)
    connected.register("wanted", pa.Table.from_pylist(list(rows_of(file))))
    return Compared(level, found, file, *fits(activity, file, scan, len(EVENTS)), connected)


def rows_of(file: QuotaFile) -> Iterator[dict[str, Any]]:
    """A row for each quota of a named entity, as it is written in the file."""
    for line in file.lines:
        names = dict(zip(line.entities.types, line.entities.names, strict=True))
        if not all(names.values()):
            continue
        user, client, ip = (names.get(kind, "") for kind in ("users", "clients", "ips"))
        called = [f"user {user}"] * bool(user) + [f"client {client}"] * bool(client)
        for quota, value in line.additions.items():
            yield {
                "entity": f"address {ip}" if ip else ", ".join(called),
                "user": user, "client_id": client, "ip": ip, "quota": quota,
                "recommended": float(value),
            }  # fmt: skip


def test_recommended_values(compared: Compared) -> None:
    ours = {
        each[:4]: (each.busy_s, each.usual, each.most, each.throttled, each.value)
        for each in compared.recommendation.decided
        if not each.is_default
    }
    theirs = {row[:4]: row[4:] for row in compared.connected.execute(VALUES).fetchall()}
    assert ours.keys() == theirs.keys()
    assert len({quota for quota, *_ in ours}) >= 4
    for key, decided in ours.items():
        assert decided == pytest.approx(theirs[key], rel=1e-9), key


def test_fits_of_recommended_quotas(compared: Compared) -> None:
    theirs = compared.connected.execute(FITS).fetchall()
    assert compared.fit_count == len(list(rows_of(compared.file)))
    assert compared.fit_count >= len(compared.fits) == min(len(theirs), FITS_MAX)
    for fit, row in zip(compared.fits, theirs, strict=False):
        assert (fit.entity, fit.key) == row[:2]
        assert (fit.p50, fit.p99, fit.most, fit.recommended) == pytest.approx(
            (*row[2:5], row[6]), rel=1e-9
        )
        assert fit.in_force == row[5]
    assert any(fit.in_force is not None for fit in compared.fits)


def test_page_shows_fits(compared: Compared) -> None:
    made = replace(figures(), fits=compared.fits, fit_count=compared.fit_count)
    text = " ".join(re.sub(r"<[^>]*>", " ", page(made)).split())
    rows = compared.connected.execute(FITS).fetchall()[:FITS_MAX]
    for entity, quota, p50, p99, most, bound, value in rows:
        amounts = [amount(quota, each) for each in (p50, p99, most)]
        in_force = "-" if bound is None else amount(quota, bound)
        assert " ".join((entity, quota, *amounts, in_force, amount(quota, value))) in text
    assert f"Recommended: {len(list(rows_of(compared.file)))} quotas" in text
