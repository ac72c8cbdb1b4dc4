"""Fixtures of the pipeline's tests."""

from __future__ import annotations

from system_tests.console.conftest import browser
from tests.pipeline.conftest import spark

__all__ = ["browser", "spark"]
