"""Who used how much: activity events added up by entity, quota and interval.

Owns the columns of the usage table and what of an event counts for which quota; it must never know
where events come from or where the figures go. Invariant: the same events in any order and on any
number of cores give the same figures, since everything is added up in whole numbers, and what a
broker dropped is told beside what it wrote. Kafka measures the same in ``ClientQuotaManager`` and
``RequestMetrics``, and forgets it.

An event of a sample stands for ``1 / sample`` events. Each is added up on several levels: for the
whole broker, for its user, its client-id and both of them together, or for its address, so that a
quota can be looked for on a level that has none yet. Requests without a client-id are on the levels
of the broker and the user only, as no quota of a client-id can hold them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.pipeline.report import words
from minibroker.quotas.entity import KEYS
from minibroker.quotas.values import CONNECTION_CREATION_RATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BROKER, USER, CLIENT, USER_AND_CLIENT, IP = "broker", "user", "client", "user+client", "ip"

PRODUCE, FETCH, REQUEST, MUTATION = KEYS
"""The names of the quotas in their order."""

PERCENTILES: Final = (50, 95, 99)
DIGITS_ERROR: Final = 0.005
"""Times are rounded to three digits before their percentiles are taken, so that these are off by
half a percent at most, and a group keeps some thousand figures and not one a request."""

_DIGITS_MAX: Final = 16
"""Figures of more digits are kept as they are."""


class Kept(NamedTuple):
    """A column of the usage table; the type is Spark's."""

    name: str
    type: str
    unit: str
    meaning: str


COLUMNS: Final = (
    Kept("broker", "int", "", "`broker.id`"),
    Kept(
        "level",
        "string",
        "",
        "whose figures these are: of the whole `broker`, a `user`, a `client`, a `user+client` or "
        "an `ip`",
    ),
    Kept("user", "string", "", "name of the user, as it authenticated; null on other levels"),
    Kept("client_id", "string", "", "as the client sent it; null on other levels"),
    Kept("ip", "string", "", "address; null on other levels"),
    Kept(
        "quota",
        "string",
        "",
        "what is counted, as the config is called: `producer_byte_rate`, `consumer_byte_rate`, "
        "`request_percentage`, `controller_mutation_rate` or `connection_creation_rate`",
    ),
    Kept("start", "timestamp", "UTC", "where the interval begins, which `start` is part of"),
    Kept("seconds", "int", "s", "how long it is"),
    Kept(
        "used",
        "double",
        "bytes, percent-seconds, partitions, connections",
        "how much it was; without what a quota refused or, of fetches, kept back",
    ),
    Kept("rate", "double", "as the quota", "`used` a second, over the whole interval"),
    Kept(
        "rate_max",
        "double",
        "as the quota",
        "the largest rate that the broker itself measured for this entity; null if it counted by "
        "another level, or not at all",
    ),
    Kept(
        "bound",
        "double",
        "as the quota",
        "the quota in force for this entity, the largest if it changed; null if none, and for "
        "addresses, whose events don't say",
    ),
    Kept("requests", "double", "", "that counted; connections for an address"),
    Kept("errors", "double", "", "of them those that failed; connections that were refused"),
    Kept("throttled", "double", "", "of them those that this quota held"),
    Kept("throttle_ms", "double", "ms", "for how long together"),
    Kept("throttle_max_ms", "int", "ms", "and at most"),
    *(
        Kept(f"latency_p{share}_ms", "double", "ms", f"of {share} % of them at most")
        for share in PERCENTILES
    ),
    Kept("events", "bigint", "", "how many were seen, whatever they stand for"),
    Kept("dropped", "bigint", "", "events that the broker could not write in this interval"),
    Kept(
        "coverage",
        "double",
        "0 to 1",
        "share of the broker's events of this interval that were written",
    ),
)
"""All columns of the usage table, in their order."""


class _Counted(NamedTuple):
    """What of an event counts for a quota, as SQL."""

    quota: str
    where: str
    amount: str
    """A whole number, ``UNITS`` of which are one of the quota's."""
    held_ms: str
    check: str = ""
    """The event's look at this quota, if events have one."""
    measured: bool = True
    """Whether the rate in it is one: of mutations it is what is left."""


UNITS: Final = {REQUEST: 10_000_000}
"""Nanoseconds in a hundredth of a second; everything else is counted as it is."""

