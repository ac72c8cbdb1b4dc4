"""Tests behave as in a terminal's foreground, wherever they are started.

Owns that alone; it must never know a test. Invariant: what tests start can be interrupted.
"""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """A shell that starts tests in the background has them ignore Ctrl-C, and all they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
