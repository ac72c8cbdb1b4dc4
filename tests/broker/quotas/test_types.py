"""The table of quota types is the only list of them."""

from __future__ import annotations

import subprocess
import sys

from minibroker.broker.metrics.definitions import METRICS
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType
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
