from __future__ import annotations

import httpx
import pytest

from minibroker.lab.control.backend import Backend
from minibroker.lab.control.namespace_shapes import NAMESPACE_NAME, NamespacesBackend


def test_backend_has_namespaces() -> None:
    assert NamespacesBackend in Backend.__mro__


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
