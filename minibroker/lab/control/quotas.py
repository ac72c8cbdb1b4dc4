"""Quotas in the control API: the usage of clients, and why one is throttled.

Owns their records and operations, with names and rounding. It must never decide which quota
applies; ``minibroker.broker.quotas`` does. Invariant: reading changes no rate. Kafka's quota MBeans
show the rates, but not the reason of a throttle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, TypeAlias

from minibroker.broker.quotas.explain import explain, tags_of
from minibroker.broker.quotas.ledger import NamedThrottle, QuotaLedger, QuotaUsage
from minibroker.broker.quotas.manager import EXEMPT, ClientQuotaManager
from minibroker.broker.quotas.types import (
    BY_NAME,
    CLIENT_QUOTA_TYPES,
    Bound,
    QuotaType,
    Tags,
    bound_of,
    desanitize,
)
from minibroker.broker.settings import QUOTA_THROTTLE_MODE
from minibroker.lab.control.history import (
    USAGE_COUNTERS_MAX,
    USAGE_SAMPLE_S,
    USAGE_SAMPLES_MAX,
    History,
)
from minibroker.lab.control.operation import Operations
from minibroker.lab.errors import NotFound
from minibroker.lab.schema import Doc, Fault, InvalidJson
from minibroker.runtime.clock import now_ms as clock_now_ms
from minibroker_protocol import registry

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker

LAST: Final = "last"
"""Selects the most recent throttle instead of a number."""

USES_SHOWN_MAX: Final = 500
"""Counters that are shown, the last used first."""

TYPES: Final = {kind.row.control_name: kind for kind in CLIENT_QUOTA_TYPES}

if TYPE_CHECKING:
    QuotaKind: TypeAlias = str
else:
    QuotaKind = Literal[tuple(TYPES)]


class QuotaUse(NamedTuple):
    """Usage and quota of the clients that share a counter."""

    type: QuotaKind
    user: Annotated[str, Doc("URL-encoded; empty if the counter does not depend on the user.")]
    client_id: Annotated[str, Doc("Empty if the counter does not depend on the client-id.")]
    rate: Annotated[
        float,
        Doc("Bytes per second, percent of a process's time, or partitions per second."),
    ]
    quota: Annotated[float | None, Doc("The quota in force; null if there is none.")]
    share: Annotated[float | None, Doc("Rate divided by quota; null if that is 0.")]
    path: Annotated[str | None, Doc("The entity that the quota is set for.")]
    throttle_ms: Annotated[
        float | None, Doc("Average throttle in the last minute; null if there was none.")
    ]
    throttled_ago_ms: Annotated[
        int | None, Doc("When the last throttle started; null if there was none.")
    ]
    last_throttle_ms: Annotated[
        int | None,
        Doc(
            "Duration of the last throttle; if longer than `throttled_ago_ms`, it is "
            "still in effect."
        ),
    ]


class QuotaThrottle(NamedTuple):
    """A recent throttle."""

    number: Annotated[int, Doc("Sequence number since the broker started.")]
    ago_ms: int
    type: QuotaKind
    user: Annotated[str, Doc("User of the counter, as in `QuotaUse`.")]
    client_id: str
    api: Annotated[str, Doc("The API of the request, e.g. `Produce`.")]
    throttle_ms: int


class QuotasView(NamedTuple):
    """Usage and quotas of clients, most recently used counter first."""

    counting: Annotated[bool, Doc("False until the first quota is set since the start.")]
    mode: Annotated[str, Doc("The setting `quota.throttle.mode`.")]
    window_ms: Annotated[int, Doc("Length of a sample.")]
    samples: Annotated[int, Doc("Number of samples in the average of a rate.")]
    exempt_percent: Annotated[float, Doc("Time spent on requests that are exempt from quotas.")]
    uses: tuple[QuotaUse, ...]
    uses_total: Annotated[
        int, Doc("Number of counters, including unused ones that have not expired.")
    ]
    throttles: Annotated[tuple[QuotaThrottle, ...], Doc("The most recent throttles, newest first.")]


class PastUse(NamedTuple):
    """The usage of the clients that share a counter, at each past sample, oldest first."""

    type: QuotaKind
    user: Annotated[str, Doc("As in `QuotaUse`.")]
    client_id: str
    rates: Annotated[tuple[float | None, ...], Doc("Null where it was not known.")]
    throttled: Annotated[
        tuple[bool, ...], Doc("Whether there was a throttle since the sample before.")
    ]


class UsageHistoryView(NamedTuple):
    """The usage of quotas in the last two minutes."""

    interval_ms: Annotated[int, Doc("Real time between two samples.")]
    sampled_ago_ms: Annotated[int, Doc("Real time since the last sample.")]
    uses: tuple[PastUse, ...]


class QuotaQuery(NamedTuple):
    """The client whose quota to explain."""

    user: Annotated[str, Doc("The principal's name, e.g. `ANONYMOUS`.")] = "ANONYMOUS"
    client_id: str = ""
    type: Annotated[str, Doc("One of the types of `QuotaUse`.")] = "produce"
    throttle: Annotated[
        str,
        Doc(
            "Explain this throttle: the number of a `QuotaThrottle`, or `last`. Omit other fields."
        ),
    ] = ""


class QuotaLevel(NamedTuple):
    """An entity that the quota can be set for."""

    path: str
    value: float | None
    holds: bool
    why: str


class QuotaSample(NamedTuple):
    """The usage recorded in one sample."""

    ago_ms: Annotated[int, Doc("Time since the sample started.")]
    total: Annotated[float, Doc("Bytes, percent times seconds, or partitions.")]


class QuotaExplanation(NamedTuple):
    """Why a client is or is not throttled."""

    type: QuotaKind
    user: Annotated[
        str | None,
        Doc("Null for a throttle if all users with this client-id share the counter."),
    ]
    client_id: Annotated[
        str | None, Doc("Null for a throttle if all client-ids of this user share the counter.")
    ]
    key: Annotated[str, Doc("The quota's name, e.g. `producer_byte_rate`.")]
    sharing: Annotated[str, Doc("Which clients share the counter, and why.")]
    levels: Annotated[tuple[QuotaLevel, ...], Doc("In order of precedence.")]
    quota: float | None
    path: Annotated[str | None, Doc("The entity that the quota in force is set for.")]
    samples: Annotated[tuple[QuotaSample, ...], Doc("Oldest first.")]
    rate: float
    window_ms: Annotated[int, Doc("Length of the window of the rate.")]
    throttle_ms: Annotated[
        int, Doc("The throttle time that a request without any usage would get now.")
    ]
    formula: Annotated[str, Doc("The calculation of the throttle time.")]
    throttle: Annotated[
        QuotaThrottle | None,
        Doc(
            "The throttle of the request, if any. Quota, rate, window and formula are from the "
            "time of the throttle; levels and samples are current."
        ),
    ]


QUOTA_OPERATIONS: Final = Operations()


@QUOTA_OPERATIONS.add("GET", "/v1/quotas")
async def list_quotas(broker: ControlledBroker) -> QuotasView:
    """List usage and quotas of clients: bytes, request time and topic changes."""
    quotas, ledger, now_ms = broker.scope.quotas, broker.env.ledger, clock_now_ms(broker.env.clock)
    entries = list(ledger.entries(now_ms, USES_SHOWN_MAX)) if quotas.enabled else []
    exempt = [entry.usage.rate for entry in entries if entry.kind == EXEMPT]
    return QuotasView(
        counting=quotas.enabled,
        mode=broker.env.settings[QUOTA_THROTTLE_MODE],
        window_ms=ledger.window_ms,
        samples=ledger.samples,
        exempt_percent=sum(exempt),
        uses=tuple(_use(quotas, entry, now_ms) for entry in entries if entry.kind != EXEMPT),
        uses_total=ledger.used() - len(exempt),
        throttles=tuple(_throttle(each, now_ms) for each in ledger.recent_throttles()),
    )


def _throttle(throttle: NamedThrottle, now_ms: int) -> QuotaThrottle:
    return QuotaThrottle(
        number=throttle.number,
        ago_ms=max(0, now_ms - throttle.last.at_ms),
        type=BY_NAME[throttle.kind].row.control_name,
        user=throttle.tags.user,
        client_id=throttle.tags.client,
        api=registry.schema(throttle.api_key).name,
        throttle_ms=throttle.last.throttle_ms,
    )


def _use(quotas: ClientQuotaManager, entry: QuotaUsage, now_ms: int) -> QuotaUse:
    kind = BY_NAME[entry.kind]
    bound = bound_of(quotas.table, kind, entry.tags)
    return QuotaUse(
        type=kind.row.control_name,
        user=entry.tags.user,
        client_id=entry.tags.client,
        rate=entry.usage.rate,
        quota=None if bound is None else bound.value,
        share=entry.usage.rate / bound.value if bound and bound.value else None,
        path=_path(kind, bound),
        throttle_ms=None if math.isnan(entry.throttle_ms) else entry.throttle_ms,
        throttled_ago_ms=None if entry.last is None else max(0, now_ms - entry.last.at_ms),
        last_throttle_ms=None if entry.last is None else entry.last.throttle_ms,
    )


class UsageHistory:
    """Keeps samples of one broker's quotas: rates, and whether clients were throttled."""

    def __init__(self, broker: ControlledBroker) -> None:
        self._env = broker.env
        self._now_ms = clock_now_ms(broker.env.clock)
        self.samples: History[tuple[str, Tags], tuple[float, bool]] = History(
            USAGE_SAMPLES_MAX, USAGE_COUNTERS_MAX
        )

    def sample(self) -> None:
        """Keep the present usage."""
        since_ms, self._now_ms = self._now_ms, clock_now_ms(self._env.clock)
        entries = self._env.ledger.entries(self._now_ms, USAGE_COUNTERS_MAX)
        values = {
            (entry.kind, entry.tags): (entry.usage.rate, _was_throttled(entry, since_ms))
            for entry in entries
            if entry.kind != EXEMPT
        }
        self.samples.add(values, self._env.clock.real_s())


