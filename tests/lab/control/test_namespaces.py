"""Namespaces have addresses of their own, over real sockets, and leave nothing when removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio

from minibroker.broker.metadata.acls import Filter
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.process.messages import DeleteGroups
from minibroker.broker.security.acl import Operation, Pattern, PatternType, Permission, Resource
from minibroker.broker.settings import Settings
from minibroker.lab.control import namespaces as tested
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.namespaces import (
    NAMESPACE_NAME,
    NamespaceCreation,
    list_namespaces,
    open_namespace,
    remove_namespace,
)
from minibroker.lab.errors import Conflict, NotFound, Unavailable
from minibroker.lab.schema import InvalidJson
from minibroker_protocol.errors import ErrorCode
from tests.broker.process.conftest import MakeEnvironment

LOOPBACK = "127.0.0.1"


class Roles:
    """Processes, and the scope of the controller."""

    def __init__(self) -> None:
        self.cluster = self
        self.image = SimpleNamespace(topics={"a.t": 1, "a.u": 2, "ab.t": 3, "t": 4}, acls={})
        self.done: list[object] = []
        self.is_away = self.is_late = False

    async def delete_topics(self, names: list[str]) -> Any:
        if self.is_away:
            raise UnavailableError("/x", "away")
        self.done.append(names)
        return SimpleNamespace(updates=["update"])

    async def delete_acls(self, filters: list[Filter]) -> Any:
        self.done.append(filters)
        return [ChangeRejected(ErrorCode.REQUEST_TIMED_OUT, "late") if self.is_late else []], [
            "acls"
        ]

    async def publish(self, updates: list[str]) -> None:
        self.done.append(updates)

    async def request_all(self, request: object, names: list[str]) -> dict[str, object]:
        self.done += [request, names]
        return {}


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[str, int]]:
    """A broker that sends back what it gets."""

    async def serve(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        yield listener.socket.getsockname()[:2]
        nursery.cancel_scope.cancel()


@pytest.fixture
def roles() -> Roles:
    return Roles()


def namespaces(
    make_env: MakeEnvironment, roles: Roles, endpoint: tuple[str, int], *pairs: str
) -> ControlledBroker:
    settings = Settings.from_sources(pairs=["control.listener=127.0.0.1:0", *pairs])
    env = make_env("controller", workers=2, settings=settings, endpoints={"PLAINTEXT": endpoint})
    return ControlledBroker(env, cast("Any", roles), cast("Any", roles), print)


async def connect(servers: str) -> trio.SocketStream:
    host, _, port = servers.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def is_closed(client: trio.SocketStream) -> bool:
    async with client:
        try:
            return await client.receive_some() == b""
        except trio.BrokenResourceError:
            return True


async def test_removed_namespace_has_no_connections_topics_and_groups(
    make_env: MakeEnvironment, roles: Roles
) -> None:
    async with broker() as endpoint:
        found = namespaces(make_env, roles, endpoint)
        view = await open_namespace(found, NamespaceCreation("a"))
        assert (await list_namespaces(found)).namespaces == (view,)
        client = await connect(view.bootstrap_servers)
        await remove_namespace(found, "a")
        assert await is_closed(client)
        with pytest.raises(OSError):  # noqa: PT011
            await connect(view.bootstrap_servers)
    assert roles.done == [["a.t", "a.u"], ["update"], DeleteGroups("a."), ["worker-0", "worker-1"]]
    assert (await list_namespaces(found)).namespaces == ()
    with pytest.raises(NotFound, match="no namespace 'a'"):
        await remove_namespace(found, "a")


async def test_removed_namespace_has_no_acls(make_env: MakeEnvironment, roles: Roles) -> None:
    found = namespaces(make_env, roles, (LOOPBACK, 1))
    prefixed = Pattern(Resource.GROUP, "a.", PatternType.PREFIXED)
    others = (Pattern(Resource.TOPIC, "ab.t"), Pattern(Resource.CLUSTER, "a.c"))
    roles.image.acls = dict.fromkeys((prefixed, *others), ())
    await open_namespace(found, NamespaceCreation("a"))
    await remove_namespace(found, "a")
    assert roles.done[2:4] == [
        [Filter(*prefixed, None, None, Operation.ANY, Permission.ANY)],
        ["acls"],
    ]
    roles.is_late = True
    await open_namespace(found, NamespaceCreation("a"))
    with pytest.raises(Unavailable, match="late"):
        await remove_namespace(found, "a")


async def test_names_are_checked_and_namespaces_are_bounded(
    make_env: MakeEnvironment, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "NAMESPACES_MAX", 2)
    found = namespaces(make_env, roles, (LOOPBACK, 1))
    with pytest.raises(InvalidJson, match="letters"):
        await open_namespace(found, NamespaceCreation("a.b"))
    first = await open_namespace(found, NamespaceCreation())
    assert first.name.startswith("ns-")
    with pytest.raises(Conflict, match="there is a namespace"):
        await open_namespace(found, NamespaceCreation(first.name))
    second = await open_namespace(found, NamespaceCreation("b"))
    assert second.bootstrap_servers != first.bootstrap_servers
    with pytest.raises(Conflict, match="2 namespaces"):
        await open_namespace(found, NamespaceCreation("c"))
    for name in (first.name, "b"):
        await remove_namespace(found, name)


async def test_unavailable_store_is_reported(make_env: MakeEnvironment, roles: Roles) -> None:
    found = namespaces(make_env, roles, (LOOPBACK, 1))
    await open_namespace(found, NamespaceCreation("a"))
    roles.is_away = True
    with pytest.raises(Unavailable, match="away"):
        await remove_namespace(found, "a")


async def test_broker_with_tls_only_has_no_namespaces(
    make_env: MakeEnvironment, roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "has_tls", lambda protocol: protocol == "PLAINTEXT")
    found = namespaces(make_env, roles, (LOOPBACK, 1))
    with pytest.raises(Conflict, match="without TLS"):
        await open_namespace(found, NamespaceCreation("a"))
    assert (await list_namespaces(found)).namespaces == ()


@pytest.mark.parametrize("name", ["", "a.b", "a_b", "a/b", "a\n", "ä", "x" * 33])
def test_name_is_a_part_of_topic_names(name: str) -> None:
    assert NAMESPACE_NAME.fullmatch(name) is None
    assert NAMESPACE_NAME.fullmatch("ns-1")


async def test_namespace_is_opened_listed_and_removed(client: httpx.AsyncClient) -> None:
    opened = await client.post("/v1/namespaces", json={"name": "n"})
    assert opened.status_code == 201
    assert opened.json() == {"name": "n", "bootstrap_servers": "127.0.0.1:1"}
    assert (await client.get("/v1/namespaces")).json() == {"namespaces": [opened.json()]}
    assert (await client.delete("/v1/namespaces/n")).status_code == 204
    assert (await client.delete("/v1/namespaces/n")).status_code == 404
