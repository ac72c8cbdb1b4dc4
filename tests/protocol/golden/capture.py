"""Captures requests of real clients, for ``test_golden.py``.

Run with ``python -m tests.protocol.golden.capture``. A listener records each kind of request once
and responds with this project's encoder, just enough for a client to create a topic, produce, join
a group, consume, commit and leave. Each client runs in its own process; its requests are written to
``<client>.txt`` beside this file, one frame per line.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from minibroker_protocol import compiler, framing, records, wire
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import (
    api_versions,
    create_topics,
    describe_cluster,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    sync_group,
)
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message

HERE = Path(__file__).parent
TOPIC, TOPIC_ID, GROUP, MEMBER = "golden", bytes(range(16)), "golden-group", "member-1"
CLIENT_SECONDS_MAX = 60
FRAME_LIMIT = 1 << 20


class Broker:
    """Answers one client as the only broker of a cluster with one topic of one partition."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.frames: dict[tuple[ApiKey, int], bytes] = {}

    async def serve(self, stream: trio.SocketStream) -> None:
        decoder = framing.FrameDecoder(limit=FRAME_LIMIT)
        with contextlib.suppress(trio.BrokenResourceError):
            async for data in stream:
                decoder.receive(data)
                while (frame := decoder.next_frame()) is not None:
                    await self.answer(stream, frame)

    async def answer(self, stream: trio.SocketStream, frame: bytes) -> None:
        header, pos = wire.decode_request_header(frame)
        key = ApiKey(header.api_key)
        self.frames.setdefault((key, header.api_version), frame)
        request = compiler.decode(schema(key).request, header.api_version, frame, pos)
        response = ANSWERS[key](self, request)
        chunks = framing.response_frame(key, header.api_version, header.correlation_id, response)
        await stream.send_all(b"".join(bytes(chunk) for chunk in chunks))  # type: ignore[arg-type]

    def api_versions(self, request: Any) -> Message:
        keys = []
        for key in ANSWERS:
            low, high = schema(key).valid_versions
            low = 0 if key is ApiKey.PRODUCE else low
            entry = api_versions.ApiVersion(api_key=key, min_version=low, max_version=high)
            keys.append(entry)
        feature = "transaction.version"
        return api_versions.ApiVersionsResponse(
            api_keys=keys,
            supported_features=[
                api_versions.SupportedFeatureKey(name=feature, min_version=0, max_version=2)
            ],
            finalized_features_epoch=1,
            finalized_features=[
                api_versions.FinalizedFeatureKey(
                    name=feature, min_version_level=2, max_version_level=2
                )
            ],
        )

    def metadata(self, request: Any) -> Message:
        partition = metadata.MetadataResponsePartition(replica_nodes=[0], isr_nodes=[0])
        topic = metadata.MetadataResponseTopic(
            name=TOPIC, topic_id=TOPIC_ID, partitions=[partition]
        )
        node = metadata.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port)
        return metadata.MetadataResponse(
            brokers=[node], cluster_id="golden-cluster", controller_id=0, topics=[topic]
        )

    def describe_cluster(self, request: Any) -> Message:
        node = describe_cluster.DescribeClusterBroker(broker_id=0, host="127.0.0.1", port=self.port)
        return describe_cluster.DescribeClusterResponse(
            cluster_id="golden-cluster", controller_id=0, brokers=[node]
        )

    def create_topics(self, request: Any) -> Message:
        made = [
            create_topics.CreatableTopicResult(name=topic.name, topic_id=TOPIC_ID)
            for topic in request.topics
        ]
        return create_topics.CreateTopicsResponse(topics=made)

    def init_producer_id(self, request: Any) -> Message:
        return init_producer_id.InitProducerIdResponse(producer_id=7, producer_epoch=0)

    def produce(self, request: Any) -> Message:
        answer = produce.PartitionProduceResponse(index=0, base_offset=0)
        topic = produce.TopicProduceResponse(
            name=TOPIC, topic_id=TOPIC_ID, partition_responses=[answer]
        )
        return produce.ProduceResponse(responses=[topic])

    def list_offsets(self, request: Any) -> Message:
        answer = list_offsets.ListOffsetsPartitionResponse(offset=0, leader_epoch=0)
        topic = list_offsets.ListOffsetsTopicResponse(name=TOPIC, partitions=[answer])
        return list_offsets.ListOffsetsResponse(topics=[topic])

    def fetch(self, request: Any) -> Message:
        wanted = request.topics[0].partitions[0].fetch_offset if request.topics else 1
        batch = records.build_batch([records.Record(0, 1_700_000_000_000, b"key", b"value")])
        answer = fetch.PartitionData(
            high_watermark=1,
            last_stable_offset=1,
            log_start_offset=0,
            records=batch if wanted == 0 else b"",
        )
        topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[answer])
        return fetch.FetchResponse(responses=[topic])

    def find_coordinator(self, request: Any) -> Message:
        found = find_coordinator.Coordinator(key=GROUP, node_id=0, host="127.0.0.1", port=self.port)
        return find_coordinator.FindCoordinatorResponse(
            node_id=0, host="127.0.0.1", port=self.port, coordinators=[found]
        )

    def join_group(self, request: Any) -> Message:
        if not request.member_id:
            return join_group.JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=MEMBER
            )
        chosen = request.protocols[0]
        member = join_group.JoinGroupResponseMember(
            member_id=request.member_id, metadata=bytes(chosen.metadata)
        )
        return join_group.JoinGroupResponse(
            generation_id=1,
            protocol_type="consumer",
            protocol_name=chosen.name,
            leader=request.member_id,
            member_id=request.member_id,
            members=[member],
        )

    def sync_group(self, request: Any) -> Message:
        return sync_group.SyncGroupResponse(
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=request.assignments[0].assignment if request.assignments else b"",
        )

    def heartbeat(self, request: Any) -> Message:
        return heartbeat.HeartbeatResponse()

    def leave_group(self, request: Any) -> Message:
        left = leave_group.MemberResponse(member_id=MEMBER)
        return leave_group.LeaveGroupResponse(members=[left])

    def offset_fetch(self, request: Any) -> Message:
        one = offset_fetch.OffsetFetchResponsePartition(committed_offset=-1)
        many = offset_fetch.OffsetFetchResponsePartitions(committed_offset=-1)
        topics = offset_fetch.OffsetFetchResponseTopics(
            name=TOPIC, topic_id=TOPIC_ID, partitions=[many]
        )
        return offset_fetch.OffsetFetchResponse(
            topics=[offset_fetch.OffsetFetchResponseTopic(name=TOPIC, partitions=[one])],
            groups=[offset_fetch.OffsetFetchResponseGroup(group_id=GROUP, topics=[topics])],
        )

    def offset_commit(self, request: Any) -> Message:
        answer = offset_commit.OffsetCommitResponsePartition()
        topic = offset_commit.OffsetCommitResponseTopic(
            name=TOPIC, topic_id=TOPIC_ID, partitions=[answer]
        )
        return offset_commit.OffsetCommitResponse(topics=[topic])


