"""A report's figures as DuckDB queries: the reference in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

Who = tuple[str, str]

_EVENTS: Final = """
create view event as select *, coalesce(user, '') as u, coalesce(client_id, '') as c,
  1 / sample as weight, time_us // 1000000 // {step_s} * {step_s} as start_s,
  case when api_key = 1 and not exempt and throttle_ms > 0 then 0
    else coalesce(response_bytes, 0) end as sent
from events;
create view request as select *, ({rank}) as rank from event where kind = 'request';
"""

_SUMS: Final = """
  sum(weight) as requests, sum(weight * coalesce(request_bytes, 0)) as bytes_in,
  sum(weight * sent) as bytes_out, sum(weight * (network_ns + io_ns)) as worked_ns,
  coalesce(sum(weight) filter (throttle_ms > 0), 0) as throttled,
  sum(weight * throttle_ms) as throttle_ms,
  coalesce(sum(weight) filter (error_code <> 0), 0) as errors
"""

LEADERS: Final = """
select u, c from request group by u, c order by sum(weight * (network_ns + io_ns)) desc, u, c
limit 25
"""
ENTITIES: Final = f"select rank, {_SUMS} from request group by rank order by rank"
TOTAL: Final = f"select {_SUMS} from request"
ENTITY_COUNT: Final = "select count(*) from (select distinct u, c from request)"
POINTS: Final = """
select start_s, least(rank, {series}) as shown, sum(weight), sum(weight * request_bytes),
  sum(weight * sent), sum(weight * (network_ns + io_ns))
from request group by all order by start_s, shown
"""
LATENCIES: Final = """
with taken as (
  select {by} as part, total_ns, sum(weight) over (partition by {by} order by total_ns) as reached,
    sum(weight) over (partition by {by}) as whole
  from request where total_ns is not null)
select part, min(total_ns) filter (reached >= 0.5 * whole) / 1e6,
  min(total_ns) filter (reached >= 0.95 * whole) / 1e6,
  min(total_ns) filter (reached >= 0.99 * whole) / 1e6
from taken group by part order by part
"""
CONNECTIONS: Final = """
select start_s, coalesce(sum(weight) filter (happened = 'accepted'), 0),
  coalesce(sum(weight) filter (happened in ('delayed', 'held')), 0),
  coalesce(sum(weight) filter (happened = 'refused'), 0),
  coalesce(sum(weight) filter (happened = 'closed'), 0)
from event where kind = 'connection' group by start_s order by start_s
"""
COVERAGE: Final = """
select broker, min(time_us), max(time_us), count(*) filter (kind <> 'dropped'),
  coalesce(sum(dropped), 0), coalesce(min(sample), 1)
from event group by broker order by 4 desc, broker
"""
HEAT: Final = """
with longest as (
  select u, c, row_number() over (order by sum(weight * throttle_ms) desc, u, c) as place
  from request where throttle_ms > 0 group by u, c qualify place <= 20),
last as (select max(time_us) // 1000000 // {step_s} * {step_s} as s from event),
spans as (
  select u, c, weight, place, time_us // 1000 as begin_ms, begin_ms + throttle_ms as end_ms,
    unnest(generate_series(start_s, (end_ms - 1) // 1000 // {step_s} * {step_s}, {step_s})) as slot
  from request join longest using (u, c) where throttle_ms > 0)
select slot, u, c, sum(weight),
  sum(weight * (least(end_ms, (slot + {step_s}) * 1000) - greatest(begin_ms, slot * 1000)))
from spans, last where slot <= last.s group by slot, u, c, place order by place, slot
"""


def connected(events: pa.Table, step_s: int) -> duckdb.DuckDBPyConnection:
    """DuckDB with the views of ``events``; ranks are those of the leaders."""
    database = duckdb.connect()
    database.register("events", events)
    database.execute(_EVENTS.format(step_s=step_s, rank="0"))
    found: Sequence[Any] = database.execute(LEADERS).fetchall()
    cases = " ".join(f"when u = '{u}' and c = '{c}' then {n}" for n, (u, c) in enumerate(found))
    database.execute("drop view request; drop view event")
    database.execute(_EVENTS.format(step_s=step_s, rank=f"case {cases} else {len(found)} end"))
    return database
