"""The one exception that a partition log answers bad requests with.

Owns nothing but its shape: the error code a client gets and the sentence for people. It must
never carry a traceback's worth of state, for it crosses processes. Its invariant: it survives
pickling. Echoes the ``ApiException`` family that Kafka's ``UnifiedLog`` throws.
"""

from __future__ import annotations

from protocol.errors import ErrorCode


class LogError(Exception):
    """A refused append or read: ``code`` is Kafka's, ``text`` says what, where and how to mend."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"
