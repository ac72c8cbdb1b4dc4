"""Brokers and plain connections, as the tests of connection limits have them."""

from __future__ import annotations

from system_tests.connections.conftest import dial, limited

__all__ = ["dial", "limited"]
