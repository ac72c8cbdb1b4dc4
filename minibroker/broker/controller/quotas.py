"""The usage of quotas for the control API, from the ledger and the quotas in force.

Owns names and rounding. It must never decide which quota applies; ``minibroker.broker.quotas``
does. Pure, except that it reads the ledger. Invariant: reading changes no rate. Kafka's quota
MBeans show the rates, but not the reason of a throttle.
"""

from __future__ import annotations

import math
from typing import Final

from minibroker.broker.quotas.entity import Bound, bound_of, desanitize
from minibroker.broker.quotas.explain import explain, tags_of
from minibroker.broker.quotas.ledger import NamedThrottle, QuotaLedger, QuotaUsage
from minibroker.broker.quotas.manager import EXEMPT, ClientQuotaManager
from minibroker.broker.quotas.types import BY_NAME, CLIENT_QUOTA_TYPES, QuotaType
from minibroker.lab.control import quota_shapes as shown
from minibroker.lab.control.backend import NotFound
from minibroker_protocol import registry

USES_SHOWN_MAX: Final = 500
"""Counters that are shown, the last used first."""

TYPES: Final = {kind.row.control_name: kind for kind in CLIENT_QUOTA_TYPES}


def quotas_view(
    quotas: ClientQuotaManager, ledger: QuotaLedger, mode: str, now_ms: int
) -> shown.QuotasView:
    """The usage of all quota entities."""
    entries = list(ledger.entries(now_ms, USES_SHOWN_MAX)) if quotas.enabled else []
    exempt = [entry.usage.rate for entry in entries if entry.kind == EXEMPT]
    return shown.QuotasView(
        counting=quotas.enabled,
        mode=mode,
        window_ms=ledger.window_ms,
        samples=ledger.samples,
        exempt_percent=sum(exempt),
        uses=tuple(_use(quotas, entry, now_ms) for entry in entries if entry.kind != EXEMPT),
        uses_total=ledger.used() - len(exempt),
        throttles=tuple(_throttle(each, now_ms) for each in ledger.recent_throttles()),
    )


def _throttle(throttle: NamedThrottle, now_ms: int) -> shown.QuotaThrottle:
    return shown.QuotaThrottle(
        number=throttle.number,
        ago_ms=max(0, now_ms - throttle.last.at_ms),
        type=BY_NAME[throttle.kind].row.control_name,
        user=throttle.tags.user,
        client_id=throttle.tags.client,
        api=registry.schema(throttle.api_key).name,
        throttle_ms=throttle.last.throttle_ms,
    )


def _use(quotas: ClientQuotaManager, entry: QuotaUsage, now_ms: int) -> shown.QuotaUse:
    kind = BY_NAME[entry.kind]
    bound = bound_of(quotas.table, kind, entry.tags)
    return shown.QuotaUse(
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


def quota_explained(
    quotas: ClientQuotaManager, ledger: QuotaLedger, question: shown.QuotaQuery, now_ms: int
) -> shown.QuotaExplanation:
    """Why a client is throttled or not, or was; ``NotFound`` if there is no such throttle."""
    throttle = _asked_for(ledger, question.throttle) if question.throttle else None
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
    return shown.QuotaExplanation(
        type=kind.row.control_name,
        user=user,
        client_id=client_id,
        key=kind.row.config_key,
        sharing=found.sharing,
        levels=tuple(shown.QuotaLevel(*level) for level in found.considered),
        quota=quota if cause is None else cause.bound,
        path=_path(kind, found.bound),
        samples=tuple(
            shown.QuotaSample(now_ms - sample.start_ms, sample.total) for sample in found.samples
        ),
        rate=found.rate,
        window_ms=found.span_ms,
        throttle_ms=found.throttle_ms,
        formula=found.formula,
        throttle=None if throttle is None else _throttle(throttle, now_ms),
    )


def _asked_for(ledger: QuotaLedger, which: str) -> NamedThrottle:
    kept = list(ledger.recent_throttles())
    for throttle in kept:
        if which in {shown.LAST, str(throttle.number)}:
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
