"""Fixtures of roles, which tests of this folder need too."""

from __future__ import annotations

import pytest

from tests.broker.process.conftest import MakeEnvironment, make_env, real_time
from tests.broker.roles.running_processor import RunningProcessor, in_memory, over_tcp

__all__ = ["MakeEnvironment", "make_env", "real_time"]


@pytest.fixture(params=[in_memory, over_tcp])
def connect_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect clients in memory, where each connection has a task, and over TCP."""
    monkeypatch.setattr(RunningProcessor, "connect_client", staticmethod(request.param))
