"""The control API of a proxy: the same paths as a broker's, as far as it has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import httpx
import pytest
import trio

from minibroker.broker.controller.journal import journal_of_one_process
from minibroker.lab.control.backend import Backend
from minibroker.lab.control.http import make_app
from minibroker.lab.proxy.backend import PROXY_OPERATIONS, ProxyBackend
from minibroker.lab.proxy.faults import ProxyFaults
from minibroker.lab.proxy.journal import JournaledProcess


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with trio.open_nursery() as nursery:
        journal = journal_of_one_process(JournaledProcess(), nursery.start_soon)
        backend = cast("Backend", ProxyBackend(ProxyFaults(list), journal))
        app = make_app(backend, operations=PROXY_OPERATIONS)
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
