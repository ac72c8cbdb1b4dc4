"""Fixtures of roles, which tests of this folder need too."""

from __future__ import annotations

from tests.broker.process.conftest import MakeEnvironment, make_env

__all__ = ["MakeEnvironment", "make_env"]
