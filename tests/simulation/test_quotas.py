"""Quotas of a whole broker, to the millisecond: throttle times and when reading resumes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.apis.base import ServedApi
from minibroker.broker.apis.registry import APIS
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.quota_stage import QuotaStage
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol import registry
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.types import ZERO_UUID
from tests.simulation.actors import fetch_request
from tests.simulation.client import SimulatedClient, frame
from tests.simulation.surroundings import LISTENER

PRODUCER, CONSUMER, TIME = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION = "controller_mutation_rate"


class OpenBroker:
    def __init__(self, broker: TaskBroker) -> None:
        self.broker = broker
        self.began = trio.current_time()

    @property
    def ms(self) -> int:
        return round((trio.current_time() - self.began) * 1000)

    async def connect(self, client_id: str = "c", host: str = "127.0.0.1") -> SimulatedClient:
        return SimulatedClient(await self.broker.sources[LISTENER].connect(host), client_id)

    async def set(self, entity: dict[str, str | None], **quotas: float | None) -> None:
        """Sets quotas, or removes those that are None; ``client_id`` is the type client-id."""
        entry = AlterClientQuotasRequestEntryData(
            entity=[
                EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
            ],
            ops=[
                OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in quotas.items()
            ],
        )
        admin = await self.connect("admin")
        response = await admin.ask(AlterClientQuotasRequest(entries=[entry]), 1)
        assert response.entries[0].error_code == 0
        admin.close()

    async def create(self, topic: str, partitions: int = 1) -> None:
        admin = await self.connect("admin")
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        await admin.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1_000), 5)
        admin.close()


Open = Callable[..., AbstractAsyncContextManager[OpenBroker]]


@pytest.fixture
def serve(tmp_path: Path, autojump_clock: MockClock) -> Open:
    """``async with serve("num.io.threads=1") as it:`` opens a broker with these settings."""

    @asynccontextmanager
    async def opened(*pairs: str) -> AsyncIterator[OpenBroker]:
        broker = TaskBroker(
            Settings.from_sources(pairs=pairs),
            tmp_path,
            clock=SimulatedClock(autojump_clock),
            seed=1,
        )
        trio.lowlevel.add_instrument(broker.work_time)
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            yield OpenBroker(broker)
            await broker.stop()

    return opened


CLIENT: dict[str, str | None] = {"client-id": "c"}


def produce(payload: bytes, *, acks: int = 1, topic: str = "none") -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=payload)]
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def sized(size: int, version: int) -> ProduceRequest:
    """Return a Produce request with this size of header and body."""
    for room in range(size, 0, -1):
        if len(frame(produce(bytes(room)), version, client_id="c")) - 4 == size:
            return produce(bytes(room))
    raise AssertionError(size)


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(("size", "ms"), [(20480, 10_000), (11264, 1000), (10241, 1), (10240, 0)])
async def test_throttled_producer_is_answered_at_once_and_muted(
    serve: Open, autojump_clock: MockClock, version: int, size: int, ms: int
) -> None:
    async with serve() as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client = await it.connect()
        response = await client.ask(sized(size, version), version)
        assert (response.throttle_time_ms, it.ms) == (ms, 0)
        await client.send_request(ApiVersionsRequest(), 0)  # waits until it is read again
        await client.answer(ApiKey.API_VERSIONS, 0)
        assert it.ms == ms


async def test_pipelined_request_is_served_in_the_turn_after_the_throttle(
    serve: Open, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    async with serve() as it:

        def log(step: Callable[..., Any]) -> Callable[..., Any]:
            def note(*given: Any) -> Any:
                turns.append(it.broker.work_time.turns)
                return step(*given)

            return note

        await it.set({"client-id": "t"}, **{PRODUCER: 1024})
        monkeypatch.setattr(QuotaStage, "before_response", log(QuotaStage.before_response))
        monkeypatch.setattr(ClientConnection, "end_throttle", log(ClientConnection.end_throttle))
        client = await it.connect("t")
        await client.stream.send_all(frame(sized(20480, 9), 9) + frame(ApiVersionsRequest(), 0))
        await client.receive_frame(), await client.receive_frame()
    assert turns[2] == turns[1] + 1


async def test_throttle_does_not_delay_other_client(serve: Open, autojump_clock: MockClock) -> None:
    async with serve("num.network.threads=1") as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client, neighbour = await it.connect(), await it.connect("d")
        await client.ask(sized(20480, 9), 9)
        await client.send_request(ApiVersionsRequest(), 0)
        response = await neighbour.ask(sized(20480, 9), 9)
        assert (response.throttle_time_ms, it.ms) == (0, 0)


async def test_processors_share_a_quota(serve: Open, autojump_clock: MockClock) -> None:
    async with serve("num.network.threads=4") as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        clients = [await it.connect() for _ in range(4)]
        throttles = [(await c.ask(sized(5120, 9), 9)).throttle_time_ms for c in clients]
        assert throttles == [0, 0, 5000, 10_000]


async def test_changed_quota_applies_at_once(serve: Open, autojump_clock: MockClock) -> None:
    async with serve() as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client, other = await it.connect(), await it.connect()
        assert (await client.ask(sized(20480, 9), 9)).throttle_time_ms == 10_000
        await it.set(CLIENT, **{PRODUCER: 4096})
        assert (await other.ask(sized(100, 9), 9)).throttle_time_ms == 0
        await it.set(CLIENT, **{PRODUCER: 512})
        assert (await other.ask(sized(100, 9), 9)).throttle_time_ms == 30_391
        assert it.ms == 0


async def test_client_that_disconnects_while_throttled_is_forgotten(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve("num.network.threads=1") as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client = await it.connect()
        await client.ask(sized(20480, 9), 9)
        client.close()
        await trio.sleep(20)
        assert (await (await it.connect()).ask(ApiVersionsRequest(), 0)).error_code == 0


async def test_idle_connections_are_closed_also_while_throttled(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve("connections.max.idle.ms=5000") as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client = await it.connect()
        await client.ask(sized(20480, 9), 9)
        await client.wait_closed()
        assert it.ms == 5000


@pytest.mark.parametrize("victim", ["processor-0", "controller", "worker-0"])
async def test_processor_kill_keeps_counts_and_leaves_no_muted_client(
    serve: Open, autojump_clock: MockClock, victim: str
) -> None:
    async with serve("num.network.threads=1") as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client = await it.connect()
        await client.ask(sized(10240, 9), 9)
        it.broker.kill(victim)
        await it.broker.wait_ready()
        at = it.ms
        again = await it.connect()
        # Earlier records still count, a little later.
        assert (await again.ask(sized(10240, 9), 9)).throttle_time_ms == 10_000 - at
        assert it.ms == at


async def test_producer_with_acks_0_is_muted(serve: Open, autojump_clock: MockClock) -> None:
    async with serve() as it:
        await it.create("t")
        await it.set(CLIENT, **{PRODUCER: 1024, TIME: 0.0001})
        client = await it.connect()
        batch = build_batch([Record(value=bytes(20_000))])
        request = produce(batch, acks=0, topic="t")
        expected = len(frame(request, 9, client_id="c")) - 4 - 10_240
        await client.send_request(request, 9)
        await client.ask(ApiVersionsRequest(), 0)
        assert it.ms == round(expected / 1024 * 1000)


async def filled(it: OpenBroker, size: int, count: int) -> None:
    await it.create("t")
    client = await it.connect("filler")
    for _ in range(count):
        batch = build_batch([Record(value=bytes(size))])
        response = await client.ask(produce(batch, topic="t"), 9)
        assert response.responses[0].partition_responses[0].error_code == 0


def fetch(offset: int, *, bytes_min: int = 1, wait_ms: int = 500, bytes_max: int = 4096) -> Message:
    request = fetch_request({("t", 0): offset}, {"t": ZERO_UUID}, wait_ms=wait_ms, bytes_min=0)
    request.min_bytes = bytes_min
    request.topics[0].partitions[0].partition_max_bytes = bytes_max
    return request


def records(response: Any) -> bytes:
    return b"".join(
        partition.records or b"" for topic in response.responses for partition in topic.partitions
    )


async def test_throttled_consumer_gets_empty_responses_until_below_quota(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve() as it:
        await filled(it, 400, 60)
        await it.set(CLIENT, **{CONSUMER: 500})
        client = await it.connect()
        got, throttled, size = 0, 0, 0
        while got < 60:
            response = await client.ask(fetch(got, bytes_max=500), 11)
            if response.throttle_time_ms:
                throttled += 1
                assert (records(response), response.error_code, response.session_id) == (b"", 0, 0)
            else:
                got += 1
                size += len(client.received)
                assert len(records(response)) > 400
        assert throttled > 0
        assert size / it.ms * 1000 == pytest.approx(500, rel=0.1)


async def test_small_quota_starves_no_client(serve: Open, autojump_clock: MockClock) -> None:
    async with serve() as it:
        await filled(it, 100, 60)
        await it.set(CLIENT, **{CONSUMER: 250})
        client = await it.connect()
        # What surrounds the records may make it a little too much at first.
        while not (found := records(await client.ask(fetch(0, bytes_min=4096), 11))):
            assert it.ms < 1000
        assert 0 < len(found) <= 2500


async def test_long_poll_wait_is_not_request_time(serve: Open, autojump_clock: MockClock) -> None:
    async with serve() as it:
        await it.create("t")
        await it.set(CLIENT, **{TIME: 50})
        client = await it.connect()
        for _ in range(20):
            response = await client.ask(fetch(0, wait_ms=900), 11)
            assert response.throttle_time_ms == 0
        assert it.ms == 18_000


async def test_fetch_response_is_delayed_in_kip_55_mode(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve("quota.throttle.mode=delay") as it:
        await it.set(CLIENT, **{PRODUCER: 1024})
        client = await it.connect()
        await client.send_request(sized(20480, 9), 9)
        await client.send_request(ApiVersionsRequest(), 0)
        client._correlation_id -= 1
        response = await client.answer(ApiKey.PRODUCE, 9)
        assert (response.throttle_time_ms, it.ms) == (10_000, 10_000)
        client._correlation_id += 1
        await client.answer(ApiKey.API_VERSIONS, 0)
        assert it.ms == 10_000


async def test_delayed_fetch_response_contains_records_in_kip_55_mode(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve("quota.throttle.mode=delay") as it:
        await filled(it, 3000, 1)
        await it.set(CLIENT, **{CONSUMER: 100})
        client = await it.connect()
        response = await client.ask(fetch(0), 11)
        assert len(records(response)) > 3000
        assert response.throttle_time_ms == it.ms > 20_000


# Request time ----------------------------------------------------------------------------------

VERSIONS = [
    (api, version)
    for api in APIS.values()
    for version in range(
        api.versions[0] if api.served_from is None else api.served_from, api.versions[1] + 1
    )
]


def plainest(api: ServedApi) -> Message:
    """A request that is answered, be it with an error."""
    if api.key == ApiKey.PRODUCE:
        return produce(b"")
    request = registry.schema(api.key).request()
    if api.key == ApiKey.FETCH:
        cast("Any", request).session_epoch = -1
    return request


def each(chosen: list[tuple[ServedApi, int]]) -> pytest.MarkDecorator:
    names = [f"{api.key.name}-{version}" for api, version in chosen]
    return pytest.mark.parametrize(("api", "version"), chosen, ids=names)


@each([(api, version) for api, version in VERSIONS if not api.cluster_action])
async def test_every_api_throttles_in_every_version(
    serve: Open, autojump_clock: MockClock, api: ServedApi, version: int
) -> None:
    async with serve("num.network.threads=1", "num.io.threads=1") as it:
        await it.set({"client-id": None}, **{TIME: 0.000001})
        client = await it.connect(api.key.name)
        at = it.ms
        response = await client.ask(plainest(api), version)
        # The time of reading and sending is known only afterwards, so it may take two.
        if it.ms == at and not getattr(response, "throttle_time_ms", 0):
            response = await client.ask(plainest(api), version)
        at = it.ms
        await client.ask(ApiVersionsRequest(), 0)
        assert it.ms - at == 1000
        if _has_field(response, version):
            assert response.throttle_time_ms == 1000


ALLOWED, REFUSED = "10.0.0.1", "10.0.0.2"
BROKERS_ONLY = (
    "principal.builder.class=tests.broker.network.secured:by_host",
    "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
    f"super.users=User:127.0.0.1;User:{ALLOWED}",
)


@each([(api, version) for api, version in VERSIONS if api.cluster_action])
async def test_inter_broker_requests_are_throttled_only_for_clients(
    serve: Open, autojump_clock: MockClock, api: ServedApi, version: int
) -> None:
    async with serve(*BROKERS_ONLY, "num.network.threads=1", "num.io.threads=1") as it:
        await it.set({"user": None}, **{TIME: 0.000001})
        for host, error, held_ms in (
            (ALLOWED, ErrorCode.NONE, 0),
            (REFUSED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 1000),
        ):
            client = await it.connect(host=host)
            at = it.ms
            for _ in range(3):  # Work that is known only afterwards counts for the next request.
                response = await client.ask(plainest(api), version)
                if hasattr(response, "error_code"):
                    denied = response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    assert denied == bool(error)
            assert it.ms - at >= held_ms
            assert held_ms or it.ms == at


def _has_field(response: Message, version: int) -> bool:
    """Whether a throttle time comes through in this version."""
    from minibroker_protocol.compiler import decode, encode

    if not hasattr(response, "throttle_time_ms"):
        return False  # SASL requests, whose clients should only notice that they wait
    sent = type(response)(throttle_time_ms=7)  # type: ignore[call-arg]
    back = decode(type(response), version, encode(sent, version))
    return bool(cast("Any", back).throttle_time_ms == 7)


async def test_generous_request_quota_throttles_no_client(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve() as it:
        await it.set({"client-id": None}, **{TIME: 2000})
        for api in APIS.values():
            client = await it.connect(api.key.name)
            response = await client.ask(plainest(api), api.versions[1])
            assert getattr(response, "throttle_time_ms", 0) == 0


async def test_no_member_of_a_group_is_lost_to_a_request_quota(
    serve: Open, autojump_clock: MockClock
) -> None:
    """Whatever the quota, a throttle lasts a second at most, and a session lasts longer."""
    async with serve("num.network.threads=1", "num.io.threads=1") as it:
        await it.create("t")
        await it.set(CLIENT, **{TIME: 0.000001})
        client = await it.connect()
        classic = await client.ask(
            JoinGroupRequest(
                group_id="classic",
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            3,
        )
        me: dict[str, Any] = {
            "group_id": "classic",
            "generation_id": 1,
            "member_id": classic.member_id,
        }
        mine = SyncGroupRequestAssignment(member_id=classic.member_id, assignment=b"")
        await client.ask(SyncGroupRequest(**me, assignments=[mine]), 3)
        joining: dict[str, Any] = {"member_epoch": 0, "subscribed_topic_names": ["t"]}
        consumer: Any = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", rebalance_timeout_ms=1000, topic_partitions=[], **joining
        )
        share: Any = ShareGroupHeartbeatRequest(group_id="s", member_id="m", **joining)
        throttled = 0
        while it.ms < 120_000:
            classic_beat: Any = HeartbeatRequest(**me)
            for request, version in ((classic_beat, 3), (consumer, 1), (share, 1)):
                answer = await client.ask(request, version)
                assert answer.error_code == ErrorCode.NONE
                throttled += answer.throttle_time_ms == 1000
                if request in (consumer, share):
                    request.member_epoch = answer.member_epoch
                    request.subscribed_topic_names = None
            await trio.sleep(2)
        assert throttled >= 60


# Changes of the cluster ------------------------------------------------------------------------


def topics(*names: str, partitions: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ],
        timeout_ms=1000,
    )


async def test_mutations_are_rejected_while_token_bucket_is_negative(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve() as it:
        await it.set({"user": None}, **{MUTATION: 1})
        client = await it.connect()
        response = await client.ask(topics("a", "b", partitions=15), 6)
        codes = {result.name: result.error_code for result in response.topics}
        assert codes == {"a": 0, "b": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        assert (response.throttle_time_ms, it.ms) == (4000, 0)
        refused = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=1000)
        response = await client.ask(refused, 6)
        assert it.ms == 4000  # it was not read before, and then the bucket was full enough
        assert response.responses[0].error_code == 0
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=2)], timeout_ms=1000
        )
        response = await client.ask(grow, 3)
        assert response.results[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_mutations_of_older_clients_are_throttled_instead_of_rejected(
    serve: Open, autojump_clock: MockClock
) -> None:
    async with serve() as it:
        await it.set({"user": None}, **{MUTATION: 1})
        client = await it.connect()
        response = await client.ask(topics("a", "b", partitions=15), 5)
        assert [result.error_code for result in response.topics] == [0, 0]
        assert (response.throttle_time_ms, it.ms) == (19_000, 0)
        await client.ask(MetadataRequest(), 4)
        assert it.ms == 19_000


async def test_validate_only_consumes_no_tokens(serve: Open, autojump_clock: MockClock) -> None:
    async with serve() as it:
        await it.set({"user": None}, **{MUTATION: 1})
        client = await it.connect()
        request = topics("a", partitions=50)
        request.validate_only = True
        for _ in range(3):
            response = await client.ask(request, 6)
            assert (response.topics[0].error_code, response.throttle_time_ms) == (0, 0)


async def test_throttle_does_not_delay_shutdown(serve: Open, autojump_clock: MockClock) -> None:
    async with serve() as it:
        await it.set(CLIENT, **{PRODUCER: 1})
        client = await it.connect()
        await client.ask(sized(20480, 9), 9)
        await client.send_request(ApiVersionsRequest(), 0)
        await wait_all_tasks_blocked()
    with pytest.raises(StreamClosed):
        await client.answer(ApiKey.API_VERSIONS, 0)
