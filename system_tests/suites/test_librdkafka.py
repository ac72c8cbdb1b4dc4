from __future__ import annotations

import pytest

from system_tests.suites import librdkafka_suite
from system_tests.suites.conftest import check

pytestmark = pytest.mark.minibroker


def test_librdkafka_ends_as_expected() -> None:
    check(librdkafka_suite.NAME, librdkafka_suite.run)
