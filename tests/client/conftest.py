"""A fake broker, and a port without one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.client.fake_broker import fake_broker

__all__ = ["fake_broker"]


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that is bound but does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
