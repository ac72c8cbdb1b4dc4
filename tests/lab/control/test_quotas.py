"""Quota usage in the control API: every type, where its quota is set, and no exempt time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import httpx
import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.quotas import QuotaChange
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager, Throttle
from minibroker.broker.quotas.rate import Cause
from minibroker.broker.quotas.types import CLIENT, USER, Entity, QuotaTable, QuotaType
from minibroker.broker.settings import Settings
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.quotas import (
    QuotaExplanation,
    QuotaQuery,
    QuotasView,
    QuotaThrottle,
    explain_quota,
    list_quotas,
)
from minibroker.lab.errors import NotFound
from minibroker_protocol.registry import ApiKey
from tests.lab.control.running_broker import At

WHO = ("u v", "c")


def broker_with(quotas: ClientQuotaManager, ledger: QuotaLedger, now_ms: int) -> ControlledBroker:
    clock = SimpleNamespace(now=lambda: now_ms / 1000)
    settings = Settings.from_entries([])
    env = SimpleNamespace(ledger=ledger, clock=clock, settings=settings)
    broker = SimpleNamespace(env=env, scope=SimpleNamespace(quotas=quotas))
    return cast("ControlledBroker", broker)


async def quotas_view(quotas: ClientQuotaManager, ledger: QuotaLedger, now_ms: int) -> QuotasView:
    return await list_quotas(broker_with(quotas, ledger, now_ms))


async def quota_explained(
    quotas: ClientQuotaManager, ledger: QuotaLedger, query: QuotaQuery, now_ms: int
) -> QuotaExplanation:
    return await explain_quota(broker_with(quotas, ledger, now_ms), query)


async def test_uses_are_shown_with_their_quotas() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    assert (await quotas_view(quotas, ledger, 0)).uses == ()
    bounds = {QuotaType.PRODUCE: {Entity("u%20v"): 1024.0}}
    defaults = {QuotaType.FETCH: 100.0}
    quotas.set_table(QuotaTable(bounds, USER, defaults))
    quotas.throttled(quotas.produced(WHO, 20480, 0), WHO, ApiKey.PRODUCE, 0)
    quotas.fetched(WHO, 500, 1)
    quotas.exempt(100_000_000, 2)
    view = await quotas_view(quotas, ledger, 2)
    assert (view.counting, view.mode, view.window_ms, view.samples) == (True, "mute", 1000, 11)
    assert (view.exempt_percent, view.uses_total) == (1.0, 2)
    fetch, produce = view.uses
    assert (fetch.type, fetch.user, fetch.client_id) == ("fetch", "", "c")
    assert (fetch.quota, fetch.path, fetch.throttle_ms) == (100, "quota.consumer.default", None)
    assert (produce.type, produce.user, produce.client_id) == ("produce", "u%20v", "")
    assert (produce.path, produce.throttle_ms) == ("/config/users/u%20v", 10_000)
    assert (produce.throttled_ago_ms, produce.last_throttle_ms) == (2, 10_000)
    assert (fetch.throttled_ago_ms, fetch.last_throttle_ms) == (None, None)
    assert view.throttles == (QuotaThrottle(1, 2, "produce", "u%20v", "", "Produce", 10_000),)


async def test_zero_quota_has_no_usage_share() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    quotas.set_table(QuotaTable(defaults={QuotaType.FETCH: 0.0}))
    quotas.fetched(WHO, 500, 1)
    (use,) = (await quotas_view(quotas, ledger, 2)).uses
    assert (use.quota, use.share) == (0, None)


async def test_throttle_is_explained_with_its_recorded_figures() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    for bound in (1024.0, 4096.0):
        quotas.set_table(QuotaTable({QuotaType.PRODUCE: {Entity("u%20v"): bound}}, USER))
        quotas.throttled(quotas.produced(WHO, 61_440, 0), WHO, ApiKey.PRODUCE, 0)
    result = await quota_explained(quotas, ledger, QuotaQuery(throttle="1"), 500)
    assert (result.type, result.user, result.client_id) == ("produce", "u v", None)
    assert result.throttle == QuotaThrottle(1, 500, "produce", "u%20v", "", "Produce", 50_000)
    assert (result.rate, result.quota, result.window_ms, result.throttle_ms) == (
        6144,
        1024,
        10_000,
        50_000,
    )
    assert "(6144 - 1024) / 1024 * 10000 ms = 50000 ms" in result.formula
    assert [(at.value, at.holds) for at in result.levels if at.value] == [(4096, True)]
    assert result.samples == ((500, 122_880.0),)
    last = await quota_explained(quotas, ledger, QuotaQuery(throttle="last"), 500)
    assert (last.throttle is not None, last.quota, last.rate) == (True, 4096, 12_288)


async def test_throttle_of_all_users_of_a_client_id_names_no_user() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    quotas.set_table(QuotaTable({QuotaType.PRODUCE: {Entity(client="c"): 1024.0}}, CLIENT))
    quotas.throttled(quotas.produced(("alice", "c"), 61_440, 0), ("alice", "c"), ApiKey.PRODUCE, 0)
    was = await quota_explained(quotas, ledger, QuotaQuery(throttle="last"), 500)
    now = await quota_explained(quotas, ledger, QuotaQuery(client_id="c"), 500)
    assert (was.user, was.client_id, now.user, now.client_id) == (None, "c", "ANONYMOUS", "c")
    assert (was.path, was.quota, was.sharing) == (now.path, now.quota, now.sharing)
    assert set(was.levels) == {level for level in now.levels if "ANONYMOUS" not in level.path}


async def test_mutation_throttle_is_explained_by_token_bucket() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    bounds = {QuotaType.CONTROLLER_MUTATION: {Entity("u%20v"): 10.0}}
    quotas.set_table(QuotaTable(bounds, USER))
    throttle = Throttle(QuotaType.CONTROLLER_MUTATION, 8000, Cause(-80.0, 0, 10.0))
    quotas.throttled(throttle, WHO, ApiKey.CREATE_TOPICS, 0)
    result = await quota_explained(quotas, ledger, QuotaQuery(throttle="last"), 500)
    assert (result.throttle_ms, result.quota) == (8000, 10)
    assert "80 / 10 * 1000" in result.formula


async def test_unknown_throttle_is_reported_not_found() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    with pytest.raises(NotFound, match="no request has been throttled"):
        await quota_explained(quotas, ledger, QuotaQuery(throttle="last"), 0)
    quotas.set_table(QuotaTable({QuotaType.PRODUCE: {Entity("u%20v"): 1.0}}, USER))
    quotas.throttled(quotas.produced(WHO, 9000, 0), WHO, ApiKey.PRODUCE, 0)
    with pytest.raises(NotFound, match="there is no throttle 7; the last are 1 to 1"):
        await quota_explained(quotas, ledger, QuotaQuery(throttle="7"), 0)


async def test_quota_of_unseen_client_is_explained() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    result = await quota_explained(
        ClientQuotaManager(ledger), ledger, QuotaQuery("u", "c", "request"), 0
    )
    assert (result.key, result.quota, result.path, result.samples) == (
        "request_percentage",
        None,
        None,
        (),
    )
    assert len(result.levels) == 8


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


async def test_quotas_are_seen_and_explained(at: At, autojump_clock: MockClock) -> None:
    assert (await list_quotas(at.broker)).counting is False
    request = QuotaQuery(client_id="c", type="produce")
    assert "no quota was set" in (await explain_quota(at.broker, request)).sharing
    change = QuotaChange((("client-id", "c"),), (("producer_byte_rate", 1024.0),))
    outcome = await at.scope.cluster.alter_quotas([change])
    await at.scope.publish(outcome.updates)
    at.scope.quotas.produced(("ANONYMOUS", "c"), 20480, round(trio.current_time() * 1000))
    found = await list_quotas(at.broker)
    [use] = found.uses
    assert (use.type, use.user, use.client_id) == ("produce", "", "c")
    assert (use.rate, use.quota, use.share, use.path) == (2048, 1024, 2, "/config/clients/c")
    explained = await explain_quota(at.broker, request)
    assert (explained.throttle_ms, explained.window_ms) == (10_000, 10_000)
    assert explained.samples == ((0, 20480.0),)
    assert [level.path for level in explained.levels if level.holds] == ["/config/clients/c"]
