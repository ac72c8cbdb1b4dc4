"""Snapshots over HTTP."""

from __future__ import annotations

import httpx


async def test_snapshot_is_taken_listed_restored_and_removed(client: httpx.AsyncClient) -> None:
    taken = await client.post("/v1/snapshots", json={"name": "s"})
    assert taken.status_code == 201
    assert taken.json() == {"name": "s", "taken_ms": 5, "partitions": 2, "size_bytes": 10}
    assert (await client.get("/v1/snapshots")).json() == {"snapshots": [taken.json()]}
    assert (await client.get("/v1/snapshots/s")).json() == taken.json()
    assert (await client.post("/v1/snapshots/s/restore")).json() == taken.json()
    assert (await client.delete("/v1/snapshots/s")).status_code == 204
    for missing in (
        await client.get("/v1/snapshots/s"),
        await client.post("/v1/snapshots/s/restore"),
        await client.delete("/v1/snapshots/s"),
    ):
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "NO_SUCH_SNAPSHOT"


async def test_unknown_field_is_rejected(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/snapshots", json={"nam": "s"})
    assert answer.status_code == 400
