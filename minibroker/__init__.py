"""minibroker: a Kafka broker as a small family of processes on one machine.

This file owns the version and nothing else. It imports only the line with the version that building
or installing wrote, because every command, every forked role and every test pays for what it
imports.
"""

from __future__ import annotations

__all__ = ["__version__"]

try:
    from minibroker._version import __version__
except ImportError:  # In a checkout that was never installed.
    __version__ = "0.1.0.dev0"
