"""Recommends a quota for each entity from its usage, as lines of a quota file with their reasons.

Owns the measured rates, the rules that derive a quota from them, rounding, scaling quotas down to a
broker's capacity, and the sentences; it must never write a file or contact a broker. Invariant: a
rate is the average that the broker itself would have computed, and because each broker enforces
quotas for itself, a quota fits the broker where the entity needed most. Every figure from which a
quota is derived is in the comment above its line. Kafka leaves this to its operators.

A broker averages over ten to eleven seconds unless its ``quota.window.num`` and
``quota.window.size.seconds`` differ (``controller.quota.window.…`` for changes of topics), so the
rate at a second is the average of the last ten or eleven, whichever is higher. Only busy seconds
count, those with a request, because nothing is throttled in others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.broker.quotas.command_lines import CLIENTS, IPS, USERS, Entities, QuotaLine
from minibroker.broker.quotas.types import CONNECTION_CREATION_RATE, integer_max
from minibroker.broker.settings import (
    CONTROLLER_QUOTA_WINDOW_NUM,
    CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS,
    NUM_IO_THREADS,
    NUM_NETWORK_THREADS,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
)
from minibroker.pipeline import busy_rates
from minibroker.pipeline.quota_amounts import (
    CLIENT,
    FETCH,
    IP,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    USER_AND_CLIENT,
    amount,
)
from minibroker.pipeline.report import formats

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from minibroker.pipeline.activity_table import Scan

ENTITIES_MAX: Final = 20_000
"""Entities per quota with a line of their own: those that use most. All others share the default.
"""

AT_LEAST: Final[Mapping[str, float]] = {
    PRODUCE: 65_536,
    FETCH: 65_536,
    REQUEST: 1,
    MUTATION: 1,
    CONNECTION_CREATION_RATE: 10,
}
"""The smallest quotas ever recommended; lower ones would only be an obstacle."""


@dataclass(frozen=True)
class Policy:
    """The rules that derive a quota from usage."""

    percentile: float = 99
    """The percentile of the rates in busy seconds to which the headroom is applied."""
    headroom: float = 1.25
    busy_min: int = 60
    """Busy seconds that an entity needs for a line of its own."""
    default_busy_min: int = 10
    """Busy seconds that an entity needs for a default to be derived from it."""
    at_least: Mapping[str, float] = field(default_factory=dict)
    """Overrides ``AT_LEAST``."""
    at_most: Mapping[str, float] = field(default_factory=dict)
    workers: int = NUM_NETWORK_THREADS.default + NUM_IO_THREADS.default
    """Network and I/O threads of a broker, a hundred percent each."""
    bytes_per_second: float | None = None
    """A broker's network bandwidth in each direction; None if unknown."""

    window_num: int = QUOTA_WINDOW_NUM.default
    window_s: int = QUOTA_WINDOW_SIZE_SECONDS.default
    """The number and length of a broker's quota samples."""
    mutation_window_num: int = CONTROLLER_QUOTA_WINDOW_NUM.default
    mutation_window_s: int = CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS.default
    """The same for changes of topics."""

    def windows_s(self, quota: str) -> tuple[int, int]:
        """Minimum and maximum length of the broker's averaging window."""
        number, each_s = self.window_num, self.window_s
        if quota == MUTATION:
            number, each_s = self.mutation_window_num, self.mutation_window_s
        return max(1, (number - 1) * each_s), number * each_s

    def least(self, quota: str) -> float:
        return self.at_least.get(quota, AT_LEAST[quota])

    def capacity(self, quota: str) -> float | None:
        """Capacity of one broker; None if unknown."""
        if quota == REQUEST:
            return self.workers * 100.0
        return self.bytes_per_second if quota in (PRODUCE, FETCH) else None


