"""Requests in a single step, and cached responses, have the bytes of the general way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.single_fetch import COPIED_BYTES_MAX
from minibroker.broker.log.log import FileSlice
from minibroker.broker.log.paths import replaced_path
from minibroker.broker.metadata.image import Image
from minibroker.broker.network.direct_requests import (
    REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    RESPONSES_MAX,
    CachedResponse,
    ResponseCache,
    SingleRequests,
)
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.network.response_sender import OpenFiles
from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.compression import Compression
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.messages.streams_group_heartbeat import (
    Endpoint,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, decode_request_header, encode_request_header
from tests.broker.network.one_broker import another, assert_single_step_changes_nothing, running
from tests.simulation.client import SimulatedClient

VERSIONS = range(3, 14)
NO_ID = bytes(16)


def batch(
    text: bytes = b"v",
    *,
    timestamp: int = 0,
    sequence: int = -1,
    compression: Compression = Compression.NONE,
) -> bytes:
    producer_id = -1 if sequence < 0 else 7
    return build_batch(
        [Record(timestamp=timestamp, key=b"k", value=text)],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=sequence,
    )


def produce(
    records: bytes | None, *, topic: str = "t", index: int = 0, acks: int = -1, **named: Any
) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records)]
    topics = [
        TopicProduceData(name=topic, topic_id=named.pop("topic_id", NO_ID), partition_data=data)
    ]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics, **named)


async def topic_id(client: SimulatedClient) -> bytes:
    found = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    return bytes(found.topics[0].topic_id)


def requests(known: bytes) -> list[ProduceRequest]:
    """Requests of all kinds: most are executed in a single step, and some must not be."""
    ordinary = [produce(batch(bytes([n])), index=n % 2, acks=(1, -1)[n % 2]) for n in range(4)]
    sequences = [produce(batch(sequence=n)) for n in (0, 1, 1, 3, 0)]
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    found = [
        *ordinary,
        *sequences,
        produce(bytes(damaged)),
        produce(batch() + batch()),
        produce(b""),
        produce(None),
        produce(batch(), topic="missing"),
        produce(batch(), topic="__consumer_offsets"),
        produce(batch(), index=9),
        produce(batch(), acks=5),
        produce(batch(), transactional_id="x"),
        produce(batch(compression=Compression.ZSTD)),
        produce(batch(compression=Compression.GZIP)),
        produce(batch(timestamp=2**62)),
    ]
    two = produce(batch())
    two.topic_data = two.topic_data * 2
    tagged = produce(batch())
    tagged.topic_data[0].unknown_tagged_fields = {9: b"x"}
    found += [two, tagged]
    for request in found:
        for topic in request.topic_data:
            topic.topic_id = known if topic.name == "t" else NO_ID
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_single_produce_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[bytes]:
        known, answers = await topic_id(client), []
        for request in requests(known):
            await client.ask(request, version)
            answers.append(client.received.replace(known, b"topic id"))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 8


def transactional(
    sequence: int, epoch: int, transactional_id: str | None = "x", producer_id: int = 0
) -> dict[str, Any]:
    records = build_batch(
        [Record(0, 0, b"k", b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return {"records": records, "transactional_id": transactional_id}


def end(epoch: int, transactional_id: str = "x", *, committed: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=0,
        producer_epoch=epoch,
        committed=committed,
    )


def add_partitions(
    epoch: int, indexes: tuple[int, ...] = (0, 1), topic: str = "t", transactional_id: str = "x"
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=0,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))],
    )


def additions(epoch: int) -> list[AddPartitionsToTxnRequest]:
    return [
        add_partitions(epoch),
        add_partitions(epoch),  # again
        add_partitions(epoch, (1, 9)),
        add_partitions(epoch, ()),
        add_partitions(epoch + 1),
        add_partitions(epoch, topic="missing"),
        add_partitions(epoch, topic="__consumer_offsets"),
        add_partitions(epoch, transactional_id=""),
        add_partitions(epoch, transactional_id="other"),
    ]


def transaction_requests(known: bytes, *, adds: bool) -> list[Any]:
    """Transactions as they should be, and requests with something wrong between them."""
    found: list[Any] = []
    for number in range(3):
        epoch = number if adds else 0
        first = 0 if adds else 2 * number
        found += [
            *([] if adds else additions(epoch)),
            transactional(first, epoch),
            transactional(first, epoch),  # again
            transactional(first + 1, epoch),
            transactional(first + 9, epoch),
            transactional(first + 2, epoch, transactional_id=None),
            transactional(first + 2, epoch, transactional_id="other"),
            transactional(0, epoch, producer_id=77),
            end(epoch + 5),
            end(epoch, transactional_id=""),
            end(epoch, transactional_id="other"),
            end(epoch, committed=number != 1),
            end(epoch, committed=number != 1),
            end(epoch, committed=number == 1),
        ]
    found.append(transactional(8, 0))
    return [
        produce(each["records"], transactional_id=each["transactional_id"], topic_id=known)
        if isinstance(each, dict)
        else each
        for each in found
    ]


@pytest.mark.parametrize(
    "versions", [(9, 1, 0), (10, 3, 3), (11, 4, 2), (12, 5, 3), (13, 5, 3)], ids=str
)
async def test_requests_of_transactions_get_the_bytes_of_the_general_way(
    versions: tuple[int, int, int], tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    kinds: list[type[Message]] = [ProduceRequest, EndTxnRequest, AddPartitionsToTxnRequest]
    version_of = dict(zip(kinds, versions, strict=True))

    async def play(client: SimulatedClient) -> list[bytes]:
        known, answers = await topic_id(client), []
        await client.ask(FindCoordinatorRequest(key="x", key_type=1), 2)
        begun = await client.ask(
            InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4
        )
        assert (begun.error_code, begun.producer_id) == (0, 0)
        for request in transaction_requests(known, adds=versions[0] >= 12):
            await client.ask(request, version_of[type(request)])
            answers.append(client.received.replace(known, b"topic id"))
            await trio.sleep(1)  # The markers are written.
        response = await client.ask(fetch(known, isolation_level=1), 11)
        answers.append(bytes(response.responses[0].partitions[0].records))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 3 * 3


def member_heartbeats() -> list[Message]:
    """Heartbeats of members of both kinds: most only extend a session, and some must not."""
    consumer = partial(ConsumerGroupHeartbeatRequest, group_id="c", member_id="m", member_epoch=2)
    share = partial(ShareGroupHeartbeatRequest, group_id="s", member_id="m", member_epoch=3)
    return [
        ConsumerGroupHeartbeatRequest(
            group_id="c",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        ShareGroupHeartbeatRequest(
            group_id="s", member_id="m", member_epoch=0, subscribed_topic_names=["t"]
        ),
        *[kind() for kind in (consumer, share) for _ in range(4)],
        *[kind(member_epoch=epoch) for kind in (consumer, share) for epoch in (1, 9)],
        *[kind(rack_id=rack) for kind in (consumer, share) for rack in ("", "r")],
        *[kind(member_id=name) for kind in (consumer, share) for name in ("", "x")],
        *[kind(group_id=name) for kind in (consumer, share) for name in ("", "x", "c", "s")],
        consumer(instance_id=""),
        consumer(server_assignor="none"),
        consumer(topic_partitions=[]),
        *[kind(subscribed_topic_names=["missing"]) for kind in (consumer, share)],
        *[kind() for kind in (consumer, share)],
        *[kind(member_epoch=-1) for kind in (consumer, share)],
        *[kind() for kind in (consumer, share)],
    ]


async def test_heartbeats_with_member_epochs_get_the_bytes_of_the_general_way(
    tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[bytes]:
        known, answers = await topic_id(client), []
        for request in member_heartbeats():
            await client.ask(request, 1)
            answers.append(client.received.replace(known, b"topic id"))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 6


def streams_heartbeats() -> list[Message]:
    """Heartbeats of a member of a streams group, whose first target waits for three seconds."""
    beat = partial(StreamsGroupHeartbeatRequest, group_id="r", member_id="m", member_epoch=2)
    source = Subtopology(subtopology_id="0", source_topics=["t"])
    return [
        beat(
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            process_id="p",
            topology=Topology(epoch=0, subtopologies=[source]),
        ),
        *[beat(member_epoch=1) for _ in range(5)],
        *[beat() for _ in range(4)],
        *[beat(member_epoch=epoch) for epoch in (1, 9)],
        *[beat(group_id=name) for name in ("", "x", "c")],
        *[beat(member_id=name) for name in ("", "x")],
        beat(rack_id="r"),
        beat(member_epoch=3, instance_id=""),
        beat(member_epoch=3, endpoint_information_epoch=4),
        beat(member_epoch=3, active_tasks=[], standby_tasks=[], warmup_tasks=[]),
        beat(member_epoch=3, task_offsets=[]),
        beat(member_epoch=3, user_endpoint=Endpoint(host="h", port=1)),
        *[beat(member_epoch=4) for _ in range(3)],
        beat(member_epoch=4, shutdown_application=True),
        beat(member_epoch=4),
        beat(member_epoch=-1),
        beat(member_epoch=4),
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_streams_heartbeats_get_the_bytes_of_the_general_way(
    tmp_path: Path, autojump_clock: MockClock, direct: list[int], version: int
) -> None:
    async def play(client: SimulatedClient) -> list[bytes]:
        await topic_id(client)
        answers = []
        for request in streams_heartbeats():
            await client.ask(request, version)
            answers.append(client.received)
            await trio.sleep(1)
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 4


FETCH_VERSIONS = range(4, 19)
WAIT_MS = 300


def fetch(
    known: bytes, offset: int = 0, *, wait_ms: int = 0, topic: str = "t", **named: Any
) -> FetchRequest:
    partition = FetchPartition(
        partition=named.pop("partition", 0),
        fetch_offset=offset,
        partition_max_bytes=named.pop("partition_max_bytes", 1000),
        current_leader_epoch=named.pop("leader_epoch", -1),
        last_fetched_epoch=named.pop("last_fetched_epoch", -1),
        log_start_offset=-1,
    )
    topic_id = known if topic == "t" else NO_ID
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=[partition])]
    given = {"min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **named}
    return FetchRequest(replica_id=-1, max_wait_ms=wait_ms, topics=topics, **given)


def fetches(known: bytes) -> list[FetchRequest]:
    """Fetches of all kinds: most are executed in a single step, and some must not be."""
    two = fetch(known)
    two.topics = two.topics * 2
    return [
        fetch(known),
        fetch(known, 2),
        fetch(known, 1, isolation_level=1),
        fetch(known, max_bytes=1),
        fetch(known, partition_max_bytes=1),
        fetch(known, 3, wait_ms=WAIT_MS),
        fetch(known, 3, isolation_level=1, wait_ms=WAIT_MS),
        fetch(known, 3, min_bytes=0),
        fetch(known, 9),
        fetch(known, -1),
        fetch(known, partition=1, wait_ms=WAIT_MS),
        fetch(known, partition=7),
        fetch(known, topic="missing"),
        fetch(known, leader_epoch=0),
        fetch(known, leader_epoch=5),
        fetch(known, 2, last_fetched_epoch=0),
        fetch(known, session_id=7, session_epoch=3),
        two,
    ]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_single_fetch_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[tuple[float, bytes]]:
        known, answers = await topic_id(client), []
        for number in range(3):
            await client.ask(produce(batch(bytes([number]))), 9)
        for request in fetches(known):
            began = trio.current_time()
            await client.ask(request, version)
            took = round(trio.current_time() - began, 3)
            answers.append((took, client.received.replace(known, b"topic id")))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 8 + 3


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_waiting_fetch_is_answered_when_a_record_arrives(
    tmp_path: Path, autojump_clock: MockClock, isolation_level: int, direct: list[int]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        known = await topic_id(client)
        began = trio.current_time()
        request = fetch(known, wait_ms=60_000, isolation_level=isolation_level)
        await client.send_request(request, 11)
        await trio.sleep(1)
        producer = await another(client)
        await producer.ask(produce(batch(b"late")), 9)
        response = await client.answer(1, 11)
        assert round(trio.current_time() - began, 3) == 1
        [partition] = response.responses[0].partitions
        assert bytes(partition.records).endswith(b"late\0")
    assert len(direct) == 2


async def test_waiting_fetch_of_a_deleted_topic_gets_an_error_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        known = await topic_id(client)
        began = trio.current_time()
        await client.send_request(fetch(known, wait_ms=60_000), 11)
        await trio.sleep(1)
        names = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        await (await another(client)).ask(names, 4)
        response = await client.answer(1, 11)
        assert trio.current_time() - began < 2
        assert response.responses[0].partitions[0].error_code == 3


async def test_records_that_are_sent_from_the_file_go_the_general_way(
    tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        known = await topic_id(client)
        await client.ask(produce(batch(bytes(COPIED_BYTES_MAX))), 9)
        response = await client.ask(fetch(known, partition_max_bytes=1 << 20), 11)
        assert len(response.responses[0].partitions[0].records) > COPIED_BYTES_MAX
    assert direct == []


def test_read_gets_the_file_of_the_slice_after_a_cleaned_copy_took_its_name(
    tmp_path: Path,
) -> None:
    unused: Any = None
    single = SingleRequests({}, unused, unused, OpenFiles(64), unused)
    path = tmp_path / "0.log"
    path.write_bytes(b"replaced")
    before = FileSlice(str(path), 0, 8, path.stat().st_ino)
    assert single.read(before) == b"replaced"
    path.rename(replaced_path(str(path), before.inode))
    path.write_bytes(b"cleaned")
    cleaned = FileSlice(str(path), 0, 7, path.stat().st_ino)
    assert single.read(cleaned) == b"cleaned"
    assert single.read(before) == b"replaced"


IMAGE = Image()


def body(text: str = "x", key: ApiKey = ApiKey.METADATA, version: int = 12) -> bytes:
    return encode_request_header(RequestHeader(key, version, 7, "c")) + text.encode()


def cost(
    request: bytes,
    listener: str = "PLAINTEXT",
    error: int = 0,
    connected_to: tuple[str, int] | None = None,
) -> RequestCost:
    client = SimpleNamespace(caller=SimpleNamespace(listener=listener, connected_to=connected_to))
    made = RequestCost(cast("Any", client), len(request), 0, 0)
    made.header, made.error = decode_request_header(request)[0], error
    made.response = registry.schema(made.header.api_key).response()
    return made


def kept(cache: ResponseCache, request: bytes, response: bytes = b"abcdefgh", **of: Any) -> None:
    assert cache.find(cost(request, **of), request, IMAGE) is None
    cache.keep(cost(request, **of), request, IMAGE, [response[:3], response[3:]])


def found(cache: ResponseCache, request: bytes, image: Image = IMAGE, **of: Any) -> bytes | None:
    response = cache.find(cost(request, **of), request, image)
    return None if response is None else response_body(response)


def response_body(response: CachedResponse) -> bytes:
    """The response without length and header, which are checked for their size."""
    encoded = response.encode()
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    return encoded[4 + response.header_bytes :]


def test_response_is_found_for_the_same_request_of_any_client() -> None:
    cache = ResponseCache()
    kept(cache, body())
    other = encode_request_header(RequestHeader(ApiKey.METADATA, 12, 8, "other")) + b"x"
    assert found(cache, body()) == found(cache, other) == b"abcdefgh"
    assert found(cache, body("y")) is None
    assert found(cache, body(version=11)) is None
    assert found(cache, body(), listener="SSL") is None
    assert found(cache, body(), connected_to=("10.0.0.7", 9092)) is None


def test_response_is_not_found_with_another_image() -> None:
    cache = ResponseCache()
    kept(cache, body())
    assert found(cache, body(), Image()) is None
    cache.keep(cost(body()), body(), IMAGE, [b"old"])
    assert found(cache, body(), IMAGE) is None


@pytest.mark.parametrize(("version", "expected"), [(8, b"\0\0\0\7"), (9, b"\0\0\0\7\0")])
def test_response_has_the_header_of_its_request(version: int, expected: bytes) -> None:
    cache = ResponseCache()
    kept(cache, body(version=version))
    response = cache.find(cost(body(version=version)), body(version=version), IMAGE)
    assert response is not None
    assert response.encode()[4:].startswith(expected)
    assert response.header_bytes == len(expected)


def test_found_response_sets_header_and_error() -> None:
    cache = ResponseCache()
    kept(cache, body(), error=3)
    of = cost(body())
    del of.header
    response = cache.find(of, body(), IMAGE)
    assert response is not None
    assert (of.header.correlation_id, of.error, of.is_direct) == (7, 3, True)


@pytest.mark.parametrize(("version", "expected"), [(3, b"\0\0\0\5efgh"), (2, b"abcdefgh")])
def test_throttle_time_is_written_in_versions_that_have_it(version: int, expected: bytes) -> None:
    cache = ResponseCache()
    kept(cache, body(version=version))
    response = cache.find(cost(body(version=version)), body(version=version), IMAGE)
    assert isinstance(response, CachedResponse)
    response.throttle_time_ms = 5
    assert response_body(response) == expected


def api_versions(version: int, software: str = "client") -> tuple[RequestCost, bytes]:
    """A request that names this software, and its response."""
    request = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    header = encode_request_header(RequestHeader(ApiKey.API_VERSIONS, version, 7, "c"))
    frame = header + encode(request, version)
    made = cost(frame)
    client = cast("Any", made.client)
    client.software = None
    client.set_software = lambda name, version: setattr(client, "software", (name, version))
    made.request = request
    made.response = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, max_version=9) for key in (0, 1, 18)],
        supported_features=[SupportedFeatureKey(name="f", min_version=1, max_version=2)],
    )
    return made, frame


def keep_api_versions(cache: ResponseCache, version: int, software: str = "client") -> None:
    of, frame = api_versions(version, software)
    assert cache.find(of, frame, IMAGE) is None
    cache.keep(of, frame, IMAGE, [encode(of.response, version)])


@pytest.mark.parametrize("version", range(6))
def test_throttle_time_is_written_between_other_fields(version: int) -> None:
    cache = ResponseCache()
    keep_api_versions(cache, version)
    for throttle_time_ms in (0, 1, 2**31 - 1):
        of, frame = api_versions(version)
        response = cache.find(of, frame, IMAGE)
        assert response is not None
        of.response.throttle_time_ms = response.throttle_time_ms = throttle_time_ms
        assert response_body(response) == encode(of.response, version)


def test_software_of_a_cached_request_is_that_of_its_client() -> None:
    cache = ResponseCache()
    for version, name in ((3, "a"), (3, "b"), (2, "a")):
        keep_api_versions(cache, version, name)
    for version, name, software in ((3, "a", ("a", "1")), (3, "b", ("b", "1")), (2, "a", None)):
        of, frame = api_versions(version, name)
        assert cache.find(of, frame, IMAGE) is not None
        assert of.client.software == software


def test_response_in_another_version_than_requested_is_not_kept() -> None:
    cache = ResponseCache()
    request = body("", key=ApiKey.API_VERSIONS, version=99)
    of = cost(request)
    assert cache.find(of, request, IMAGE) is None
    of.header = of.header._replace(api_version=0)
    cache.keep(of, request, IMAGE, [b"abcd"])
    assert found(cache, request) is None


def test_other_apis_and_large_requests_are_not_kept() -> None:
    cache = ResponseCache()
    for request in (body(key=ApiKey.SASL_HANDSHAKE, version=1), body("x" * REQUEST_BYTES_MAX)):
        cache.keep(cost(request), request, IMAGE, [b"abcd"])
        assert found(cache, request) is None


def test_number_and_size_of_responses_are_bounded() -> None:
    cache = ResponseCache()
    for number in range(RESPONSES_MAX):
        kept(cache, body(str(number)))
    assert found(cache, body("0")) is not None
    kept(cache, body("one more"))
    assert found(cache, body("0")) is None
    assert found(cache, body("one more")) is not None
    kept(cache, body("large"), bytes(RESPONSE_BYTES_MAX))
    assert found(cache, body("one more")) is None
    assert found(cache, body("large")) is not None
    kept(cache, body("too large"), bytes(RESPONSE_BYTES_MAX + 1))
    assert found(cache, body("too large")) is None


@pytest.mark.parametrize("version", range(6))
async def test_repeated_api_versions_request_gets_the_same_bytes_on_each_connection(
    version: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    async with running(tmp_path, autojump_clock, "combined") as client:
        await client.ask(asked, version)
        received = client.received
        await client.ask(asked, version)
        assert client.received[8:] == received[8:]


@pytest.mark.parametrize("version", range(14))
async def test_repeated_metadata_request_gets_the_same_bytes_until_the_metadata_change(
    version: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    asked = MetadataRequest(topics=[] if version == 0 else None)
    async with running(tmp_path, autojump_clock, "combined") as client:
        first = await client.ask(asked, version)
        received = client.received
        assert "t" in {topic.name for topic in first.topics}
        await client.ask(asked, version)
        assert client.received[4:] == received[4:]
        topics = [CreatableTopic(name="u", num_partitions=1, replication_factor=1)]
        await client.ask(CreateTopicsRequest(topics=topics), 7)
        changed = await client.ask(asked, version)
        assert {"t", "u"} <= {topic.name for topic in changed.topics}
