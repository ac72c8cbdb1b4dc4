"""The operations of the control API on namespaces, for the backend.

Owns the delegation to the namespaces, which are imported by the first request about them. It must
never decide anything. Invariant: a broker without namespaces imports nothing for them. Kafka has no
equivalent.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.controller.namespaces import Namespaces
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.control.namespace_shapes import (
        NamespaceCreation,
        NamespaceList,
        NamespaceView,
    )


class NamespaceOperations:
    """Implements ``control.namespace_shapes.NamespacesBackend``."""

    _env: Environment
    _scope: ControllerScope
    _subscribers: MetadataPublisher

    @cached_property
    def _namespaces(self) -> Namespaces:
        from minibroker.broker.controller.namespaces import Namespaces

        return Namespaces(self._env, self._scope, self._subscribers)

    async def namespaces(self) -> NamespaceList:
        """All namespaces."""
        return await self._namespaces.namespaces()

    async def open_namespace(self, new: NamespaceCreation) -> NamespaceView:
        """Open a namespace."""
        return await self._namespaces.open_namespace(new)

    async def remove_namespace(self, name: str) -> None:
        """Close a namespace, and delete its topics, groups and ACLs."""
        await self._namespaces.remove_namespace(name)
