"""Formats a recommendation as lines of a quota file, with the reason of each quota.

Owns rounding, scaling quotas down to a broker's capacity, and the sentences; it must never look at
an event. Invariant: every figure from which a quota is derived is in the comment above its line.
Kafka has no such file; ``quotas.file`` defines its format.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from minibroker.broker.quotas.arguments import CLIENTS, IPS, USERS, Entities
from minibroker.broker.quotas.file import QuotaLine
from minibroker.broker.quotas.types import CONNECTION_CREATION_RATE, integer_max
from minibroker.pipeline.quota_units import (
    CLIENT,
    IP,
    MUTATION,
    PRODUCE,
    USER,
    USER_AND_CLIENT,
    amount,
)
from minibroker.pipeline.recommend import BrokerNeed, Policy, QuotaDecision, Recommendation
from minibroker.pipeline.report import formats

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
