"""Explain why a client is throttled or not: each step from its identity to the throttle time.

Owns the sentences; the decisions are those of ``entity`` and ``rate``. It must never record
anything. Invariant: the explanation describes what a request without usage of its own would get
now, or the recorded throttle if one is given. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from minibroker.broker.quotas.ledger import QuotaUsage, Sample
from minibroker.broker.quotas.rate import Cause, java_round, throttle_ms
from minibroker.broker.quotas.types import (
    CLIENT,
    USER,
    USER_AND_CLIENT,
    Bound,
    Counter,
    QuotaTable,
    QuotaType,
    Tags,
    bound_of,
    candidates,
    levels,
    limit_text,
    measured_text,
    sanitize,
    sharing_group,
)

_NOBODY: Final = "-"
_KINDS: Final = {CLIENT: "clients", USER: "users", USER_AND_CLIENT: "clients of users"}


class Considered(NamedTuple):
    """An entity that the quota can be set for, and whether it applies."""

    path: str
    value: float | None
    holds: bool
    why: str


class Explanation(NamedTuple):
    """The explanation of one quota type for a user and client-id."""

    tags: Tags
    sharing: str
    considered: tuple[Considered, ...]
    bound: Bound | None
    samples: tuple[Sample, ...]
    rate: float
    span_ms: int
    throttle_ms: int
    formula: str


def explain(
    table: QuotaTable,
    kind: QuotaType,
    bits: int,
    who: tuple[str, str],
    *,
    entry: QuotaUsage | None,
    window_ms: int,
    tags: Tags | None = None,
    cause: Cause | None = None,
) -> Explanation:
    """Explain the quota of a user and client-id; ``entry`` is None if nothing was recorded.

    For a recorded throttle, ``tags`` are those of its counter and ``cause`` is its cause.
    """
    tags = tags or tags_of(table, kind, bits, who)
    bound = bound_of(table, kind, tags)
    rate, span_ms = entry.usage if entry else (0.0, 0)
    target, tokens = bound.value if bound else None, entry.tokens if entry else 0.0
    if cause is not None:
        rate, span_ms, target = cause
        tokens = rate
    if kind.row.counter is Counter.TOKENS:
        delay_ms, formula = _from_tokens(tokens, target)
    else:
        cap_ms = window_ms if kind.row.is_capped else None
        delay_ms, formula = _from_rate(rate, span_ms, target, cap_ms)
    return Explanation(
        tags,
        _sharing(bits, tags),
        tuple(_considered(table, kind, tags, who, bound)),
        bound,
        entry.samples if entry else (),
        rate,
        span_ms,
        delay_ms,
        formula,
    )


def tags_of(table: QuotaTable, kind: QuotaType, bits: int, who: tuple[str, str]) -> Tags:
    """Return the sharing group of a user and client-id, both not encoded."""
    return sharing_group(table, kind, bits, sanitize(who[0]), who[1])


def _sharing(bits: int, tags: Tags) -> str:
    if not bits:
        return "no quota was set since the broker's start, so usage is not measured"
    if tags.user and tags.client:
        who = "this user's connections with this client-id"
    elif tags.user:
        who = "all of this user's connections"
    else:
        who = "all connections with this client-id, of any user,"
    ever = " and ".join(name for bit, name in _KINDS.items() if bits & bit)
    return f"{who} share one counter, because quotas of {ever} were set since the broker's start"


def _considered(
    table: QuotaTable, kind: QuotaType, tags: Tags, who: tuple[str, str], bound: Bound | None
) -> Iterator[Considered]:
    possible = candidates(tags)
    # An empty name has no entity.
    user, client = sanitize(who[0]) or _NOBODY, who[1] or _NOBODY
    for level in levels(user, client):
        entity = level.entity
        if (entity.user == _NOBODY and not who[0]) or (entity.client == _NOBODY and not who[1]):
            continue
        value = table.bound(kind, entity)
        holds = bound is not None and bound.entity == entity
        if holds:
            why = "applies: the first of these that is set"
        elif value is None:
            why = "not set"
        elif entity not in possible:
            why = "set, but does not match all clients of this counter"
        else:
            why = "set, but one before it applies"
        yield Considered(f"/config/{entity.path}", value, holds, why)
    default = table.defaults.get(kind)
    if default is not None:
        holds = bound is not None and bound.entity is None
        why = "applies: nothing else is set" if holds else "set, but one before it applies"
        yield Considered(kind.row.default_setting, default, holds, why)


def _from_rate(
    rate: float, span_ms: int, target: float | None, cap_ms: int | None
) -> tuple[int, str]:
    if target is None:
        return 0, "no quota applies, so nothing is throttled"
    if rate <= target:
        return (
            0,
            f"{measured_text(rate)} is not above {limit_text(target)}, so nothing is throttled",
        )
    delay_ms = throttle_ms(rate, target, span_ms)
    worked_out = (
        f"(rate - quota) / quota * window = ({measured_text(rate)} - {limit_text(target)}) / "
        f"{limit_text(target)} * {span_ms} ms = {delay_ms} ms"
    )
    if cap_ms is not None and delay_ms > cap_ms:
        return cap_ms, f"{worked_out}, but at most one window: {cap_ms} ms"
    return delay_ms, worked_out


def _from_tokens(tokens: float, target: float | None) -> tuple[int, str]:
    if target is None:
        return 0, "no quota applies, so nothing is rejected or throttled"
    if tokens >= 0:
        return 0, "tokens are left, so nothing is rejected or throttled"
    delay_ms = java_round(-tokens / target * 1000)
    return delay_ms, (
        f"-tokens / quota * 1000 = {measured_text(-tokens)} / {limit_text(target)} * 1000 = "
        f"{delay_ms} ms, as of the last request"
    )
