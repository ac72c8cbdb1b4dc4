"""Lines of a quota file: rounding, scaling to a broker's capacity, and reasons."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.quotas.file import parse, render
from minibroker.broker.quotas.types import CONNECTION_CREATION_RATE
from minibroker.pipeline.quota_amounts import (
    CLIENT,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    USER_AND_CLIENT,
)
from minibroker.pipeline.quota_lines import decision, head, quota_lines, rounded_to_set
from minibroker.pipeline.recommend import BrokerNeed, Policy, QuotaDecision, Recommendation

PLAIN = QuotaDecision(
    PRODUCE, "alice", None, None, False, 1, 3412, 838_860.0, 1.2e6, 0, 1_048_575.0
)


def fits(quota: str) -> BrokerNeed:
    return BrokerNeed(quota, 1.0, 1)


def test_recommended_quota_states_its_figures() -> None:
    value, reason = decision(PLAIN, fits(PRODUCE), Policy())
    assert value == 1_050_000
    assert reason == (
        "producer_byte_rate 1.05 MB/s: at most 839 kB/s in 99 % of 3,412 busy seconds (maximum"
        " 1.2 MB/s), plus 25 % headroom"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value": 2e6}, "; 2 MB/s is the minimum for any entity"),
        ({"value": 500_000.0}, "; 500 kB/s is the maximum for any entity"),
        ({"throttled": 12.0}, "; 12 requests were throttled, so the demand may be higher"),
        (
            {"quota": CONNECTION_CREATION_RATE, "throttled": 12.0},
            "; 12 connections were throttled, so the demand may be higher",
        ),
        (
            {"quota": CONNECTION_CREATION_RATE, "throttled": 1.0},
            "; 1 connection was throttled, so the demand may be higher",
        ),
        (
            {"is_default": True, "entities": 7},
            "for 7 entities with too little usage for a quota of their own, the largest of which",
        ),
        ({"is_default": True, "entities": 0}, "for entities that were not recorded"),
    ],
)
def test_decision_reports_its_reason(given: dict[str, Any], expected: str) -> None:
    assert expected in decision(PLAIN._replace(**given), fits(PRODUCE), Policy())[1]


def test_quotas_exceeding_broker_capacity_are_scaled_down() -> None:
    busy = PLAIN._replace(quota=REQUEST, usual=400.0, most=420.0, value=500.0)
    value, reason = decision(busy, BrokerNeed(REQUEST, 1000, 9), Policy(workers=8))
    assert value == 400
    assert reason.endswith(
        "; scaled to 80 %, because 9 at one broker need 1,000 % together, and its capacity is 800 %"
    )
    assert decision(busy, BrokerNeed(REQUEST, 800, 9), Policy(workers=8))[0] == 500
    bytes_in = BrokerNeed(PRODUCE, 4e6, 9)
    assert decision(PLAIN, bytes_in, Policy())[0] == 1_050_000
    assert decision(PLAIN, bytes_in, Policy(bytes_per_second=1e6))[0] == 262_000


@pytest.mark.parametrize(
    ("quota", "value", "up", "down"),
    [
        (PRODUCE, 1234.0, 1240, 1230),
        (PRODUCE, 12.3, 13, 12),
        (PRODUCE, 0.2, 1, 1),
        (PRODUCE, 65_536.0, 65_536, 65_536),
        (PRODUCE, 9_999.0, 10_000, 9990),
        (REQUEST, 12.3456, 12.4, 12.3),
        (MUTATION, 0.0123456, 0.0124, 0.0123),
        (CONNECTION_CREATION_RATE, 20.1, 21, 20),
    ],
)
def test_quota_has_three_digits(quota: str, value: float, up: float, down: float) -> None:
    assert rounded_to_set(quota, value, Policy(), up=True) == up
    assert rounded_to_set(quota, value, Policy(), up=False) == down


@given(st.floats(0.001, 1e15), st.sampled_from([PRODUCE, REQUEST, MUTATION]), st.booleans())
def test_rounded_quota_never_crosses_its_bound(value: float, quota: str, up: bool) -> None:
    policy = dataclasses.replace(Policy(), at_most={quota: 1e12})
    found = rounded_to_set(quota, min(value, 1e12), policy, up=up)
    assert 0 < found <= 1e12
    if up:
        assert found >= min(value, 1e12)
    elif quota != PRODUCE or value >= 1:
        assert found <= value
        assert found >= value * 0.98 or quota == PRODUCE or value > 1e12


def recommended(level: str, *decided: QuotaDecision) -> Recommendation:
    together = {each.quota: fits(each.quota) for each in decided}
    return Recommendation(level, decided, together, Policy())


def test_file_has_a_line_for_each_entity_and_defaults_last() -> None:
    time = PLAIN._replace(quota=REQUEST, usual=10.0, most=11.0, value=12.5)
    default = PLAIN._replace(is_default=True, user="bob", entities=3)
    ip = PLAIN._replace(quota=CONNECTION_CREATION_RATE, user=None, ip="10.0.0.7", value=25.0)
    found = recommended(USER, default, PLAIN, time, ip)
    text = render(quota_lines(found), head(found, "activity"))
    assert text.startswith("# Quotas by `minibroker pipeline recommend` from activity.\n")
    assert [line for line in text.splitlines() if line.startswith("--")] == [
        (
            "--alter --entity-type users --entity-name alice --add-config "
            "producer_byte_rate=1050000,request_percentage=12.5"
        ),
        "--alter --entity-type ips --entity-name 10.0.0.7 --add-config connection_creation_rate=25",
        "--alter --entity-type users --entity-default --add-config producer_byte_rate=1050000",
    ]
    alice, _, _ = parse(text, "f").lines
    assert [reason.split()[0] for reason in alice.reason] == [PRODUCE, REQUEST]


def test_head_reports_differing_mutation_window() -> None:
    found = recommended(USER, PLAIN)
    assert "over 10 seconds." in "\n".join(head(found, "activity"))
    other = found._replace(policy=Policy(mutation_window_num=3, mutation_window_s=20))
    expected = "over 10 seconds, controller mutations over 40 seconds."
    assert expected in "\n".join(head(other, "activity"))


def test_each_level_has_its_types() -> None:
    client = PLAIN._replace(user=None, client_id="etl")
    [line] = quota_lines(recommended(CLIENT, client))
    assert line.entities == (("clients",), ("etl",))
    both = PLAIN._replace(client_id="etl")
    [line] = quota_lines(recommended(USER_AND_CLIENT, both))
    assert line.entities == (("users", "clients"), ("alice", "etl"))
    [line] = quota_lines(recommended(USER_AND_CLIENT, both._replace(is_default=True)))
    assert line.entities == (("users", "clients"), ("", ""))