class QuotaDecision(NamedTuple):
    """The quota of one entity, or a default, and the figures that justify it. Names that the level
    doesn't have are None.
    """

    quota: str
    user: str | None
    client_id: str | None
    ip: str | None
    is_default: bool
    entities: int
    """Number of entities for which it applies; the other figures are those of the largest one."""
    busy_s: int
    """Seconds with a request, at the broker that had most."""
    usual: float
    """The rate at the policy's percentile."""
    most: float
    throttled: float
    """Requests that this quota throttled, at all brokers."""
    value: float
    """The quota before it is rounded or scaled to the broker's capacity."""


class BrokerNeed(NamedTuple):
    """The total need of all entities at the broker where it is highest: their quotas, and for those
    that share the default their usage with headroom.
    """

    quota: str
    needed: float
    entities: int


class Recommendation(NamedTuple):
    """The contents of the quota file and the summary."""

    level: str
    decided: tuple[QuotaDecision, ...]
    together: Mapping[str, BrokerNeed]
    policy: Policy
    omitted: tuple[QuotaDecision, ...] = ()
    """Defaults that are not set, because no entity was busy for long enough to derive them."""


# From events -----------------------------------------------------------------------------------


def observed(scan: Scan, level: str, policy: Policy, count: int) -> DataFrame:
    """The rates of each entity at each broker in ``count`` events.

    ``level`` is a level of users and clients; rates of addresses are always included.
    """
    found = rates(scan, level, policy, count, [policy.percentile])
    return found.withColumn("usual", found.percentiles[0]).drop("percentiles")


def rates(
    scan: Scan, level: str, policy: Policy, count: int, percentiles: Sequence[float]
) -> DataFrame:
    """Like `observed`, with several percentiles; columns as in `busy_rates.RATES`."""
    parts = busy_rates.part_count(count)
    windows = {quota: policy.windows_s(quota) for quota in AT_LEAST}

    def averaged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return busy_rates.rates_of_parts(batches, windows, percentiles)

    series = scan(
        partial(busy_rates.serialized_series, level=level, parts=parts), busy_rates.PARTS_DDL
    )
    from pyspark.sql.pandas.types import from_arrow_schema

    in_parts = series.repartition("part").sortWithinPartitions("part")
    return in_parts.mapInArrow(averaged, from_arrow_schema(busy_rates.RATES))


def valued(observed: DataFrame, policy: Policy) -> DataFrame:
    """The value of each entity's quota; ``own`` is false if the entity shares the default."""
    writable = "concat(coalesce(user, ''), coalesce(client_id, '')) not rlike '[\\\\n\\\\r\\\\x00]'"
    return observed.sparkSession.sql(
        f"""
        with entity as (
          select quota, user, client_id, ip, max(busy_s) as busy_s, max(usual) as usual,
            max(most) as most, sum(throttled) as throttled
          from {{observed}} group by quota, user, client_id, ip),
        wanted as (
          select *, usual * {policy.headroom} as wanted, {_by_quota(policy.least)} as bottom,
            {_by_quota(policy.at_most.get)} as top,
            row_number() over (
              partition by quota order by usual desc, user, client_id, ip) as place
          from entity),
        owning as (
          select *, busy_s >= {policy.busy_min} and wanted > bottom and place <= {ENTITIES_MAX}
            and {writable} as own
          from wanted),
        shared as (
          select *, max(if(own, null, wanted)) over (partition by quota) as of_others from owning)
        select *, least(greatest(if(own, wanted, of_others), bottom), top) as value from shared
        """,
        observed=observed,
    )


def _by_quota(value: Callable[[str], float | None]) -> str:
    """SQL for a number by quota; null where it is None."""
    cases = " ".join(
        f"when '{quota}' then {float(found)!r}"
        for quota in AT_LEAST
        if (found := value(quota)) is not None
    )
    return f"case quota {cases} end" if cases else "cast(null as double)"


