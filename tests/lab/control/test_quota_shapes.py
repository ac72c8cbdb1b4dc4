"""Quotas over HTTP: usage, explanations of a query, and its parameters."""

from __future__ import annotations

import httpx
import pytest


async def test_quota_usage_is_listed(client: httpx.AsyncClient) -> None:
    found = (await client.get("/v1/quotas")).json()
    assert found["counting"] is True
    assert found["uses"][0]["rate"] == 2048.0
    assert found["uses"][0]["throttle_ms"] is None


async def test_quota_explanation_uses_query_parameters(client: httpx.AsyncClient) -> None:
    query = {"user": "u v", "client_id": "c&d", "type": "fetch"}
    found = (await client.get("/v1/quotas/explain", params=query)).json()
    assert (found["user"], found["client_id"], found["type"]) == ("u v", "c&d", "fetch")
    found = (await client.get("/v1/quotas/explain")).json()
    assert (found["user"], found["client_id"], found["type"]) == ("ANONYMOUS", "", "produce")


@pytest.mark.parametrize("query", [{"type": "bytes"}, {"usr": "u"}, {"throttle": "-1"}])
async def test_invalid_explain_query_is_rejected_with_parameter_name(
    client: httpx.AsyncClient, query: dict[str, str]
) -> None:
    response = await client.get("/v1/quotas/explain", params=query)
    assert response.status_code == 400
    assert response.json()["error"]["fields"][0]["path"] == next(iter(query))
