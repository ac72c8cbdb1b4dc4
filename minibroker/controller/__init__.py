"""The controller role: the one writer of the cluster's facts, and the face towards people."""

from minibroker.controller.role import controller

__all__ = ["controller"]
