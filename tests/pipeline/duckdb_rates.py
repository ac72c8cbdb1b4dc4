"""Rates of entities and addresses as one DuckDB query, the reference in tests and the competitor in
benchmarks.
"""

from __future__ import annotations

from typing import Final

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


ORACLE: Final = rates_query("user")
