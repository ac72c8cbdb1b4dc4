"""The namespaces of a broker: an address for each, at which clients see only their own names.

Owns their proxies and the deletion of what they have left. It must never know how names are
translated. Invariant: after a namespace was removed, no client uses it, and none of its topics,
groups and ACLs exists; its transactional ids expire. Kafka has no equivalent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from minibroker.broker.metadata.acls import Filter
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER, WORKER, role_name
from minibroker.broker.process.messages import DeleteGroups
from minibroker.broker.security.acl import Operation, Permission
from minibroker.broker.settings import CONTROL_LISTENER
from minibroker.broker.settings.listeners import has_tls
from minibroker.broker.settings.types import HostPort
from minibroker.lab.control.backend import Conflict, NotFound, Unavailable
from minibroker.lab.control.namespace_shapes import (
    NAMESPACE_NAME,
    NAMESPACES_MAX,
    NamespaceCreation,
    NamespaceList,
    NamespaceView,
)
from minibroker.lab.control.schema import Fault, InvalidJson
from minibroker.lab.proxy.addresses import ListenFailed
from minibroker.lab.proxy.namespace_acls import NamespaceAcls
from minibroker.lab.proxy.namespace_names import NamespaceNames
from minibroker.lab.proxy.server import ProxyServer

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.process.environment import Environment

NAME_BITS: Final = 32
"""Random bits in the name of a namespace."""

_log = EventLog(CONTROLLER)


class _OpenNamespace(NamedTuple):
    view: NamespaceView
    scope: trio.CancelScope
    ended: trio.Event


class Namespaces:
    """Implements ``control.namespace_shapes.NamespacesBackend``."""

    def __init__(
        self, env: Environment, scope: ControllerScope, subscribers: MetadataPublisher
    ) -> None:
        self._env = env
        self._scope = scope
        self._subscribers = subscribers
        self._open: dict[str, _OpenNamespace] = {}

    async def namespaces(self) -> NamespaceList:
        """All namespaces."""
        return NamespaceList(tuple(each.view for each in self._open.values()))

    async def open_namespace(self, new: NamespaceCreation) -> NamespaceView:
        """Open a namespace at an address of its own."""
        name = new.name or f"ns-{self._env.random.getrandbits(NAME_BITS):08x}"
        if NAMESPACE_NAME.fullmatch(name) is None:
            raise InvalidJson([Fault("name", "may have letters, digits and `-` only")])
        if name in self._open:
            raise Conflict("DUPLICATE_NAMESPACE", f"there is a namespace {name!r}")
        if len(self._open) >= NAMESPACES_MAX:
            text = f"there are {NAMESPACES_MAX} namespaces"
            raise Conflict("TOO_MANY_NAMESPACES", text, "Remove those not needed.")
        host, _ = self._env.settings[CONTROL_LISTENER]
        server = ProxyServer(HostPort(host, 0), NamespaceNames(_prefix(name)))
        try:
            address = server.listen_for(self._broker())
        except ListenFailed as error:
            server.close()
            raise Unavailable("NAMESPACE_NOT_AVAILABLE", str(error)) from None
        view = NamespaceView(name, str(address))
        opened = self._open[name] = _OpenNamespace(view, trio.CancelScope(), trio.Event())
        trio.lowlevel.spawn_system_task(partial(_serve, server, opened))
        return view

    def _broker(self) -> HostPort:
        """The broker's own address. Raises ``Conflict`` if clients need TLS."""
        settings = self._env.settings
        for name, (host, port) in self._env.endpoints.items():
            if not has_tls(settings.security_protocol(name)):
                return HostPort(host, port)
        raise Conflict("NO_PLAINTEXT_LISTENER", "a namespace needs a listener without TLS")

    async def remove_namespace(self, name: str) -> None:
        """Close a namespace, and delete its topics, groups and ACLs."""
        opened = self._open.pop(name, None)
        if opened is None:
            text = f"there is no namespace {name!r}"
            raise NotFound("NO_SUCH_NAMESPACE", text, "GET /v1/namespaces lists all.")
        opened.scope.cancel()
        await opened.ended.wait()
        prefix = _prefix(name)
        topics = [topic for topic in self._scope.image.topics if topic.startswith(prefix)]
        try:
            outcome = await self._scope.cluster.delete_topics(topics)
        except UnavailableError as error:
            raise Unavailable("CONFIG_STORE_NOT_AVAILABLE", str(error)) from None
        await self._scope.publish(outcome.updates)
        await self._delete_acls(NamespaceAcls(prefix))
        workers = [role_name(WORKER, index) for index in range(self._env.workers)]
        await self._subscribers.request_all(DeleteGroups(prefix), workers)

    async def _delete_acls(self, acls: NamespaceAcls) -> None:
        filters = [
            Filter(*pattern, None, None, Operation.ANY, Permission.ANY)
            for pattern in self._scope.image.acls
            if acls.at_client(pattern) is not None
        ]
        if not filters:
            return
        results, updates = await self._scope.cluster.delete_acls(filters)
        await self._scope.publish(updates)
        for result in results:
            if isinstance(result, ChangeRejected):
                raise Unavailable("CONFIG_STORE_NOT_AVAILABLE", result.text)


def _prefix(name: str) -> str:
    return f"{name}."


async def _serve(server: ProxyServer, opened: _OpenNamespace) -> None:
    """Serve the clients of a namespace until it is removed."""
    try:
        with opened.scope:
            await server.run()
    except (OSError, ExceptionGroup) as error:  # As a system task it may not raise.
        _log.error("a namespace has ended", namespace=opened.view.name, reason=error)
    finally:
        server.close()
        opened.ended.set()
