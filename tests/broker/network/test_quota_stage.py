"""What the quota stage records, which requests are exempt, and when throttles end."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.apis.base import Caller, Context
from minibroker.broker.metadata.image import ConfigChanged, Image, apply
from minibroker.broker.network.client_connection import ChannelEvent, ChannelState, ClientConnection
from minibroker.broker.network.quota_stage import QuotaStage, RequestCost, is_exempt
from minibroker.broker.process.environment import PROCESSOR
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES
from minibroker.broker.security.acl import Authorizer
from minibroker.broker.security.principal import Principal
from minibroker.broker.settings import Settings
from minibroker.broker.settings.dynamic import DynamicSettings
from minibroker.runtime.arena import ArenaRef
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from minibroker_protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from minibroker_protocol.messages.update_metadata import (
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker_protocol.wire import RequestHeader
from tests.broker.process.conftest import MakeEnvironment

MS = 1_000_000


def context(request: Any, authorizer: Authorizer | None = None) -> Context:
    """Return the context of a request of Alice."""
    caller = Caller("1", "PLAINTEXT", "127.0.0.1", 1, Principal("User", "alice"))
    return Context(
        header=RequestHeader(request.__api_key__, 9, 1, "c"),
        caller=caller,
        image=Image(),
        settings=Settings.from_sources(),
        dynamic_settings=DynamicSettings(Settings.from_sources()),
        workers=1,
        received=0,
        now=0,
        wall_ms=0,
        served={},
        reference=lambda _: ArenaRef(0, 0, 0, 0),
        authorizer=authorizer,
    )


def cost(
    request: Any,
    response: Any = None,
    *,
    size: int = 0,
    worked_ns: int = 0,
    client: ClientConnection | None = None,
) -> RequestCost:
    """The cost of an executed request of client id ``c``."""
    made = RequestCost(client or make_client(), size, 0, 0)
    made.ctx, made.request, made.response = context(request), request, response
    made.header = made.ctx.header
    made.now = trio.current_time()
    made.response_bytes = size
    made.io_ns = worked_ns
    return made


def deferred(quota_stage: QuotaStage, client: ClientConnection, ctx: Context, request: Any) -> Any:
    """What ``prepare`` finds for a request of the client."""
    made = cost(request, client=client)
    made.ctx = ctx
    quota_stage.prepare(made)
    return made.deferred


def limited(**quotas: str) -> Image:
    return apply(Image(), ConfigChanged("clients", "c", quotas))


def make_client() -> ClientConnection:
    _, server = memory_stream_pair()
    client = ClientConnection(
        AcceptedConnection("PLAINTEXT", server.local, server.peer, 1), server, 0
    )
    client.state.on(ChannelEvent.REQUEST_RECEIVED)
    return client


@pytest.mark.parametrize(
    ("request_", "exempt"),
    [
        (ProduceRequest(acks=0), True),
        (ProduceRequest(acks=1), False),
        (FetchRequest(), False),
        (FetchRequest(replica_id=1), True),
        (FetchRequest(replica_state=ReplicaState(replica_id=1)), True),
        (FetchRequest(replica_state=ReplicaState(replica_id=-1)), False),
        (MetadataRequest(), False),
    ],
)
def test_requests_exempt_from_the_request_quota(request_: Any, exempt: bool) -> None:
    assert is_exempt(context(request_), request_, None) is exempt


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (LeaderAndIsrRequest(), LeaderAndIsrResponse),
        (StopReplicaRequest(), StopReplicaResponse),
        (UpdateMetadataRequest(), UpdateMetadataResponse),
        (ControlledShutdownRequest(), ControlledShutdownResponse),
    ],
)
def test_inter_broker_request_is_exempt_only_if_authorized(request_: Any, response: Any) -> None:
    """Other failed requests are not counted for a client (KIP-124)."""
    for error, exempt in (
        (ErrorCode.NONE, True),
        (ErrorCode.STALE_BROKER_EPOCH, True),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, False),
    ):
        assert is_exempt(context(request_), request_, response(error_code=error)) is exempt


def test_follower_fetch_needs_cluster_action_to_be_exempt() -> None:
    follower = FetchRequest(replica_id=1)
    for name, exempt in (("alice", True), ("bob", False)):
        authorizer = Authorizer({}, [Principal("User", name)])
        assert is_exempt(context(follower, authorizer), follower, None) is exempt


async def test_quota_stage_without_quotas_is_inactive(make_env: MakeEnvironment) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(Image())
    assert not quota_stage.active
    quota_stage.follow(limited(producer_byte_rate="10"))
    assert quota_stage.active


@pytest.mark.parametrize(
    ("request_", "may"),
    [
        (ProduceRequest(acks=1), True),
        (ProduceRequest(acks=0), False),
        (FetchRequest(), True),
        (FetchRequest(replica_id=1), False),
        (MetadataRequest(), False),
    ],
)
async def test_requests_that_may_be_recorded_after_their_response(
    request_: Any, may: bool, make_env: MakeEnvironment
) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(producer_byte_rate="10", request_percentage="1"))
    quota_stage.quotas.worked(("alice", "c"), 0, 0)
    client, ctx = make_client(), context(request_)
    client.caller = ctx.caller
    assert (deferred(quota_stage, client, ctx, request_) is not None) is may
    client.needs_checks = True  # An observer needs the results.
    assert deferred(quota_stage, client, ctx, request_) is None


async def test_denial_is_reported_when_the_request_is_recorded(
    make_env: MakeEnvironment,
) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(consumer_byte_rate="10", request_percentage="1"))
    quota_stage.quotas.worked(("alice", "c"), 0, 0)
    request, calls = FetchRequest(replica_id=1), []
    client, ctx = make_client(), context(request, Authorizer({}, []))
    client.caller = ctx.caller
    ctx.denied = lambda *_: calls.append(True)
    assert deferred(quota_stage, client, ctx, request) is None
    assert calls == []
    assert not is_exempt(ctx, request, None)
    assert calls == [True]


async def test_request_in_delay_mode_is_recorded_before_its_response(
    make_env: MakeEnvironment,
) -> None:
    env = make_env(PROCESSOR)
    settings = env.settings.replaced({"quota.throttle.mode": "delay"}, "test")
    quota_stage = QuotaStage(make_env(PROCESSOR, settings=settings))
    quota_stage.follow(limited(producer_byte_rate="10", request_percentage="1"))
    quota_stage.quotas.worked(("alice", "c"), 0, 0)
    client, ctx = make_client(), context(ProduceRequest(acks=1))
    client.caller = ctx.caller
    assert deferred(quota_stage, client, ctx, ProduceRequest(acks=1)) is None


async def test_larger_throttle_applies_and_is_in_the_response(make_env: MakeEnvironment) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(producer_byte_rate="10", request_percentage="1"))
    client = make_client()
    response = ProduceResponse()
    given = cost(ProduceRequest(acks=1), response, size=200, worked_ns=150 * MS, client=client)
    assert quota_stage.before_response(given) is response
    assert response.throttle_time_ms == 10_000
    assert client.state.state is ChannelState.HELD
    assert [quota_stage.throttled.size(kind) for kind in CLIENT_QUOTA_TYPES[:4]] == [1, 0, 0, 0]
    quota_stage.forget(client)
    assert [quota_stage.throttled.size(kind) for kind in CLIENT_QUOTA_TYPES[:4]] == [0, 0, 0, 0]


async def test_throttled_fetch_is_empty_and_its_bytes_are_given_back(
    make_env: MakeEnvironment,
) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(consumer_byte_rate="10"))
    full = FetchResponse(error_code=5)
    instead = quota_stage.before_response(cost(FetchRequest(), full, size=2000))
    assert instead == FetchResponse(throttle_time_ms=190_400)
    assert quota_stage.before_response(cost(FetchRequest(), full, size=96)) is None


async def test_fetch_throttled_by_time_is_empty(make_env: MakeEnvironment) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(request_percentage="0.0001"))
    full = FetchResponse(error_code=5)
    # 10 µs in ten seconds: below that no fetch can stay, so nothing is ever fetched, as in Kafka.
    assert quota_stage.before_response(cost(FetchRequest(), full, worked_ns=10_000)) is None
    instead = quota_stage.before_response(cost(FetchRequest(), full, worked_ns=10_000))
    assert instead == FetchResponse(throttle_time_ms=1000)


async def test_throttle_ends_when_due(
    make_env: MakeEnvironment, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(request_percentage="0.0001", producer_byte_rate="10"))
    nursery.start_soon(quota_stage.run)
    long, short = make_client(), make_client()
    began = trio.current_time()
    quota_stage.before_response(
        cost(ProduceRequest(acks=1), ProduceResponse(), size=200, client=long)
    )
    await wait_all_tasks_blocked()
    quota_stage.before_response(
        cost(MetadataRequest(), MetadataResponse(), worked_ns=50 * MS, client=short)
    )
    assert short.throttle_end is not None
    assert long.throttle_end is not None
    await short.throttle_end.wait()
    assert trio.current_time() - began == pytest.approx(1)
    await long.throttle_end.wait()
    assert trio.current_time() - began == pytest.approx(10)


async def test_response_in_delay_mode_is_delayed_for_bytes_then_for_time(
    make_env: MakeEnvironment, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    env = make_env(PROCESSOR)
    settings = env.settings.replaced({"quota.throttle.mode": "delay"}, "test")
    quota_stage = QuotaStage(make_env(PROCESSOR, settings=settings))
    quota_stage.follow(limited(request_percentage="0.0001", producer_byte_rate="10"))
    nursery.start_soon(quota_stage.run)
    client, response = make_client(), ProduceResponse()
    began = trio.current_time()
    given = cost(ProduceRequest(acks=1), response, size=200, worked_ns=50 * MS, client=client)
    assert quota_stage.delays_responses
    assert await quota_stage.delay_response(given) is response
    assert trio.current_time() - began == pytest.approx(11)
    assert response.throttle_time_ms == 11_000
    assert client.state.state is ChannelState.MUTED


async def test_work_after_the_check_counts_for_the_next_request(make_env: MakeEnvironment) -> None:
    quota_stage = QuotaStage(make_env(PROCESSOR))
    quota_stage.follow(limited(request_percentage="1"))
    client = make_client()

    async def respond(request: Any, response: Any, network_ns: int) -> Any:
        made = cost(request, response, client=client)
        instead = quota_stage.before_response(made)
        made.network_ns = network_ns
        quota_stage.after_send(made)
        return instead

    assert await respond(MetadataRequest(), MetadataResponse(), 0) is None
    await respond(ProduceRequest(acks=0), None, 500 * MS)  # exempt
    assert await respond(MetadataRequest(), MetadataResponse(), 500 * MS) is None
    throttled = await respond(MetadataRequest(), MetadataResponse(), 0)
    assert throttled.throttle_time_ms == 1000
