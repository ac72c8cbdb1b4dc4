"""minibroker: a Kafka broker as a small family of processes on one machine.

This file owns the version and nothing else. It imports nothing, because every command, every
forked role and every test pays for what it imports.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
