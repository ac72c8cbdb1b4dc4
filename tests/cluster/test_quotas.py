"""Quotas of addresses: what may be set, and whom a filter finds."""

from __future__ import annotations

import math

import pytest

from minibroker.cluster.image import ConfigChanged, Image, apply
from minibroker.cluster.quotas import (
    Component,
    Match,
    QuotaChange,
    filter_problem,
    find,
    plan_change,
)
from minibroker.cluster.topics import Refusal
from protocol.errors import ErrorCode

RATE = "connection_creation_rate"
IMAGE = Image()
for _name, _rate in (("1.2.3.4", "5"), ("::1", "0"), ("<default>", "7")):
    IMAGE = apply(IMAGE, ConfigChanged("ips", _name, {RATE: _rate}))
IMAGE = apply(IMAGE, ConfigChanged("brokers", "1", {"max.connections": "5"}))


def change(
    *operations: tuple[str, float | None], name: str | None = "1.2.3.4"
) -> ConfigChanged | Refusal:
    return plan_change(IMAGE, QuotaChange((("ip", name),), operations), {"nowhere.test"})


def test_a_rate_is_set_removed_and_may_be_zero() -> None:
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
def test_a_bad_value_is_an_invalid_request(
    operations: list[tuple[str, float | None]], text: str
) -> None:
    refusal = change(*operations)
    assert isinstance(refusal, Refusal)
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
        ([("user", "u")], 35, "not served yet"),
        ([("client-id", None), ("user", "u")], 35, "not served yet"),
    ],
)
def test_who_can_have_no_quota_is_told_so(
    entity: list[tuple[str, str | None]], code: int, text: str
) -> None:
    refusal = plan_change(IMAGE, QuotaChange(tuple(entity), ((RATE, 1.0),)), {"nowhere.test"})
    assert isinstance(refusal, Refusal)
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
def test_a_filter_finds(components: list[Component], names: list[str | None]) -> None:
    assert filter_problem(components) is None
    assert [name for name, _ in find(IMAGE, components, strict=False)] == names
    strict = [name for name, _ in find(IMAGE, components, strict=True)]
    assert strict == (names if components else [])


def test_what_is_found_has_its_quotas() -> None:
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
def test_a_filter_that_is_none_is_refused(components: list[Component], code: int) -> None:
    refusal = filter_problem(components)
    assert refusal is not None
    assert refusal.code == code
