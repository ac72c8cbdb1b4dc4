"""Namespaces in the control API: addresses at which clients see only their own names.

Owns their records, their proxies, and the deletion of what they have left. It must never know how
names are translated. Invariant: after a namespace was removed, no client uses it, and none of its
topics, groups and ACLs exists; its transactional ids expire. Kafka has no equivalent.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import trio

from minibroker.broker.metadata.acls import Filter
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER
from minibroker.broker.process.messages import DeleteGroups
from minibroker.broker.security.acl import Operation, Permission
from minibroker.broker.settings import CONTROL_LISTENER
from minibroker.broker.settings.listeners import has_tls
from minibroker.broker.settings.setting import HostPort
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.errors import Conflict, NotFound, Unavailable
from minibroker.lab.namespaces import prefix_of
from minibroker.lab.schema import Doc, Fault, InvalidJson, Length

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker
    from minibroker.lab.proxy.namespace import NamespaceAcls
    from minibroker.lab.proxy.server import ProxyServer

NAME_BITS: Final = 32
"""Random bits in the name of a namespace."""

NAMESPACES_MAX: Final = 100
"""Namespaces of one broker at the same time."""

NAMESPACE_NAME: Final = re.compile("[A-Za-z0-9-]{1,32}")

_log = EventLog(CONTROLLER)


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


class _OpenNamespace(NamedTuple):
    view: NamespaceView
    scope: trio.CancelScope
    ended: trio.Event


class _OpenNamespaces:
    """The namespaces that are open, by name."""

    def __init__(self, _: ControlledBroker) -> None:
        self.by_name: Final[dict[str, _OpenNamespace]] = {}


NAMESPACE_OPERATIONS: Final = Operations()


@NAMESPACE_OPERATIONS.add("GET", "/v1/namespaces")
async def list_namespaces(broker: ControlledBroker) -> NamespaceList:
    """List all namespaces with their addresses."""
    return NamespaceList(
        tuple(opened.view for opened in broker.state(_OpenNamespaces).by_name.values())
    )


@NAMESPACE_OPERATIONS.add(
    "POST",
    "/v1/namespaces",
    status=201,
    errors={
        409: "There is a namespace with this name, or there are too many.",
        **UNAVAILABLE,
    },
    example={"name": "test-7"},
)
async def open_namespace(broker: ControlledBroker, new: NamespaceCreation) -> NamespaceView:
    """Open a namespace: an address at which clients see only the names that they use there."""
    # Imported with the first namespace: most brokers have none.
    from minibroker.lab.proxy.connection import ListenFailed
    from minibroker.lab.proxy.namespace import NamespaceNames
    from minibroker.lab.proxy.server import ProxyServer

    open_namespaces = broker.state(_OpenNamespaces).by_name
    name = new.name or f"ns-{broker.env.random.getrandbits(NAME_BITS):08x}"
    if NAMESPACE_NAME.fullmatch(name) is None:
        raise InvalidJson([Fault("name", "may have letters, digits and `-` only")])
    if name in open_namespaces:
        raise Conflict("DUPLICATE_NAMESPACE", f"there is a namespace {name!r}")
    if len(open_namespaces) >= NAMESPACES_MAX:
        text = f"there are {NAMESPACES_MAX} namespaces"
        raise Conflict("TOO_MANY_NAMESPACES", text, "Remove those not needed.")
    host, _ = broker.env.settings[CONTROL_LISTENER]
    server = ProxyServer(HostPort(host, 0), NamespaceNames(prefix_of(name)))
    try:
        address = server.listen_for(_plaintext_address(broker))
    except ListenFailed as error:
        server.close()
        raise Unavailable("NAMESPACE_NOT_AVAILABLE", str(error)) from None
    view = NamespaceView(name, str(address))
    opened = open_namespaces[name] = _OpenNamespace(view, trio.CancelScope(), trio.Event())
    trio.lowlevel.spawn_system_task(partial(_serve, server, opened))
    return view


def _plaintext_address(broker: ControlledBroker) -> HostPort:
    """The broker's own address. Raises ``Conflict`` if clients need TLS."""
    for name, (host, port) in broker.env.endpoints.items():
        if not has_tls(broker.env.settings.security_protocol(name)):
            return HostPort(host, port)
    raise Conflict("NO_PLAINTEXT_LISTENER", "a namespace needs a listener without TLS")


@NAMESPACE_OPERATIONS.add(
    "DELETE",
    "/v1/namespaces/{name}",
    errors={404: "There is no namespace with this name.", **UNAVAILABLE},
)
async def remove_namespace(broker: ControlledBroker, name: str) -> None:
    """Close a namespace, and delete its topics, groups and ACLs."""
    opened = broker.state(_OpenNamespaces).by_name.pop(name, None)
    if opened is None:
        text = f"there is no namespace {name!r}"
        raise NotFound("NO_SUCH_NAMESPACE", text, "GET /v1/namespaces lists all.")
    from minibroker.lab.proxy.namespace import NamespaceAcls

    opened.scope.cancel()
    await opened.ended.wait()
    prefix = prefix_of(name)
    scope = broker.scope
    topics = [topic for topic in scope.image.topics if topic.startswith(prefix)]
    try:
        outcome = await scope.cluster.delete_topics(topics)
    except UnavailableError as error:
        raise Unavailable("CONFIG_STORE_NOT_AVAILABLE", str(error)) from None
    await scope.publish(outcome.updates)
    await _delete_acls(broker, NamespaceAcls(prefix))
    await broker.publisher.request_all(DeleteGroups(prefix), broker.workers)


async def _delete_acls(broker: ControlledBroker, acls: NamespaceAcls) -> None:
    filters = [
        Filter(*pattern, None, None, Operation.ANY, Permission.ANY)
        for pattern in broker.scope.image.acls
        if acls.at_client(pattern) is not None
    ]
    if not filters:
        return
    results, updates = await broker.scope.cluster.delete_acls(filters)
    await broker.scope.publish(updates)
    for result in results:
        if isinstance(result, ChangeRejected):
            raise Unavailable("CONFIG_STORE_NOT_AVAILABLE", result.text)


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