def recommend(observed: DataFrame, level: str, policy: Policy) -> Recommendation:
    """Recommend quotas for all entities in the result of `observed`."""
    sql = observed.sparkSession.sql
    values = valued(observed, policy)
    with _computed_once("seen", observed), _computed_once("valued", values):
        own = sql(
            """
            select quota, user, client_id, ip, false, 1, busy_s, usual, most, throttled, value
            from valued where own order by quota, value desc, user, client_id, ip
            """
        )
        # The default is what the largest other entity needs, if it was busy for long enough.
        default = sql(
            f"""
            with other as (
              select quota, count(*) as entities, sum(throttled) as throttled,
                max_by(struct(*), struct(usual, user, client_id, ip))
                  filter (where busy_s >= {policy.default_busy_min}) as top
              from valued where not own group by quota)
            select quota, top.user, top.client_id, top.ip, true, coalesce(entities, 0),
              coalesce(top.busy_s, 0), coalesce(top.usual, 0), coalesce(top.most, 0),
              coalesce(other.throttled, 0), coalesce(top.value, {_by_quota(policy.least)})
            from (select distinct quota from valued) left join other using (quota)
            order by quota
            """
        )
        together = sql(
            f"""
            with broker as (
              select broker, seen.quota, count(*) as entities,
                sum(if(own, value, least(seen.usual * {policy.headroom}, value))) as needed
              from seen join valued
                on seen.quota = valued.quota and seen.user <=> valued.user
                and seen.client_id <=> valued.client_id and seen.ip <=> valued.ip
              group by broker, seen.quota)
            select quota, max(needed), max_by(entities, needed) from broker group by quota
            """
        )
        defaults = [QuotaDecision(*row) for row in default.collect()]
        owners = [QuotaDecision(*row) for row in own.collect()]
        sums = [BrokerNeed(*row) for row in together.collect()]
    omitted = tuple(each for each in defaults if each.busy_s < policy.default_busy_min)
    decided = (*owners, *(each for each in defaults if each not in omitted))
    return Recommendation(level, decided, {each.quota: each for each in sums}, policy, omitted)


@contextmanager
def _computed_once(name: str, frame: DataFrame) -> Iterator[None]:
    """Keep what ``frame`` computes, as a view.

    A frame that is passed to ``sql`` as an argument afterwards is not kept: Spark makes a view for
    that statement, and forgets the rows together with it.
    """
    frame.persist()
    frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        frame.sparkSession.catalog.dropTempView(name)
        frame.unpersist()


def level_of_clients(events: DataFrame) -> str:
    """The user level if any user authenticated, else the client level."""
    named = events.where(f"user <> '{formats.ANONYMOUS}'").select("user").first()
    return CLIENT if named is None else USER


# The quota file ----------------------------------------------------------------------------------

DIGITS: Final = 3
"""Significant digits of a quota, which is rounded up."""

TYPES: Final = {
    USER: (USERS,),
    CLIENT: (CLIENTS,),
    USER_AND_CLIENT: (USERS, CLIENTS),
    IP: (IPS,),
}
"""Entity types of each level, as in kafka-configs.sh."""


def quota_lines(found: Recommendation) -> list[QuotaLine]:
    """The lines of the quota file, defaults last: one per entity, with a reason for each quota."""
    lines: dict[Entities, QuotaLine] = {}
    for each in sorted(found.decided, key=lambda each: each.is_default):
        who = _entities(found.level, each)
        value, reason = decision(each, found.together[each.quota], found.policy)
        line = lines.get(who, QuotaLine(who, {}))
        lines[who] = line._replace(
            additions={**line.additions, each.quota: value}, reason=(*line.reason, reason)
        )
    return list(lines.values())


def _entities(level: str, decided: QuotaDecision) -> Entities:
    if decided.quota == CONNECTION_CREATION_RATE:
        level = IP
    names = {USERS: decided.user, CLIENTS: decided.client_id, IPS: decided.ip}
    types = TYPES[level]
    return Entities(types, tuple("" if decided.is_default else names[kind] or "" for kind in types))


