"""A proxy starts with its control API: the same paths as a broker's, as far as it has them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from minibroker.broker.settings.setting import HostPort, parse_host_port
from minibroker.lab.control.http import make_app
from minibroker.lab.control.journal_collector import journal_of_one_process
from minibroker.lab.control.proxy import (
    PROXY_OPERATIONS,
    ControlledProxy,
    NoBrokerReachable,
    ProxyOptions,
    ProxyStartError,
    run_proxy,
)
from minibroker.lab.proxy.faults import ProxyFaults
from minibroker.lab.proxy.journal import JournaledProcess
from minibroker.ready import ProxyReady
from minibroker.testing import MiniBroker

LOOPBACK = "127.0.0.1"
FREE = HostPort(LOOPBACK, 0)


async def ready_of(options: ProxyOptions) -> ProxyReady:
    """Run a proxy until it is ready, and stop it."""
    found: list[ProxyReady] = []
    is_ready = trio.Event()

    def on_ready(ready: ProxyReady) -> None:
        found.append(ready)
        is_ready.set()

    await run_proxy(options, is_ready.wait, on_ready)
    return found[0]


def address_of(sock: socket.socket) -> HostPort:
    return HostPort(*sock.getsockname()[:2])


async def test_proxy_is_ready_with_one_broker_of_several(minibroker: MiniBroker) -> None:
    broker = parse_host_port(minibroker.bootstrap_servers)
    with socket.socket() as lost:
        lost.bind((LOOPBACK, 0))
        upstream = [address_of(lost), broker, broker]
        ready = await ready_of(ProxyOptions(upstream, FREE))
    assert len(ready.bootstrap_servers.split(",")) == 2
    assert ready.control_url.startswith("http://127.0.0.1:")


async def test_unreachable_cluster_is_an_error_with_advice() -> None:
    with socket.socket() as lost:
        lost.bind((LOOPBACK, 0))
        port = lost.getsockname()[1]
        with pytest.raises(NoBrokerReachable, match=rf"(?s){port} can't .*refused.*--upstream"):
            await ready_of(ProxyOptions([address_of(lost)], FREE))


async def test_taken_ports_are_errors_with_advice(minibroker: MiniBroker) -> None:
    taken = parse_host_port(minibroker.bootstrap_servers)
    with pytest.raises(ProxyStartError, match=r"in use; choose another .* --listener"):
        await ready_of(ProxyOptions([taken], taken))
    with pytest.raises(ProxyStartError, match="in use; choose another port with --control"):
        await ready_of(ProxyOptions([taken], FREE, taken.port))


async def test_proxy_can_be_stopped_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(host: str, port: int) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    await run_proxy(
        ProxyOptions([HostPort("a", 1)], FREE),
        trio.lowlevel.checkpoint,
        print,
    )


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with trio.open_nursery() as nursery:
        journal = journal_of_one_process(JournaledProcess(), nursery.start_soon)
        app = make_app(ControlledProxy(ProxyFaults(list), journal))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as made:
            yield made
        nursery.cancel_scope.cancel()


async def test_every_operation_is_implemented(client: httpx.AsyncClient) -> None:
    assert len(PROXY_OPERATIONS) >= 9
    await client.post("/v1/faults", json={"action": "hold", "name": "1x"})
    await client.post("/v1/journal", json={"enabled": True})
    for operation in PROXY_OPERATIONS:
        if operation.method == "DELETE" or operation.path.endswith("/stream"):
            continue
        path = operation.path.replace("{fault_id}", "1x")
        query = "?hits=0" if path.endswith("/wait") else ""
        body = operation.example if operation.body else None
        answer = await client.request(operation.method, path + query, json=body)
        is_served = answer.status_code in (200, 201) or "NO_SUCH_FRAME" in answer.text
        assert is_served, (path, answer.text)
    assert (await client.delete("/v1/faults/1x")).status_code == 204
    assert (await client.delete("/v1/faults")).status_code == 204
    assert (await client.delete("/v1/journal")).status_code == 204


async def test_index_and_description_have_the_operations_of_a_proxy(
    client: httpx.AsyncClient,
) -> None:
    index = await client.get("/", headers={"accept": "text/html"})
    assert "/v1/faults" in index.text
    assert "/v1/topics" not in index.text
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert "/v1/faults" in paths
    assert "/v1/topics" not in paths


async def test_operation_of_a_broker_is_unknown(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/topics")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "NO_SUCH_ROUTE"
    assert (await client.put("/v1/faults")).status_code == 405


async def test_proxy_is_healthy(client: httpx.AsyncClient) -> None:
    health = (await client.get("/v1/health")).json()
    assert health["ready"]
    assert [each["name"] for each in health["processes"]] == ["proxy"]


async def test_broker_s_action_is_refused_by_its_field(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/faults", json={"action": "kill", "process": "worker-0"})
    assert answer.status_code == 400
    assert [each["path"] for each in answer.json()["error"]["fields"]] == ["action"]