_COUNTED: Final = (
    _Counted(PRODUCE, "api_key = 0", "request_bytes", "produce.throttle_ms", "produce"),
    # One that is held is answered with nothing, and asks again.
    _Counted(FETCH, "api_key = 1 and not exempt",
             "if(throttle_ms > 0, 0, response_bytes + 4)", "fetch.throttle_ms", "fetch"),
    # What was dropped counts for something, as it would go unseen otherwise.
    _Counted(REQUEST, "kind = 'dropped' or kind = 'request' and not exempt",
             "coalesce(checked_ns + coalesce(late_ns, 0), network_ns + io_ns)",
             "request.throttle_ms", "request"),
    _Counted(MUTATION, "mutations is not null", "mutations - coalesce(mutations_refused, 0)",
             "mutation.throttle_ms", "mutation", measured=False),
    _Counted(CONNECTION_CREATION_RATE, "kind = 'connection'", "if(happened = 'accepted', 1, 0)",
             "if(happened = 'held', delay_ms, 0)"),
)  # fmt: skip
_PARTS: Final = ("amount", "held_ms", "counted_at", "measured", "bound")


def counted(events: DataFrame, every_s: int) -> DataFrame:
    """A row for each quota that an event counts for.

    ``amount`` is a whole number, in ``UNITS``; ``start_us`` is where the event's interval begins.
    Users and clients have no address here, and addresses neither of those.
    """
    each = ", ".join(
        f"{value} as {name}_{at}"
        for at, of in enumerate(_COUNTED)
        for name, value in _parts(of).items()
    )
    named = ", ".join(
        f"({', '.join(f'{name}_{at}' for name in _PARTS)}) as `{of.quota}`"
        for at, of in enumerate(_COUNTED)
    )
    return events.sparkSession.sql(
        f"""
        with each as (
          select broker, user, nullif(client_id, '') as client_id, sample, dropped,
            if(kind = 'connection', ip, null) as ip,
            time_us - pmod(time_us, {every_s * 1_000_000}) as start_us,
            {rounded("(total_ns div 1000)")} as latency_us,
            coalesce(error_code <> 0, happened = 'refused', false) as failed, {each}
          from {{events}})
        select * from each unpivot (({", ".join(_PARTS)}) for quota in ({named}))
        where amount is not null
        """,
        events=events,
    )


def _parts(of: _Counted) -> dict[str, str]:
    level = (
        f"case when {of.check}.user <> '' and {of.check}.client_id <> '' then '{USER_AND_CLIENT}'"
        f" when {of.check}.user <> '' then '{USER}'"
        f" when {of.check}.client_id <> '' then '{CLIENT}' end"
    )
    return {
        "amount": f"if({of.where}, bigint(coalesce({of.amount}, 0)), null)",
        "held_ms": f"int(coalesce({of.held_ms}, 0))",
        "counted_at": level if of.check else "cast(null as string)",
        "measured": f"{of.check}.rate" if of.check and of.measured else "cast(null as double)",
        "bound": f"{of.check}.bound" if of.check else "cast(null as double)",
    }


def rounded(value: str) -> str:
    """SQL that rounds a column to three digits in whole numbers, so that engines agree."""
    cases = [f"when {value} < 1000 then {value}"]
    cases += [
        f"when {value} < {step * 1000} then (({value} + {step // 2}) div {step}) * {step}"
        for step in (10**power for power in range(1, _DIGITS_MAX - 2))
    ]
    return f"case {' '.join(cases)} else {value} end"


# Adding up --------------------------------------------------------------------------------------

_NAMES: Final = {
    BROKER: (),
    USER: ("user",),
    CLIENT: ("client_id",),
    USER_AND_CLIENT: ("user", "client_id"),
    IP: ("ip",),
}
"""Of each level."""

_WEIGHT: Final = "bigint(round(1000000 / sample))"
_TOLD: Final = {
    **{name: name for name in ("broker", "user", "client_id", "ip", "quota", "start_us")},
    "counted_at": "counted_at",
    "latency_us": "latency_us",
    "events": "bigint(sample is not null)",
    "amount": "bigint(round(amount / sample))",
    "requests": _WEIGHT,
    "errors": f"if(failed, {_WEIGHT}, 0)",
    "throttled": f"if(held_ms > 0, {_WEIGHT}, 0)",
    "throttle_ms": "bigint(round(held_ms / sample))",
    "throttle_max_ms": "held_ms",
    "measured": "measured",
    "bound": "bound",
}
"""What is added up of a row of `counted`."""

