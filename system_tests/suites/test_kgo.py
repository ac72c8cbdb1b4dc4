from __future__ import annotations

import pytest

from system_tests.suites import kgo_suite
from system_tests.suites.conftest import check

pytestmark = pytest.mark.minibroker


def test_kgo_ends_as_expected() -> None:
    check(kgo_suite.NAME, kgo_suite.run)
