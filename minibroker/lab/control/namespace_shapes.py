"""Records for namespaces in the control API.

Owns their fields and limits. It must never know how names are translated. Invariant: the name of a
namespace can be a part of any topic's name. Kafka has no equivalent.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple, Protocol

from minibroker.lab.control.schema import Doc, Length

NAMESPACES_MAX: Final = 100
"""Namespaces of one broker at the same time."""

NAMESPACE_NAME: Final = re.compile("[A-Za-z0-9-]{1,32}")


class NamespaceCreation(NamedTuple):
    """A namespace to open."""

    name: Annotated[
        str | None,
        Length(1, 32),
        Doc("Its name: letters, digits and `-`. By default one that was never used."),
    ] = None


class NamespaceView(NamedTuple):
    """Topics, groups and transactional ids that are seen at one address only."""

    name: Annotated[str, Doc("The broker's own names start with it and a dot.")]
    bootstrap_servers: Annotated[str, Doc("The address for clients, which see nothing else.")]


class NamespaceList(NamedTuple):
    """All namespaces, in the order in which they were opened."""

    namespaces: tuple[NamespaceView, ...]


class NamespacesBackend(Protocol):
    """A running broker that many tests use at once."""

    async def namespaces(self) -> NamespaceList:
        """Return all namespaces."""

    async def open_namespace(self, new: NamespaceCreation) -> NamespaceView:
        """Open a namespace; raise ``Conflict`` if its name is used or there are too many."""

    async def remove_namespace(self, name: str) -> None:
        """Close a namespace, delete its topics, groups, ACLs; raise ``NotFound`` without one."""
