"""The tree of nodes that stores metadata: the interface, and its guarantees.

Owns the operations, their errors and the rules for paths. It must never know the implementation.
Invariant: ZooKeeper provides everything here, and both implementations behave alike.
Like ZooKeeper's client API (kazoo's ``KazooClient``): versions count from 0 with each change of a
node's data, ephemeral nodes are deleted when the store is closed, sequential ones end in ten
digits, `Store.multi` is atomic, a watch reports changes of its node and all below it.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

ANY_VERSION = -1
NODE_MAX_BYTES = 1_000_000
"""The most data that one node holds; ZooKeeper's own bound is jute.maxbuffer, 0xfffff."""

WATCH_MAX_EVENTS = 4096
"""Maximum number of queued events of a watch; more cause `EventsLostError`."""


_NO_COPIES = "the config store is used by other programs, so a snapshot cannot return to it"


class StoreError(Exception):
    """A store refused an operation; ``path`` says at which node, ``text`` why."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


class NoNodeError(StoreError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExistsError(StoreError):
    """The node to create exists already."""


class BadVersionError(StoreError):
    """The node's version is not the one that was expected."""


class NotEmptyError(StoreError):
    """The node to delete has children."""


class EphemeralParentError(StoreError):
    """An ephemeral node can have no children."""


class BadPathError(StoreError):
    """The path is invalid, or the root was to be created or deleted."""


class TooLargeError(StoreError):
    """The data exceeds `NODE_MAX_BYTES`."""


class UnavailableError(StoreError):
    """The store cannot be reached now; it may come back, and then its watches are lost."""


class UnwritableError(UnavailableError):
    """The store can be read but not written, because the disk is full or read-only."""


class EventsLostError(Exception):
    """A watch has lost events; read the tree again and create a new watch."""


class StoreNode(NamedTuple):
    """Data of a node and its version, which starts at 0 and is incremented by every `Set`."""

    data: bytes
    version: int


class Create(NamedTuple):
    """Create a node; the result is its path, with a number appended if it is sequential."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Replace a node's data if its version is as expected; the result is the new version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node without children if its version is as expected."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Check that a node exists with this version."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Create | Set | Delete | Check
Result: TypeAlias = str | int | None
"""The path of a `Create`, the new version of a `Set`, None for the others."""


class StoreEventKind(enum.Enum):
    """What happened to a node."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


class StoreEvent(NamedTuple):
    """A change of the watched node or of one below it."""

    kind: StoreEventKind
    path: str


class Store(abc.ABC):
    """A tree of nodes; every method may raise `StoreError`."""

    @abc.abstractmethod
    async def get(self, path: str) -> StoreNode:
        """A node's data and version; `NoNodeError` if it does not exist."""

    @abc.abstractmethod
    async def exists(self, path: str) -> bool:
        """Whether the node exists."""

    @abc.abstractmethod
    async def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted; `NoNodeError` if it does not exist."""

    @abc.abstractmethod
    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """Execute all operations in order, or none and raise the error of the one that failed."""

    @abc.abstractmethod
    def watch(self, path: str) -> AbstractContextManager[AsyncIterator[StoreEvent]]:
        """Events at and below a node, whether it exists or not, from now until the context ends.

        Events come in the order in which things happened, after they can be read.  Iterating
        raises `EventsLostError` when more than `WATCH_MAX_EVENTS` wait or the store was away.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """End the session: delete its ephemeral nodes and end its watches."""

    async def save(self, file: str) -> None:
        """Save all persistent nodes in a new file. Raises `StoreError` if that is not possible."""
        raise StoreError(file, _NO_COPIES)

    async def restore(self, file: str, kept: Sequence[str] = ()) -> None:
        """Return to the saved persistent nodes, except for ``kept`` paths; watches see nothing.

        Raises `StoreError`.
        """
        del kept
        raise StoreError(file, _NO_COPIES)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create one node and return its path (see `Create`)."""
        [made] = await self.multi([Create(path, data, ephemeral, sequential)])
        assert isinstance(made, str)
        return made

    async def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> int:
        """Replace one node's data and return the new version (see `Set`)."""
        [changed] = await self.multi([Set(path, data, version)])
        assert isinstance(changed, int)
        return changed

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        """Delete one node (see `Delete`)."""
        await self.multi([Delete(path, version)])

    async def ensure(self, path: str) -> None:
        """Create a node and its parents, without data, if they do not exist."""
        check_path(path)
        parts = path.split("/")[1:]
        for depth in range(1, len(parts) + 1):
            above = "/" + "/".join(parts[:depth])
            if above != "/" and not await self.exists(above):
                try:
                    await self.create(above)
                except NodeExistsError:
                    continue  # another client has created it, which is sufficient


def check_path(path: str) -> None:
    """Raise `BadPathError` unless the text is a path as ZooKeeper takes them."""
    if path == "/":
        return
    if not path.startswith("/") or path.endswith("/"):
        raise BadPathError(path, "a path begins with a slash and does not end with one")
    for part in path.split("/")[1:]:
        if part in ("", ".", ".."):
            raise BadPathError(path, f"a path must not contain the part '{part}'")
    if "\0" in path:
        raise BadPathError(path, "a path has no null character")


def check_data(path: str, data: bytes) -> None:
    """Raise `TooLargeError` if a node cannot hold the data."""
    if len(data) > NODE_MAX_BYTES:
        raise TooLargeError(path, f"{len(data)} bytes are more than the {NODE_MAX_BYTES} of a node")


def parent_of(path: str) -> str:
    """The path of the node above, for any path but the root."""
    return path.rpartition("/")[0] or "/"


def sequence_text(number: int) -> str:
    """Format the number of a sequential node."""
    return f"{number:010d}"
