"""Fixtures of this folder, and of roles, which its tests need too."""

from __future__ import annotations

import pytest

from minibroker.broker.network.direct_requests import SingleResponse
from tests.broker.network.running_handler import running
from tests.broker.process.conftest import MakeEnvironment, make_env, real_time

__all__ = ["MakeEnvironment", "make_env", "real_time", "running"]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the responses of requests that were executed in a single step."""
    sizes: list[int] = []
    encode = SingleResponse.encode

    def counted(response: SingleResponse) -> bytes:
        encoded = encode(response)
        sizes.append(len(encoded))
        return encoded

    monkeypatch.setattr(SingleResponse, "encode", counted)
    return sizes
