"""Starts a broker: its roles as processes (``start``), or as tasks of one trio run (``tasks``)."""

from minibroker.launch.processes import start

__all__ = ["start"]
