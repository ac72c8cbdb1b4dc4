"""Brokers that a test may kill, as the tests of faults have them."""

from __future__ import annotations

from system_tests.faults.conftest import start

__all__ = ["start"]
