"""Configs of client metrics: values, patterns, and which error an invalid one is."""

from __future__ import annotations

import pytest

from minibroker.broker.settings.client_metrics import (
    InvalidSubscription,
    check_client_metrics,
    parse_match,
)
from minibroker.broker.settings.types import BadValueError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics", "org.apache.kafka.producer.,org.apache.kafka.consumer."),
        ("metrics", "*"),
        ("metrics", ""),
        ("interval.ms", "100"),
        ("interval.ms", "3600000"),
        ("match", "client_id=app.*, client_software_version=3\\.[0-9]"),
    ],
)
def test_valid_client_metrics_are_accepted(name: str, text: str) -> None:
    check_client_metrics({name: text})


@pytest.mark.parametrize(
    ("name", "text"), [("no.such", "1"), ("interval.ms", "99"), ("interval.ms", "3600001")]
)
def test_invalid_subscription_is_rejected(name: str, text: str) -> None:
    with pytest.raises(InvalidSubscription):
        check_client_metrics({name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("interval.ms", "soon"),
        ("match", "client_id"),
        ("match", "client_id=a=b"),
        ("match", "client_id=[a"),
        ("match", "color=red"),
        ("match", "client_id=" + "a" * 600),
        ("match", "client_id="),
        ("match", r"client_id=(a)\1"),
        ("match", "client_id=(?!a).*"),
        ("match", "client_id=(a{100}){6}"),
    ],
)
def test_invalid_value_of_client_metrics_is_rejected(name: str, text: str) -> None:
    with pytest.raises(BadValueError, match=r"soon|Illegal client matching pattern"):
        check_client_metrics({name: text})


def test_patterns_are_found_by_what_they_select() -> None:
    found = parse_match(("client_id = app-[0-9]+ ",))
    assert found["client_id"].matches("app-12")
    assert not found["client_id"].matches("my-app-12")
