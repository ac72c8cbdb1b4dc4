"""What the tests of roles share."""

from __future__ import annotations

import pytest

from minibroker.runtime.clock import SimulatedClock
from tests.network.shortage import RealTime
from tests.roles.conftest import MakeEnvironment, make_env

__all__ = ["MakeEnvironment", "make_env"]


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch) -> RealTime:
    """Real time that the test lets pass, also while the broker's clock is frozen."""
    made = RealTime()
    monkeypatch.setattr(SimulatedClock, "sleep_real", lambda _, seconds: made.sleep(seconds))
    monkeypatch.setattr(SimulatedClock, "real_s", lambda _: made.now_s)
    return made
