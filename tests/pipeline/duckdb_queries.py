"""Figures of the jobs as DuckDB queries: the reference in tests, the competitor in benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

# Usage -------------------------------------------------------------------------------------------

USAGE: Final = """
with event as (
  select *, time_us - time_us % $every as start_us, total_ns // 1000 as us
  from read_parquet($path)),
named as (
  select *, case when us < 1000 then us else
    cast(round(us / pow(10, length(us::varchar) - 3)) * pow(10, length(us::varchar) - 3) as bigint)
    end as latency from event),
per as (
  select *, 'producer_byte_rate' as quota, request_bytes as amount, produce as look
    from named where api_key = 0
  union all select *, 'consumer_byte_rate',
    case when throttle_ms > 0 then 0 else response_bytes + 4 end, "fetch"
    from named where api_key = 1 and not exempt
  union all select *, 'request_percentage', checked_ns + late_ns, request
    from named where kind = 'request' and not exempt
  union all select *, 'request_percentage', 0, null from named where kind = 'dropped'
  union all select *, 'controller_mutation_rate', mutations - mutations_refused, mutation
    from named where mutations is not null
  union all select *, 'connection_creation_rate', (happened = 'accepted')::int, null
    from named where kind = 'connection'),
placed as (
  select 'broker' as level, null as u, null as c, null as i, * from per
  union all select 'user', user, null, null, * from per where user is not null
  union all select 'client', null, client_id, null, * from per where client_id <> ''
  union all select 'user+client', user, client_id, null, * from per where client_id <> ''
  union all select 'ip', null, null, ip, * from per where kind = 'connection'),
known as (
  select *, coalesce(look.throttle_ms, if(happened = 'held', delay_ms, 0), 0) as held,
    coalesce(look.user <> '', false) = (level in ('user', 'user+client')) and
    coalesce(look.client_id <> '', false) = (level in ('client', 'user+client')) and
    level not in ('broker', 'ip') as mine
  from placed)
select broker, level, u as user, c as client_id, i as ip, quota, start_us,
  coalesce(sum(round(amount / sample)), 0)
    / case when quota = 'request_percentage' then 1e7 else 1 end as used,
  coalesce(max(look.rate) filter (mine and quota <> 'controller_mutation_rate'), -1) as rate_max,
  coalesce(max(look.bound) filter (mine), -1) as bound,
  coalesce(sum(round(1e6 / sample)) filter (coalesce(happened, 'accepted') = 'accepted'), 0) / 1e6
    as requests,
  coalesce(sum(round(1e6 / sample)) filter (error_code <> 0 or happened = 'refused'), 0) / 1e6
    as errors,
  coalesce(sum(round(1e6 / sample)) filter (held > 0), 0) / 1e6 as throttled,
  coalesce(sum(round(held / sample)), 0) as throttle_ms,
  max(held) as throttle_max_ms,
  coalesce(quantile_cont(latency, 0.5) / 1000, -1) as latency_p50_ms,
  coalesce(quantile_cont(latency, 0.95) / 1000, -1) as latency_p95_ms,
  coalesce(quantile_cont(latency, 0.99) / 1000, -1) as latency_p99_ms,
  count(sample) as events,
  (select coalesce(sum(dropped), 0) from event as e
    where e.broker = known.broker and e.start_us = known.start_us) as dropped
from known group by broker, level, u, c, i, quota, start_us
"""
"""``$every`` are microseconds, ``$path`` are files."""


# Rates -------------------------------------------------------------------------------------------

_RATES: Final = """
with event as (
  select *, time_us // 1000000 as second, {user} as u, {client} as c,
    {named} as named from read_parquet($path) where sample > 0),
part as (
  select broker, u, c, null as i, named, sample, second, 'producer_byte_rate' as quota,
    request_bytes as amount, produce.throttle_ms as held from event where api_key = 0
  union all select broker, u, c, null, named, sample, second, 'consumer_byte_rate',
    case when throttle_ms > 0 then 0 else response_bytes + 4 end, "fetch".throttle_ms
    from event where api_key = 1 and not exempt
  union all select broker, u, c, null, named, sample, second, 'request_percentage',
    checked_ns + late_ns, request.throttle_ms from event where kind = 'request' and not exempt
  union all select broker, u, c, null, named, sample, second, 'controller_mutation_rate',
    mutations - mutations_refused, mutation.throttle_ms from event where mutations is not null
  union all select broker, null, null, ip, true, sample, second, 'connection_creation_rate',
    (happened = 'accepted')::int, if(happened = 'held', delay_ms, 0)
    from event where kind = 'connection'),
summed as (
  select broker, u, c, i, quota, second, sum(round(amount / sample)) as amount,
    coalesce(sum(round(1e6 / sample)) filter (held > 0), 0) / 1e6 as throttled
  from part where named group by all
  having sum(round(amount / sample)) > 0 or throttled > 0),
averaged as (
  select *, greatest(
    sum(amount) over (entity range between 9 preceding and current row) / 10,
    sum(amount) over (entity range between 10 preceding and current row) / 11) as rate,
    if(quota = 'request_percentage', 1e7, 1) as unit
  from summed window entity as (partition by broker, u, c, i, quota order by second))
select broker, u as user, c as client_id, i as ip, quota, count(*) as busy_s,
  quantile_cont(rate, $share) / any_value(unit) as usual, max(rate) / any_value(unit) as most,
  sum(throttled) as throttled
from averaged group by broker, u, c, i, quota having max(rate) > 0
"""


def rates_query(*names: str) -> str:
    """The rates of entities with these ``names``, ``user`` or ``client_id``, and of addresses.

    ``$path`` are files, ``$share`` is the percentile as a fraction.
    """
    of_user, of_client = "user" in names, "client_id" in names
    named = " and ".join(f"coalesce({name}, '') <> ''" for name in names)
    return _RATES.format(
        user="user" if of_user else "null", client="client_id" if of_client else "null", named=named
    )


USER_RATES: Final = rates_query("user")


# Reports -----------------------------------------------------------------------------------------

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
