"""Oracle tests draw the same messages as the tests of the protocol."""

from __future__ import annotations

from tests.protocol.conftest import project_message

__all__ = ["project_message"]