def decision(decided: QuotaDecision, together: BrokerNeed, policy: Policy) -> tuple[float, str]:
    """The rounded quota, and its reason."""
    share = _share(together, policy)
    value = rounded_to_set(decided.quota, decided.value * share, policy, up=share == 1)
    said = [f"{decided.quota} {amount(decided.quota, value)}: {_used(decided, policy)}"]
    wanted = decided.usual * policy.headroom
    if decided.value > wanted:
        said.append(f"{amount(decided.quota, decided.value)} is the minimum for any entity")
    elif decided.value < wanted:
        said.append(f"{amount(decided.quota, decided.value)} is the maximum for any entity")
    if share < 1:
        capacity = policy.capacity(decided.quota)
        assert capacity is not None
        said.append(
            f"scaled to {formats.share(share)}, because {formats.count(together.entities)} at one"
            f" broker need {amount(decided.quota, together.needed)} together, and its capacity is"
            f" {amount(decided.quota, capacity)}"
        )
    if decided.throttled:
        one = "connection" if decided.quota == CONNECTION_CREATION_RATE else "request"
        were = "was" if decided.throttled == 1 else "were"
        said.append(
            f"{formats.many(decided.throttled, one)} {were} throttled, so the demand may be"
            " higher than the usage"
        )
    return value, "; ".join(said)


def _used(decided: QuotaDecision, policy: Policy) -> str:
    more = (
        f"{formats.share(policy.headroom - 1)} headroom" if policy.headroom > 1 else "no headroom"
    )
    usual = (
        f"at most {amount(decided.quota, decided.usual)} in {formats.figure(policy.percentile)} %"
        f" of {formats.many(decided.busy_s, 'busy second')}"
        f" (maximum {amount(decided.quota, decided.most)})"
    )
    if not decided.is_default:
        return f"{usual}, plus {more}"
    if not decided.entities:
        return "for entities that were not recorded"
    names = formats.party(decided.user, decided.client_id) if decided.ip is None else decided.ip
    return (
        f"for {formats.count(decided.entities)} entities with too little usage for a quota of their"
        f" own, the largest of which is {formats.visible(names, 60)}: {usual}, plus {more}"
    )


def _share(together: BrokerNeed, policy: Policy) -> float:
    """The factor that scales quotas down so that their sum fits the broker's capacity."""
    capacity = policy.capacity(together.quota)
    if capacity is None or together.needed <= capacity:
        return 1
    return capacity / together.needed


def rounded_to_set(quota: str, value: float, policy: Policy, *, up: bool) -> float:
    """Round to a few digits, except for the policy's own minimum and maximum."""
    if value in (policy.least(quota), policy.at_most.get(quota)):
        return value
    exact = Decimal(value)
    last = exact.adjusted() - (DIGITS - 1)
    if integer_max(quota) is not None:
        last = max(last, 0)
    digits = exact.scaleb(-last).to_integral_value(ROUND_CEILING if up else ROUND_FLOOR)
    # A quota of zero would be unlimited for some configs, and block clients for others.
    found = float(max(digits, Decimal(1)).scaleb(last))
    return min(found, policy.at_most.get(quota, found))


def omission(omitted: QuotaDecision, policy: Policy) -> str:
    """Explain why a quota has no default."""
    return (
        f"No default {omitted.quota}: it would apply to every other client, and none of the"
        f" {formats.count(omitted.entities)} seen was busy for"
        f" {formats.many(policy.default_busy_min, 'second')}."
    )


def head(found: Recommendation, source: str) -> list[str]:
    """The comment at the beginning of the file."""
    percentile, headroom = (
        formats.figure(found.policy.percentile),
        formats.figure(found.policy.headroom),
    )
    window = formats.many(found.policy.windows_s(PRODUCE)[0], "second")
    changes = formats.many(found.policy.windows_s(MUTATION)[0], "second")
    if changes != window:
        window += f", controller mutations over {changes}"
    return [
        f"Quotas by `minibroker pipeline recommend` from {source}.",
        f"Each quota is percentile {percentile} of the rates in busy seconds, times {headroom},",
        f"at the broker where it was highest. Each broker measures for itself, over {window}.",
        "Quotas set at a more specific level take precedence over these.",
        "Apply: minibroker configs --alter --quota-file THIS_FILE",
        *(omission(each, found.policy) for each in found.omitted),
    ]
