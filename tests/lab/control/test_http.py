"""The control API as its users meet it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from minibroker.lab.control.clock import ClockChange
from minibroker.lab.control.operation import BODY_MAX_BYTES
from minibroker.lab.control.operations import OPERATIONS

NEW = {"name": "orders", "partitions": 2, "configs": {"retention.ms": "1000"}}


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"code", "message", "hint", "fields"}
    assert "Traceback" not in response.text
    return found


async def test_topic_is_created_described_listed_and_deleted(client: httpx.AsyncClient) -> None:
    created = await client.post("/v1/topics", json=NEW)
    assert created.status_code == 201
    assert created.json()["configs"] == {"retention.ms": "1000"}
    assert (await client.get("/v1/topics/orders")).json() == created.json()
    (listed,) = (await client.get("/v1/topics")).json()["topics"]
    assert listed == {"name": "orders", "topic_id": "AAAA", "internal": False, "partitions": 2}
    deleted = await client.delete("/v1/topics/orders")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert error(await client.get("/v1/topics/orders"), 404) == {
        "code": "UNKNOWN_TOPIC_OR_PARTITION",
        "message": "no topic 'orders'.",
        "hint": "Create it first.",
        "fields": [],
    }


async def test_creating_existing_topic_is_conflict(client: httpx.AsyncClient) -> None:
    await client.post("/v1/topics", json=NEW)
    assert error(await client.post("/v1/topics", json=NEW), 409)["code"] == "TOPIC_ALREADY_EXISTS"


async def test_every_invalid_field_is_reported(client: httpx.AsyncClient) -> None:
    bad = {"nme": "x", "partitions": 0, "configs": {"retention.ms": 5}}
    found = error(await client.post("/v1/topics", json=bad), 400)
    assert found["code"] == "INVALID_REQUEST"
    assert {fault["path"] for fault in found["fields"]} == {
        "nme",
        "name",
        "partitions",
        "configs.retention.ms",
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "is empty"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes at line 1 column 2"),
        (b'{"name": \xff}', "not UTF-8 at byte 9"),
        (b'{"partitions": NaN}', "NaN is not a JSON number"),
        (b"[" * 60_000, "nested too deep"),
        (b'{"partitions": ' + b"9" * 5000 + b"}", "too large number"),
        (b"[]", "must be an object, not a list"),
    ],
)
async def test_invalid_body_is_rejected_with_reason(
    client: httpx.AsyncClient, body: bytes, reason: str
) -> None:
    found = error(await client.post("/v1/topics", content=body), 400)
    assert reason in found["message"]
    assert found["fields"][0]["path"] == "(body)"


async def test_body_of_max_size_is_accepted(client: httpx.AsyncClient) -> None:
    fits = json.dumps({"name": "x"}).encode().ljust(BODY_MAX_BYTES)
    assert (await client.post("/v1/topics", content=fits)).status_code == 201


async def test_group_id_with_slash_is_found(client: httpx.AsyncClient) -> None:
    for path in ("/v1/groups/team/one", "/v1/groups/team%2Fone"):
        group = (await client.get(path)).json()
        assert group["group_id"] == "team/one"
        assert [offset["lag"] for offset in group["offsets"]] == [2, None]
    assert error(await client.get("/v1/groups/none"), 404)["code"] == "GROUP_ID_NOT_FOUND"


async def test_health_of_broker_not_ready_is_503(
    client: httpx.AsyncClient, fake_broker: Any
) -> None:
    assert (await client.get("/v1/health")).status_code == 200
    fake_broker.ready = False
    response = await client.get("/v1/health")
    assert response.status_code == 503
    assert response.json()["processes"] == [
        {"name": "worker-0", "pid": 17, "state": "restarting", "restarts": 3}
    ]


async def test_client_id_with_invalid_unicode_is_listed(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/connections")).json()
    assert answer["processors"][0]["connections"][0]["client_id"] == "odd \ud800 id"


async def test_rejections_and_events_of_connections_are_listed(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/connections")).json()
    assert [each["text"] for each in answer["rejections"]] == ["No file was left."]
    assert [each["kind"] for each in answer["connection_events"]] == ["handed", "refused"]
    assert {"refusals", "happenings"}.isdisjoint(answer)


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ({"advance_ms": 11000}, ClockChange(advance_ms=11000)),
        ({"freeze": True, "advance_ms": 1}, ClockChange(freeze=True, advance_ms=1)),
        ({"freeze": False, "rate": 2}, ClockChange(freeze=False, rate=2)),
    ],
)
async def test_clock_change_is_applied(
    client: httpx.AsyncClient, fake_broker: Any, body: dict[str, Any], change: ClockChange
) -> None:
    response = await client.post("/v1/clock", json=body)
    assert response.json() == (await client.get("/v1/clock")).json()
    assert fake_broker.turns == [change]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "(body)"),
        ({"freeze": None}, "(body)"),
        ({"advance_ms": -1}, "advance_ms"),
        ({"advance_ms": 10**15}, "advance_ms"),
        ({"rate": 0}, "rate"),
        ({"freeze": "yes"}, "freeze"),
        ({"advance": 1}, "advance"),
    ],
)
async def test_invalid_clock_change_is_rejected_with_field(
    client: httpx.AsyncClient, fake_broker: Any, body: dict[str, Any], path: str
) -> None:
    found = error(await client.post("/v1/clock", json=body), 400)
    assert [fault["path"] for fault in found["fields"]] == [path]
    assert fake_broker.turns == []


async def test_reset_returns_number_of_deleted_topics_and_groups(client: httpx.AsyncClient) -> None:
    await client.post("/v1/topics", json=NEW)
    assert (await client.post("/v1/reset")).json() == {"topics": 1, "groups": 1}
    assert (await client.get("/v1/topics")).json() == {"topics": []}


async def test_counters_survive_process_restart(
    client: httpx.AsyncClient, fake_broker: Any
) -> None:
    fake_broker.worker.produced("cats", 100, 4)
    assert "minibroker_records_in_total 4.0" in (await client.get("/metrics")).text
    fake_broker.worker = type(fake_broker.worker)("worker-0")
    fake_broker.worker.produced("cats", 100, 5)
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "minibroker_records_in_total 9.0" in response.text
    assert 'minibroker_process_restarts_total{process="worker-0"} 3.0' in response.text


async def test_index_lists_operations_and_redirects_browsers_to_console(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/")
    assert answer.headers["content-type"].startswith("text/plain")
    for operation, line in zip(OPERATIONS, answer.text.splitlines(), strict=True):
        assert line.split() == [operation.method, operation.path, *operation.summary.split()]
    browsers = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    led = await client.get("/", headers=browsers)
    assert (led.status_code, led.headers["location"]) == (302, "/console")


async def test_unknown_path_is_404_with_similar_paths(client: httpx.AsyncClient) -> None:
    found = error(await client.get("/v1/topic"), 404)
    assert found["code"] == "NO_SUCH_ROUTE"
    assert "/v1/topics" in found["hint"]
    assert error(await client.get("/v1/health/"), 404)["code"] == "NO_SUCH_ROUTE"
    far = error(await client.get("/" + "x" * 5000), 404)
    assert far["hint"] == "GET / lists all operations."
    assert len(far["message"]) < 300


async def test_wrong_method_is_405_with_allowed_methods(client: httpx.AsyncClient) -> None:
    response = await client.put("/v1/topics")
    assert "GET, POST" in error(response, 405)["hint"]
    assert response.headers["allow"] == "GET, POST"
    response = await client.post("/v1/topics/orders")
    assert "GET, DELETE" in error(response, 405)["hint"]


async def test_internal_error_does_not_reveal_exception(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post("/v1/topics", json={"name": "bug"})
    assert error(response, 500)["code"] == "INTERNAL_ERROR"
    assert "secret" not in response.text


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "127.0.0.1:80", "[::1]:80", "a.localhost", "LOCALHOST."]
)
async def test_local_host_header_is_accepted(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/v1/cluster", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "a b"]
)
async def test_foreign_host_header_is_rejected(client: httpx.AsyncClient, host: str) -> None:
    response = await client.get("/v1/cluster", headers={"host": host})
    assert error(response, 403)["code"] == "FOREIGN_HOST"
    assert "advertised.listeners" in error(response, 403)["hint"]


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("172.17.0.2", "kafka:8080", 200),
        ("[fd00::2]", "my_kafka-1", 200),
        ("172.17.0.2", "kafka.example", 403),
        ("172.17.0.2", "kaf ka", 403),
        ("127.0.0.1", "kafka:8080", 403),
        ("[::ffff:127.0.0.1]", "kafka:8080", 403),
    ],
)
async def test_name_without_a_dot_is_accepted_of_another_machine(
    client: httpx.AsyncClient, address: str, host: str, status: int
) -> None:
    response = await client.get(f"http://{address}/v1/cluster", headers={"host": host})
    assert response.status_code == status


async def test_configured_host_name_is_accepted(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    async with client_of("Broker") as client:
        response = await client.get("/v1/cluster", headers={"host": "broker:8080"})
        assert response.status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost"])
async def test_request_with_foreign_origin_is_rejected(
    client: httpx.AsyncClient, fake_broker: Any, origin: str
) -> None:
    await client.post("/v1/topics", json=NEW)
    response = await client.post("/v1/reset", headers={"origin": origin})
    assert error(response, 403)["code"] == "FOREIGN_ORIGIN"
    assert list(fake_broker.known) == ["orders"]
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer", "Bearer wrong", "Basic secret", "Basic !!", basic("secret", ""), "secret"],
)
@pytest.mark.parametrize("path", ["/", "/v1/cluster", "/metrics", "/console", "/openapi.json"])
async def test_request_without_the_token_is_rejected(
    client_of: Callable[..., httpx.AsyncClient], path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    async with client_of(token="secret") as client:
        response = await client.get(path, headers=headers)
    assert error(response, 401)["code"] == "TOKEN_MISSING"
    assert response.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    "authorization", ["Bearer secret", "bearer secret", basic("", "secret"), basic("a", "secret")]
)
async def test_request_with_the_token_is_accepted(
    client_of: Callable[..., httpx.AsyncClient], authorization: str
) -> None:
    async with client_of(token="secret") as client:
        response = await client.get("/v1/cluster", headers={"authorization": authorization})
    assert response.status_code == 200


async def test_health_needs_no_token(client_of: Callable[..., httpx.AsyncClient]) -> None:
    async with client_of(token="secret") as client:
        assert (await client.get("/v1/health")).status_code == 200


async def test_request_with_own_origin_is_accepted(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/reset", headers={"origin": "http://localhost"})
    assert response.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/v1/reset", "/v1/journal/stream", "/v1/topics", "/console"])
async def test_request_of_a_foreign_page_without_origin_is_rejected(
    client: httpx.AsyncClient, fake_broker: Any, site: str, method: str, path: str
) -> None:
    await client.post("/v1/topics", json=NEW)
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "content-type": "text/plain"}
    response = await client.request(method, path, headers=headers)
    assert response.status_code == 403
    if method != "HEAD":
        assert error(response, 403)["code"] == "FOREIGN_ORIGIN"
    assert list(fake_broker.known) == ["orders"]


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_request_of_own_page_or_of_the_user_is_accepted(
    client: httpx.AsyncClient, site: str
) -> None:
    response = await client.post("/v1/reset", headers={"sec-fetch-site": site})
    assert response.status_code == 200


async def test_link_of_a_foreign_page_leads_to_the_console_and_a_frame_does_not(
    client: httpx.AsyncClient,
) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    linked = await client.get("/console", headers={**headers, "sec-fetch-dest": "document"})
    framed = await client.get("/console", headers={**headers, "sec-fetch-dest": "iframe"})
    posted = await client.post("/v1/reset", headers={**headers, "sec-fetch-dest": "document"})
    codes = [each.status_code for each in (linked, framed, posted)]
    assert codes == [200, 403, 403]


async def test_fault_rule_is_added_listed_released_and_removed(client: httpx.AsyncClient) -> None:
    rule = {"action": "hold", "api": "JoinGroup", "name": "joins"}
    added = await client.post("/v1/faults", json=rule)
    assert added.status_code == 201
    assert added.json()["rule"] == rule
    assert (await client.get("/v1/faults/joins")).json() == added.json()
    assert (await client.get("/v1/faults")).json() == {"faults": [added.json()]}
    assert (await client.post("/v1/faults/joins/release")).json() == {"released": 1}
    assert (await client.delete("/v1/faults/joins")).status_code == 204
    assert error(await client.get("/v1/faults/joins"), 404)["code"] == "NO_SUCH_FAULT"
    await client.post("/v1/faults", json=rule)
    assert (await client.delete("/v1/faults")).status_code == 204
    assert (await client.get("/v1/faults")).json() == {"faults": []}


async def test_hits_of_fault_rule_are_awaited(client: httpx.AsyncClient, fake_broker: Any) -> None:
    await client.post("/v1/faults", json={"action": "observe"})
    assert (await client.get("/v1/faults/1/wait")).json()["hits"] == 1
    assert (await client.get("/v1/faults/1/wait?hits=3&timeout_ms=50")).status_code == 200
    assert fake_broker.rules.waits == [(1, 10_000), (3, 50)]
    for query in ("hits=x", "hits=-1", "timeout_ms=600001", "hits=1e3", "timeout=5"):
        found = error(await client.get(f"/v1/faults/1/wait?{query}"), 400)
        assert found["fields"][0]["path"] == query.partition("=")[0]


async def test_fault_rule_with_unknown_action_is_rejected(client: httpx.AsyncClient) -> None:
    found = error(await client.post("/v1/faults", json={"action": "dely", "api": 5}), 400)
    messages = {fault["path"]: fault["message"] for fault in found["fields"]}
    assert "did you mean 'delay'?" in messages["action"]
    assert messages["api"] == "must be a text, not the number 5"


async def test_fault_rule_from_other_site_is_rejected(client: httpx.AsyncClient) -> None:
    headers = {"origin": "http://example.com"}
    found = await client.post("/v1/faults", json={"action": "observe"}, headers=headers)
    assert error(found, 403)["code"] == "FOREIGN_ORIGIN"


async def test_action_is_carried_out_or_rejected(client: httpx.AsyncClient) -> None:
    done = await client.post("/v1/actions", json={"action": "rebalance", "group": "g"})
    assert (done.status_code, done.json()) == (200, {"affected": 2})
    unknown = await client.post("/v1/actions", json={"action": "rebalance", "group": "h"})
    assert error(unknown, 404)["code"] == "GROUP_ID_NOT_FOUND"
    wrong = error(await client.post("/v1/actions", json={"action": "roll", "group": "g"}), 400)
    assert {each["path"] for each in wrong["fields"]} == {"topic", "group"}
