"""Quotas of users, clients and addresses: valid ones, and matches of filters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from minibroker.broker.metadata.image import ChangeRejected, ConfigChanged, Image, apply
from minibroker.broker.metadata.quotas import (
    Component,
    EffectiveQuotas,
    Match,
    QuotaChange,
    filter_problem,
    find,
    plan_change,
)
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.types import Entity, QuotaType
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

RATE = "connection_creation_rate"
IMAGE = Image()
for _name, _rate in (("1.2.3.4", "5"), ("::1", "0"), ("<default>", "7")):
    IMAGE = apply(IMAGE, ConfigChanged("ips", _name, {RATE: _rate}))
IMAGE = apply(IMAGE, ConfigChanged("brokers", "1", {"max.connections": "5"}))


def found_in(
    image: Image, components: list[Component], *, strict: bool
) -> list[tuple[list[str | None], Mapping[str, float]]]:
    """Names of each entity, and its quotas."""
    return [
        (list(names.values()), found) for names, found in find(image, components, strict=strict)
    ]


def change(
    *operations: tuple[str, float | None], name: str | None = "1.2.3.4"
) -> ConfigChanged | ChangeRejected:
    return plan_change(IMAGE, QuotaChange((("ip", name),), operations), {"nowhere.test"})


def test_rate_is_set_removed_and_may_be_zero() -> None:
    assert change((RATE, 9.0)) == ("ips", "1.2.3.4", {RATE: "9"})
    assert change((RATE, 9.0000001)) == ("ips", "1.2.3.4", {RATE: "9"})
    assert change((RATE, 0.0), name=None) == ("ips", "<default>", {RATE: "0"})
    assert change((RATE, None)) == ("ips", "1.2.3.4", {})
    assert change((RATE, None), name="8.8.8.8") == ("ips", "8.8.8.8", {})
    assert change(("unknown", None)) == ("ips", "1.2.3.4", {RATE: "5"})


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ([(RATE, -1.0)], "must be 0 or more"),
        ([(RATE, math.nan)], "must be 0 or more"),
        ([(RATE, math.inf)], "must be 0 or more"),
        ([(RATE, 2.0**31)], "too large for an INT"),
        ([(RATE, 1.5)], "cannot be a fractional value"),
        ([("producer_byte_rate", 1.0)], "Invalid configuration key producer_byte_rate"),
        ([(RATE, 1.0), (RATE, 2.0)], "Duplicate quota key"),
    ],
)
def test_bad_value_is_an_invalid_request(
    operations: list[tuple[str, float | None]], text: str
) -> None:
    refusal = change(*operations)
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == ErrorCode.INVALID_REQUEST
    assert text in refusal.text


@pytest.mark.parametrize(
    ("entity", "code", "text"),
    [
        ([], 42, "empty client quota entity"),
        ([("ip", "a"), ("ip", "b")], 42, "duplicate entity entry ip"),
        ([("colour", "red")], 42, "Unhandled client quota entity type: colour"),
        ([("ip", "")], 42, "Empty ip not supported"),
        ([("ip", "a"), ("user", "u")], 42, "Invalid quota entity combination"),
        ([("ip", "nowhere.test")], 42, "not a valid IP or resolvable host"),
        ([("ip", "a/b")], 42, "cannot be that of an entity"),
        ([("ip", "<default>")], 42, "cannot be that of an entity"),
        ([("user", "u"), ("user", "v")], 42, "duplicate entity entry user"),
        ([("client-id", "")], 42, "Empty client-id not supported"),
        ([("user", "u")], 42, "Invalid configuration key connection_creation_rate"),
    ],
)
def test_quota_for_invalid_entity_is_rejected(
    entity: list[tuple[str, str | None]], code: int, text: str
) -> None:
    refusal = plan_change(IMAGE, QuotaChange(tuple(entity), ((RATE, 1.0),)), {"nowhere.test"})
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == code
    assert text in refusal.text


@pytest.mark.parametrize(
    ("components", "names"),
    [
        ([Component("ip", Match.EXACT, "1.2.3.4")], ["1.2.3.4"]),
        ([Component("ip", Match.EXACT, "9.9.9.9")], []),
        ([Component("ip", Match.EXACT, "<default>")], []),
        ([Component("ip", Match.DEFAULT)], [None]),
        ([Component("ip", Match.SPECIFIED)], ["1.2.3.4", "::1", None]),
        ([Component("user", Match.SPECIFIED)], []),
        ([], ["1.2.3.4", "::1", None]),
    ],
)
def test_filter_finds(components: list[Component], names: list[str | None]) -> None:
    assert filter_problem(components) is None
    assert [name for [name], _ in found_in(IMAGE, components, strict=False)] == names
    strict = [name for [name], _ in found_in(IMAGE, components, strict=True)]
    assert strict == (names if components else [])


def test_matching_entity_is_found_with_its_quotas() -> None:
    [(_, quotas)] = find(IMAGE, [Component("ip", Match.EXACT, "::1")], strict=True)
    assert quotas == {RATE: 0.0}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([Component("", 0, "a")], 42),
        ([Component("ip", 0, "a"), Component("ip", 1)], 42),
        ([Component("ip", 0, "a"), Component("user", 2)], 42),
        ([Component("colour", 0, "red")], 35),
        ([Component("ip", 0, None)], 42),
        ([Component("ip", 1, "a")], 42),
        ([Component("ip", 2, "a")], 42),
        ([Component("ip", 3, None)], 42),
    ],
)
def test_invalid_filter_is_rejected(components: list[Component], code: int) -> None:
    refusal = filter_problem(components)
    assert refusal is not None
    assert refusal.code == code


PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


def entity(**parts: str | None) -> tuple[tuple[str, str | None], ...]:
    return tuple((kind.replace("_", "-"), name) for kind, name in parts.items())


@pytest.mark.parametrize(
    ("parts", "kind", "name"),
    [
        ({"user": "a b*~"}, "users", "a%20b%2A%7E"),
        ({"user": None}, "users", "<default>"),
        ({"user": "<default>"}, "users", "%3Cdefault%3E"),
        ({"client_id": "c/1"}, "clients", "c%2F1"),
        ({"client_id": None}, "clients", "<default>"),
        ({"client_id": "c", "user": "u"}, "users", "u/clients/c"),
        ({"user": "u", "client_id": None}, "users", "u/clients/<default>"),
        ({"user": None, "client_id": None}, "users", "<default>/clients/<default>"),
    ],
)
def test_users_and_clients_have_quotas(parts: dict[str, str | None], kind: str, name: str) -> None:
    wanted = QuotaChange(entity(**parts), ((PRODUCER, 5.0), ("request_percentage", 0.5)))
    changed = plan_change(IMAGE, wanted, ())
    assert changed == (kind, name, {PRODUCER: "5", "request_percentage": "0.5"})
    assert isinstance(changed, ConfigChanged)
    image = apply(IMAGE, changed)
    components = [
        Component(key, Match.DEFAULT if value is None else Match.EXACT, value)
        for key, value in entity(**parts)
    ]
    [(found, quotas)] = find(image, components, strict=True)
    assert found == dict(entity(**parts))
    assert quotas == {PRODUCER: 5.0, "request_percentage": 0.5}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (PRODUCER, 0.0, "must be greater than 0"),
        (PRODUCER, -1.0, "must be greater than 0"),
        (CONSUMER, 1.5, "cannot be a fractional value"),
        (CONSUMER, 2.0**64, "too large for a LONG"),
        ("request_percentage", 0.0, "must be greater than 0"),
        ("controller_mutation_rate", math.nan, "must be greater than 0"),
        ("SCRAM-SHA-256", 1.0, "Invalid configuration key SCRAM-SHA-256"),
    ],
)
def test_invalid_user_quota_is_rejected(key: str, value: float, text: str) -> None:
    refusal = plan_change(IMAGE, QuotaChange(entity(user="u"), ((key, value),)), ())
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == ErrorCode.INVALID_REQUEST
    assert text in refusal.text


def test_largest_long_is_one() -> None:
    changed = plan_change(IMAGE, QuotaChange(entity(user="u"), ((PRODUCER, 2.0**63),)), ())
    assert changed == ("users", "u", {PRODUCER: str(2**63 - 1)})


def test_users_credentials_are_no_quota_and_stay() -> None:
    image = apply(IMAGE, ConfigChanged("users", "u", {"SCRAM-SHA-256": "secret"}))
    any_user = [Component("user", Match.SPECIFIED)]
    assert list(find(image, any_user, strict=False)) == []
    changed = plan_change(image, QuotaChange(entity(user="u"), ((PRODUCER, 5.0),)), ())
    assert changed == ("users", "u", {"SCRAM-SHA-256": "secret", PRODUCER: "5"})
    assert isinstance(changed, ConfigChanged)
    gone = QuotaChange(entity(user="u"), ((PRODUCER, None), ("SCRAM-SHA-256", None)))
    assert plan_change(apply(image, changed), gone, ()) == (
        "users",
        "u",
        {"SCRAM-SHA-256": "secret"},
    )


def test_strict_filter_matches_only_its_entity_types() -> None:
    image = IMAGE
    for name in ("u", "u/clients/c", "<default>", "u/clients/<default>"):
        image = apply(image, ConfigChanged("users", name, {PRODUCER: "5"}))
    image = apply(image, ConfigChanged("clients", "c", {PRODUCER: "5"}))
    user = Component("user", Match.EXACT, "u")
    any_client = Component("client-id", Match.SPECIFIED)

    def names(*components: Component, strict: bool) -> list[list[str | None]]:
        return [found for found, _ in found_in(image, list(components), strict=strict)]

    assert names(user, strict=True) == [["u"]]
    assert names(user, strict=False) == [["u"], ["u", None], ["u", "c"]]
    assert names(user, any_client, strict=True) == [["u", None], ["u", "c"]]
    assert names(any_client, strict=True) == [["c"]]
    assert names(any_client, strict=False) == [["c"], ["u", None], ["u", "c"]]
    assert names(Component("user", Match.DEFAULT), strict=True) == [[None]]
    assert len(names(strict=False)) == 8


def quotas_in_force(*pairs: str) -> EffectiveQuotas:
    return EffectiveQuotas(Settings.from_sources(pairs=pairs), QuotaLedger(11, 1000, shared=False))


def test_quotas_follow_the_image() -> None:
    in_force = quotas_in_force()
    in_force.follow(Image())
    assert in_force.quotas.table.kinds == 0
    image = apply(Image(), ConfigChanged("users", "u", {"producer_byte_rate": "5"}))
    in_force.follow(image)
    assert in_force.quotas.enabled
    before = in_force.quotas.table
    assert before.bound(QuotaType.PRODUCE, Entity("u")) == 5
    image = apply(image, ConfigChanged("topics", "t", {"retention.ms": "5"}))
    in_force.follow(image)
    assert in_force.quotas.table is before
    in_force.follow(apply(image, ConfigChanged("users", "u", {})))
    assert in_force.quotas.table.bound(QuotaType.PRODUCE, Entity("u")) is None
    assert in_force.quotas.enabled  # quotas existed: the sharing groups stay the same


def test_default_quotas_apply_with_empty_image() -> None:
    in_force = quotas_in_force("quota.consumer.default=7")
    in_force.follow(Image())
    assert in_force.quotas.table.defaults == {QuotaType.FETCH: 7.0}
    assert in_force.quotas.enabled