def _was_throttled(entry: QuotaUsage, since_ms: int) -> bool:
    return entry.last is not None and entry.last.at_ms + entry.last.throttle_ms > since_ms


@QUOTA_OPERATIONS.add("GET", "/v1/quotas/history")
async def get_usage_history(broker: ControlledBroker) -> UsageHistoryView:
    """Return the usage of quotas in the last two minutes."""
    samples, now = broker.state(UsageHistory).samples, broker.env.clock.real_s()
    uses = []
    for kind, tags in samples.keys():  # noqa: SIM118 - a method of its own
        values = samples.of((kind, tags))
        uses.append(
            PastUse(
                BY_NAME[kind].row.control_name,
                tags.user,
                tags.client,
                tuple(value and round(value[0], 3) for value in values),
                tuple(value is not None and value[1] for value in values),
            )
        )
    ago_ms = max(0, round((now - samples.sampled_at) * 1000))
    return UsageHistoryView(USAGE_SAMPLE_S * 1000, ago_ms, tuple(uses))


@QUOTA_OPERATIONS.add("GET", "/v1/quotas/explain")
async def explain_quota(broker: ControlledBroker, question: QuotaQuery) -> QuotaExplanation:
    """Explain why a client is or is not throttled: `?user=…&client_id=…&type=…`."""
    if question.type not in TYPES:
        raise InvalidJson([Fault("type", f"must be one of {', '.join(TYPES)}")])
    if question.throttle not in {"", LAST} and not question.throttle.isdecimal():
        raise InvalidJson([Fault("throttle", f"must be a throttle's number, or {LAST}")])
    quotas, ledger, now_ms = broker.scope.quotas, broker.env.ledger, clock_now_ms(broker.env.clock)
    throttle = _find_throttle(ledger, question.throttle) if question.throttle else None
    user: str | None
    client_id: str | None
    if throttle is None:
        kind, who, cause = TYPES[question.type], (question.user, question.client_id), None
        tags = tags_of(quotas.table, kind, quotas.bits[kind], who)
        user, client_id = question.user, question.client_id
    else:
        kind, tags, cause = BY_NAME[throttle.kind], throttle.tags, throttle.cause
        who = (desanitize(tags.user), tags.client)
        user, client_id = who[0] or None, who[1] or (None if tags.user else "")
    found = explain(
        quotas.table, kind, quotas.bits[kind], who, entry=ledger.entry(kind, tags, now_ms),
        window_ms=ledger.window_ms, tags=tags, cause=cause,
    )  # fmt: skip
    quota = None if found.bound is None else found.bound.value
    return QuotaExplanation(
        type=kind.row.control_name,
        user=user,
        client_id=client_id,
        key=kind.row.config_key,
        sharing=found.sharing,
        levels=tuple(QuotaLevel(*level) for level in found.considered),
        quota=quota if cause is None else cause.bound,
        path=_path(kind, found.bound),
        samples=tuple(
            QuotaSample(now_ms - sample.start_ms, sample.total) for sample in found.samples
        ),
        rate=found.rate,
        window_ms=found.span_ms,
        throttle_ms=found.throttle_ms,
        formula=found.formula,
        throttle=None if throttle is None else _throttle(throttle, now_ms),
    )


def _find_throttle(ledger: QuotaLedger, which: str) -> NamedThrottle:
    kept = list(ledger.recent_throttles())
    for throttle in kept:
        if which in {LAST, str(throttle.number)}:
            return throttle
    if not kept:
        text = "no request has been throttled since the start, or its counter has expired"
    else:
        text = f"there is no throttle {which}; the last are {kept[-1].number} to {kept[0].number}"
    raise NotFound("NO_SUCH_THROTTLE", text, "See /v1/quotas.")


def _path(kind: QuotaType, bound: Bound | None) -> str | None:
    if bound is None:
        return None
    return kind.row.default_setting if bound.entity is None else f"/config/{bound.entity.path}"