_KEYS: Final = ("broker", "quota", "start_us")
_FIGURES: Final = (
    "events bigint, amount bigint, requests bigint, errors bigint, throttled bigint,"
    " throttle_ms bigint, throttle_max_ms double, measured double, bound double"
)
_PART: Final = (
    "client_id string, ip string, user string, broker int, quota string, start_us bigint,"
    f" level string, {_FIGURES}, latencies binary"
)
_ENTITY: Final = ("broker", "level", "user", "client_id", "ip", "quota", "start_us")
_WHOLE: Final = (
    "broker int, level string, user string, client_id string, ip string, quota string,"
    f" start_us bigint, {_FIGURES}, {', '.join(f'p{share} double' for share in PERCENTILES)}"
)


def usage(events: DataFrame, every_s: int) -> DataFrame:
    """The usage table of ``events``, in intervals of so many seconds since 1970.

    Intervals in which an entity did nothing have no row; one in which a broker only dropped events
    has a row of the broker, with no requests.
    """
    from minibroker.pipeline import adding_up

    told = counted(events, every_s).selectExpr(*(f"{sql} as {name}" for name, sql in _TOLD.items()))
    parts = told.mapInArrow(partial(adding_up.parts, levels=_NAMES, keys=_KEYS), _PART)
    together = parts.repartition(*_ENTITY).sortWithinPartitions(*_ENTITY)
    whole = partial(adding_up.whole, keys=_ENTITY, percents=PERCENTILES)
    return events.sparkSession.sql(
        f"""
        with kept as (
          select broker, time_us - pmod(time_us, {every_s * 1_000_000}) as start_us,
            count(sample) as written, coalesce(sum(dropped), 0) as dropped
          from {{events}} group by all)
        select {_named(_columns(every_s))} from {{summed}} join kept using (broker, start_us)
        """,
        summed=together.mapInArrow(whole, _WHOLE),
        events=events,
    )


def on_levels(rows: DataFrame, levels: Collection[str]) -> DataFrame:
    """``rows`` as often as they have a level, named by ``level``, with the names of that alone."""
    names = _NAMES[USER_AND_CLIENT] + _NAMES[IP]
    others = ", ".join(name for name in rows.columns if name not in names)
    # Of each level its names, and the level if all of them are there.
    each = ", ".join(
        f"({', '.join(f'{name}_{at}' for name in names)}, level_{at})"
        for at, _ in enumerate(levels)
    )
    made = ", ".join(
        f"{name if name in _NAMES[level] else 'cast(null as string)'} as {name}_{at}"
        for at, level in enumerate(levels)
        for name in names
    )
    there = ", ".join(
        f"if({_all_there(_NAMES[level])}, '{level}', null) as level_{at}"
        for at, level in enumerate(levels)
    )
    return rows.sparkSession.sql(
        f"""
        with each as (select {others}, {made}, {there} from {{rows}})
        select {others}, {", ".join(names)}, level
        from each unpivot (({", ".join(names)}, level) for number in ({each}))
        where level is not null
        """,
        rows=rows,
    )


def _all_there(names: Collection[str]) -> str:
    return " and ".join(f"{name} is not null" for name in names) or "true"


def _named(by_name: Mapping[str, str]) -> str:
    return ", ".join(f"{value} as {name}" for name, value in by_name.items())


def _columns(every_s: int) -> dict[str, str]:
    units = " ".join(f"when '{quota}' then {unit}" for quota, unit in UNITS.items())
    used = f"coalesce(amount, 0) / case quota {units} else 1 end"
    made = {
        "start": "timestamp_micros(start_us)",
        "seconds": f"int({every_s})",
        "used": used,
        "rate": f"{used} / {every_s}",
        "rate_max": "measured",
        "throttle_ms": "double(coalesce(throttle_ms, 0))",
        "throttle_max_ms": "int(coalesce(throttle_max_ms, 0))",
        "coverage": "written / (written + dropped)",
        **{name: f"coalesce({name}, 0) / 1000000" for name in ("requests", "errors", "throttled")},
        **{f"latency_p{share}_ms": f"p{share} / 1000" for share in PERCENTILES},
    }
    return {column.name: made.get(column.name, column.name) for column in COLUMNS}


def amount(quota: str, rate: float) -> str:
    """A rate of a quota in words: `1.2 MB/s`, `12 %`, `3 partitions/s`."""
    if quota == REQUEST:
        return f"{words.figure(rate)} %"
    if quota == MUTATION:
        return f"{words.figure(rate)} partitions/s"
    if quota == CONNECTION_CREATION_RATE:
        return f"{words.figure(rate)} connections/s"
    return words.amount(rate, "B/s")
