"""Fixtures of roles, which tests of this folder need too."""

from tests.broker.process.conftest import MakeEnvironment, make_env, real_time

__all__ = ["MakeEnvironment", "make_env", "real_time"]
