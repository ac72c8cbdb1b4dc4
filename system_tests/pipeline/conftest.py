"""What the tests of the pipeline share."""

from __future__ import annotations

from system_tests.console.conftest import browser

__all__ = ["browser"]
