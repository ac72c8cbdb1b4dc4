"""The exception by which a fault rule closes a connection.

Owns nothing else, so that a process that serves connections can count such closes without importing
the rules. It must never know a connection. Invariant: its text names the rule.
"""

from __future__ import annotations


class FaultDisconnect(Exception):
    """A fault rule closes the connection; the text names the rule."""
