"""The controller role: the only writer of cluster metadata, and the control API's backend."""

from minibroker.controller.role import controller

__all__ = ["controller"]
