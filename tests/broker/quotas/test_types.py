"""The table of quota types has a row for each, and values are checked by its columns."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minibroker.broker.metrics.definitions import METRICS
from minibroker.broker.quotas.types import (
    CLIENT_QUOTA_TYPES,
    CONNECTION_CREATION_RATE,
    QuotaType,
    is_quota,
    limit_text,
    measured_text,
    value_problem,
    value_text,
)
from minibroker.broker.settings import Settings
from minibroker.lab.activity.schema import FIELDS, ActivityType


def test_quota_type_added_as_row_is_altered_described_recorded_enforced_and_explained() -> None:
    subprocess.run([sys.executable, "-m", "tests.broker.quotas.toy_type"], check=True)


def test_quota_types_have_unique_names() -> None:
    for column in ("config_key", "control_name", "short_name"):
        assert len({getattr(kind.row, column) for kind in QuotaType}) == len(QuotaType)


def test_client_quota_types_name_existing_metrics_settings_and_activity_fields() -> None:
    gauges = {each.name for each in METRICS}
    checks = [field.name for field in FIELDS if field.type is ActivityType.CHECK]
    fields = [kind.row.check_field for kind in CLIENT_QUOTA_TYPES]
    assert [field for field in fields if field] == checks
    for kind in CLIENT_QUOTA_TYPES:
        assert kind.row.metric in gauges
        if kind.row.default_setting:
            assert Settings.from_entries([]).text(kind.row.default_setting) is not None


def test_connection_creation_rate_is_quota_of_ips_only() -> None:
    assert is_quota(CONNECTION_CREATION_RATE, of_ip=True)
    assert not is_quota(CONNECTION_CREATION_RATE, of_ip=False)
    assert is_quota("request_percentage", of_ip=False)
    assert not is_quota("request_percentage", of_ip=True)


@pytest.mark.parametrize(
    ("key", "value", "explanation"),
    [
        (CONNECTION_CREATION_RATE, 0.0, None),
        (CONNECTION_CREATION_RATE, -1.0, "must be 0 or more"),
        (CONNECTION_CREATION_RATE, 2.0**31, "too large for an INT"),
        ("producer_byte_rate", 0.0, "must be greater than 0"),
        ("producer_byte_rate", 1e-7, "must be greater than 0"),
        ("producer_byte_rate", 1.0000001, None),
        ("producer_byte_rate", 1.5, "cannot be a fractional value"),
        ("consumer_byte_rate", 1e19, "too large for a LONG"),
        ("request_percentage", 0.01, None),
        ("controller_mutation_rate", float("nan"), "must be greater than 0"),
    ],
)
def test_invalid_quota_value_has_explanation(
    key: str, value: float, explanation: str | None
) -> None:
    problem = value_problem(key, value)
    assert (
        problem is None if explanation is None else problem is not None and explanation in problem
    )


def test_whole_byte_rates_are_formatted_without_decimals() -> None:
    assert value_text("producer_byte_rate", 2.0**63) == str(2**63 - 1)
    assert value_text("producer_byte_rate", 1e6) == "1000000"
    assert value_text("request_percentage", 12.0) == "12.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1048576.0, "1048576"), (12.5, "12.5"), (0.001, "0.001"), (2.0**63, "9223372036854775808")],
)
def test_limit_text_has_every_configured_digit(value: float, text: str) -> None:
    assert limit_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(60073.94268, "60074"), (99.449, "99.4"), (0.031269, "0.0313"), (0.0, "0"), (-80.0, "-80")],
)
def test_measured_text_is_rounded_to_significant_digits(value: float, text: str) -> None:
    assert measured_text(value) == text
