"""Usage as one DuckDB query, the reference in tests and the competitor in benchmarks."""

from __future__ import annotations

from typing import Final

ORACLE: Final = """
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
