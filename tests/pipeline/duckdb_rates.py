"""Rates of users and addresses as one DuckDB query, the reference in tests and the competitor in
benchmarks.
"""

from __future__ import annotations

from typing import Final

ORACLE: Final = """
with event as (select *, time_us // 1000000 as second from read_parquet($path) where sample > 0),
part as (
  select broker, user as u, null as i, sample, second, 'producer_byte_rate' as quota,
    request_bytes as amount, produce.throttle_ms as held from event where api_key = 0
  union all select broker, user, null, sample, second, 'consumer_byte_rate',
    case when throttle_ms > 0 then 0 else response_bytes + 4 end, "fetch".throttle_ms
    from event where api_key = 1 and not exempt
  union all select broker, user, null, sample, second, 'request_percentage',
    checked_ns + late_ns, request.throttle_ms from event where kind = 'request' and not exempt
  union all select broker, user, null, sample, second, 'controller_mutation_rate',
    mutations - mutations_refused, mutation.throttle_ms from event where mutations is not null
  union all select broker, null, ip, sample, second, 'connection_creation_rate',
    (happened = 'accepted')::int, if(happened = 'held', delay_ms, 0)
    from event where kind = 'connection'),
summed as (
  select broker, u, i, quota, second, sum(round(amount / sample)) as amount,
    coalesce(sum(round(1e6 / sample)) filter (held > 0), 0) / 1e6 as throttled
  from part where u is not null or i is not null group by all
  having sum(round(amount / sample)) > 0 or throttled > 0),
averaged as (
  select *, greatest(
    sum(amount) over (entity range between 9 preceding and current row) / 10,
    sum(amount) over (entity range between 10 preceding and current row) / 11) as rate,
    if(quota = 'request_percentage', 1e7, 1) as unit
  from summed window entity as (partition by broker, u, i, quota order by second))
select broker, u as user, i as ip, quota, count(*) as busy_s,
  quantile_cont(rate, $share) / any_value(unit) as usual, max(rate) / any_value(unit) as most,
  sum(throttled) as throttled
from averaged group by broker, u, i, quota having max(rate) > 0
"""
"""``$path`` are files, ``$share`` is the percentile as a fraction."""