ANSWERS: dict[ApiKey, Callable[[Broker, Any], Message]] = {
    key: getattr(Broker, key.name.lower()) for key in ApiKey if hasattr(Broker, key.name.lower())
}


# ------------------------------------------------------------------------------------ clients


def confluent_kafka(bootstrap: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    common = {"bootstrap.servers": bootstrap, "client.id": "golden"}
    admin = AdminClient(common)
    for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        made.result(10)
    for idempotent in (False, True):
        producer = Producer({**common, "enable.idempotence": idempotent})
        producer.produce(TOPIC, b"value", b"key", headers={"h": b"v"})
        producer.flush(10)
    consumer = Consumer({**common, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    message = consumer.poll(20)
    assert message is not None, "nothing was consumed"
    assert message.error() is None, message.error()
    consumer.commit(message=message, asynchronous=False)
    consumer.close()


def kafka_python(bootstrap: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    common: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "golden"}
    admin = KafkaAdminClient(**common)
    admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    for idempotent in (False, True):
        producer = KafkaProducer(**common, enable_idempotence=idempotent)
        producer.send(TOPIC, b"value", b"key", headers=[("h", b"v")]).get(10)
        producer.close()
    consumer = KafkaConsumer(
        TOPIC, **common, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
    )
    next(consumer)
    consumer.commit()
    consumer.close()


def aiokafka(bootstrap: str) -> None:
    import asyncio  # noqa: TID251 - what aiokafka runs on

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    common: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "golden"}

    async def run() -> None:
        admin = AIOKafkaAdminClient(**common)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, 1, 1)])
        await admin.close()
        for idempotent in (False, True):
            producer = AIOKafkaProducer(**common, enable_idempotence=idempotent)
            await producer.start()
            await producer.send_and_wait(TOPIC, b"value", b"key", headers=[("h", b"v")])
            await producer.stop()
        consumer = AIOKafkaConsumer(
            TOPIC, **common, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        await consumer.getone()
        await consumer.commit()
        await consumer.stop()

    asyncio.run(run())


CLIENTS: dict[str, Callable[[str], None]] = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def described(name: str) -> str:
    version = f"{name} {importlib.metadata.version(name)}"
    if name == "confluent-kafka":
        import confluent_kafka as package

        version += f" (librdkafka {package.libversion()[0]})"
    return version


async def capture(name: str) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    broker = Broker(port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, broker.serve, [listener])
        command = [sys.executable, "-m", "tests.protocol.golden.capture", name, f"127.0.0.1:{port}"]
        with trio.move_on_after(CLIENT_SECONDS_MAX):
            await trio.run_process(command)
        nursery.cancel_scope.cancel()
    lines = [f"# {described(name)}"]
    for (key, version), frame in sorted(broker.frames.items()):
        prefixed = struct.pack(">i", len(frame)) + frame
        lines.append(f"{key.name} {version} {prefixed.hex()}")
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    if len(sys.argv) == 3:
        CLIENTS[sys.argv[1]](sys.argv[2])
        return
    for name in CLIENTS:
        trio.run(capture, name)


if __name__ == "__main__":
    main()
