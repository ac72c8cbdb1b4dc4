from __future__ import annotations

import pytest

from system_tests.suites import kafka_python_suite
from system_tests.suites.conftest import check

pytestmark = pytest.mark.minibroker


def test_kafka_python_ends_as_expected() -> None:
    check(kafka_python_suite.NAME, kafka_python_suite.run)
