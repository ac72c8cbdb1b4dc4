"""Where minibroker runs, and the sentence for where it does not.

Owns both. It must never import anything, because it comes before all else. Invariant: it is
imported on any system. What differs between the systems is in ``runtime.system``.
"""

from __future__ import annotations

import sys

SUPPORTED = frozenset({"linux", "darwin"})


def refusal() -> str | None:
    """Return why minibroker cannot run on this system; None if it can."""
    if sys.platform in SUPPORTED:
        return None
    return (
        f"minibroker runs on Linux and macOS, not on {sys.platform}: on Windows, run it in WSL or "
        "from its container image"
    )
