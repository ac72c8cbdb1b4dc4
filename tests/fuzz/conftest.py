"""Fuzz tests draw the same messages as the tests of the protocol."""

from __future__ import annotations

from tests.protocol.conftest import draw_message, project_message

__all__ = ["draw_message", "project_message"]
