"""Oracle tests draw the same messages that the protocol's own tests draw."""

from __future__ import annotations

from tests.protocol.conftest import project_message

__all__ = ["project_message"]
