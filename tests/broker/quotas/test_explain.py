"""Why a quota holds, in words: the place that decides, the others, and the sum with its numbers."""

from __future__ import annotations

import math

from minibroker.broker.quotas.explain import Explanation, explain
from minibroker.broker.quotas.ledger import QuotaUsage, Sample, Usage
from minibroker.broker.quotas.rate import Cause
from minibroker.broker.quotas.types import DEFAULT, Entity, QuotaTable, QuotaType, Tags

P, R, M = QuotaType.PRODUCE, QuotaType.REQUEST, QuotaType.CONTROLLER_MUTATION
WHO = ("u v", "c")


def table(
    kind: QuotaType, bounds: dict[Entity, float], defaults: float | None = None
) -> QuotaTable:
    static = {} if defaults is None else {kind: defaults}
    kinds = 0
    for entity in bounds:
        kinds |= entity.bit
    return QuotaTable({kind: bounds}, kinds, static)


def entry(
    kind: QuotaType, rate: float, span_ms: int = 10_000, tokens: float = math.inf
) -> QuotaUsage:
    usage, samples = Usage(rate, span_ms), (Sample(0, rate * span_ms / 1000),)
    return QuotaUsage(kind, Tags("", "c"), usage, samples, math.nan, None, tokens, True)


def explained(
    kind: QuotaType,
    bounds: dict[Entity, float],
    found: QuotaUsage | None = None,
    bits: int | None = None,
) -> Explanation:
    given = table(kind, bounds)
    mine = given.bits(kind) if bits is None else bits
    return explain(given, kind, mine, WHO, entry=found, window_ms=1000)


def test_every_considered_level_has_a_reason() -> None:
    explanation = explained(
        P, {Entity("u%20v"): 5, Entity(client="c"): 7, Entity(DEFAULT): 9, Entity("u%20v", "d"): 1}
    )
    assert [(at.path, at.value, at.holds, at.why) for at in explanation.considered] == [
        ("/config/users/u%20v/clients/c", None, False, "not set"),
        ("/config/users/u%20v/clients/<default>", None, False, "not set"),
        ("/config/users/u%20v", 5, True, "applies: the first of these that is set"),
        ("/config/users/<default>/clients/c", None, False, "not set"),
        ("/config/users/<default>/clients/<default>", None, False, "not set"),
        ("/config/users/<default>", 9, False, "set, but one before it applies"),
        ("/config/clients/c", 7, False, "set, but does not match all clients of this counter"),
        ("/config/clients/<default>", None, False, "not set"),
    ]
    assert explanation.tags == Tags("u%20v", "")
    assert explanation.sharing.startswith("all of this user's connections share one counter")
    assert "quotas of clients and users and clients of users" in explanation.sharing


def test_formula_is_shown_with_its_numbers() -> None:
    explanation = explained(P, {Entity(client="c"): 1024}, entry(P, 2048))
    assert explanation.throttle_ms == 10_000
    assert explanation.formula == (
        "(rate - quota) / quota * window = (2048 - 1024) / 1024 * 10000 ms = 10000 ms"
    )
    assert explained(P, {Entity(client="c"): 1024}, entry(P, 1024)).formula == (
        "1024 is not above 1024, so nothing is throttled"
    )


def test_request_time_formula_shows_cap_of_one_window() -> None:
    explanation = explained(R, {Entity(client="c"): 1}, entry(R, 5))
    assert explanation.throttle_ms == 1000
    assert explanation.formula.endswith("= 40000 ms, but at most one window: 1000 ms")
    assert explained(R, {Entity(client="c"): 1}, entry(R, 1.01)).throttle_ms == 100


def test_mutation_formula_shows_tokens() -> None:
    explanation = explained(M, {Entity(client="c"): 10}, entry(M, 18, tokens=-80))
    assert explanation.throttle_ms == 8000
    assert explanation.formula.startswith("-tokens / quota * 1000 = 80 / 10 * 1000 = 8000 ms")
    assert explained(M, {Entity(client="c"): 10}, entry(M, 18, tokens=3)).throttle_ms == 0
    assert explained(M, {}, entry(M, 18)).formula.startswith("no quota applies")


def test_explanation_without_quota_or_counter_has_no_throttle() -> None:
    explanation = explained(P, {}, bits=0)
    assert "no quota was set" in explanation.sharing
    assert explanation.bound is None
    assert len(explanation.samples) == 0
    assert explanation.throttle_ms == 0
    assert explanation.formula.startswith("no quota applies")
    assert "this user's connections with this client-id" in explained(P, {}, bits=4).sharing
    assert "of any user" in explained(P, {}, bits=1).sharing


def test_deprecated_default_is_last_considered_level() -> None:
    alone = explain(table(P, {}, 9), P, 1, WHO, entry=None, window_ms=1000).considered[-1]
    assert (alone.path, alone.value, alone.holds) == ("quota.producer.default", 9, True)
    given = table(P, {Entity(client="c"): 5}, 9)
    beside = explain(given, P, 1, WHO, entry=None, window_ms=1000).considered[-1]
    assert (beside.path, beside.holds) == ("quota.producer.default", False)


def test_levels_of_empty_user_or_client_id_are_omitted() -> None:
    users = explain(table(P, {Entity("u"): 9}, 9), P, 2, ("u", ""), entry=None, window_ms=1000)
    assert [at.path for at in users.considered if at.value == 9 and at.holds] == ["/config/users/u"]
    assert [at.path for at in users.considered][:2] == [
        "/config/users/u/clients/<default>",
        "/config/users/u",
    ]
    anybodys = explain(table(P, {Entity(client="c"): 9}), P, 1, ("", "c"), entry=None, window_ms=9)
    paths = [at.path for at in anybodys.considered]
    assert "/config/users/<default>/clients/c" in paths
    assert not [path for path in paths if "//" in path or path.endswith("/")]
    assert [at.path for at in anybodys.considered if at.holds] == ["/config/clients/c"]


def test_past_throttle_is_explained_with_values_of_its_time() -> None:
    given = table(P, {Entity(client="c"): 1000, Entity("u", "c"): 5})
    explanation = explain(
        given, P, given.bits(P), ("", "c"), entry=entry(P, 10), window_ms=1000,
        tags=Tags("", "c"), cause=Cause(3000.0, 10_000, 2000.0),
    )  # fmt: skip
    assert explanation.tags == Tags("", "c")
    assert (explanation.rate, explanation.span_ms, explanation.throttle_ms) == (3000, 10_000, 5000)
    assert "(3000 - 2000) / 2000 * 10000 ms = 5000 ms" in explanation.formula
    assert [level.path for level in explanation.considered if level.holds] == ["/config/clients/c"]


def test_past_mutation_throttle_is_explained_with_its_tokens() -> None:
    cause = Cause(-80.0, 0, 10.0)
    explanation = explain(table(M, {}), M, 1, WHO, entry=None, window_ms=1000, cause=cause)
    assert explanation.throttle_ms == 8000
    assert "80 / 10 * 1000" in explanation.formula
