"""Any bytes on a connection result in responses or in a close with one counted reason.

Complete brokers of tasks get random bytes, absurd lengths, valid requests of every API and version
with hostile contents, and the same mutated, truncated and half-closed. Nothing may be logged as an
error, no memory may stay taken, and another client must be served meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.registry import APIS
from minibroker.broker.metrics.definitions import CLOSED, QUEUE_USED, CloseReason
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import schema
from minibroker_protocol.schema import Array, Struct
from minibroker_protocol.types import Type
from tests.simulation.client import SimulatedClient, frame
from tests.simulation.surroundings import LISTENER, TWO_OF_EACH
from tests.simulation.world import logged_errors

T = TypeVar("T")

CASES_PER_VERSION = 6
PATIENCE_S = 5.0
SAFE = "safe"
NEVER = {CloseReason.INTERNAL_ERROR, CloseReason.PEER_LOST, CloseReason.PROCESS_DIED}
WAITS = ("max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms")
NAMES = ("t", "t", "g", "", "u", ".", "..", "a/b", "__consumer_offsets", "é" * 300, "range")
EXTREMES = (-1, 0, 1, 2, 127, -128)


class Target:
    """A broker, a client that behaves, and the count of connections that don't."""

    def __init__(self, broker: TaskBroker) -> None:
        self.broker = broker
        self.connected = 0
        self.produced = 0
        self.is_stopped = False

    async def connect(self) -> SimulatedClient:
        self.connected += 1
        return SimulatedClient(await self.broker.sources[LISTENER].connect())

    async def meet_bystander(self) -> None:
        self.bystander = await self.connect()
        topics = [
            CreatableTopic(name=name, num_partitions=2, replication_factor=1)
            for name in (SAFE, "t")
        ]
        await self.bystander.ask(CreateTopicsRequest(topics=topics), 7)

    async def serve_bystander(self) -> None:
        """Another client is served as usual, and soon."""
        data = PartitionProduceData(index=0, records=build_batch([Record(0, 0, None, b"v")]))
        topics = [TopicProduceData(name=SAFE, partition_data=[data])]
        with trio.fail_after(PATIENCE_S):
            response = await self.bystander.ask(ProduceRequest(acks=1, topic_data=topics), 9)
        (result,) = response.responses[0].partition_responses
        assert (result.error_code, result.base_offset) == (0, self.produced)
        self.produced += 1

    async def attack(self, data: bytes) -> bytes:
        """Return the broker's response to these bytes, after which the client half-closes."""
        client = await self.connect()
        answer = b""
        with trio.move_on_after(PATIENCE_S):
            try:
                await client.stream.send_all(data)
                client.end_sending()
            except StreamClosed:
                pass  # It disconnected before it got everything.
            answer = await client.wait_closed()
        client.close()
        return answer

    async def stop(self) -> None:
        """Stop the broker, unless that was done."""
        if not self.is_stopped:
            await self.serve_bystander()
            await self.broker.stop()
            self.is_stopped = True

    def counted(self) -> Counter[CloseReason]:
        """How connections ended."""
        found: Counter[CloseReason] = Counter()
        for name in self.broker.role_names:
            counters = self.broker.environment(name).metrics.snapshot().counters
            for (metric, labels), count in counters.items():
                if metric == CLOSED.name:
                    found[CloseReason(labels[1])] += count
        return found

    def memory_used(self) -> int:
        gauges = [
            self.broker.environment(name).metrics.snapshot().gauges
            for name in self.broker.role_names
            if name.startswith("processor")
        ]
        return int(sum(each[QUEUE_USED.name, ("request-memory",)] for each in gauges))


async def run_at_once(work: Callable[..., T], *arguments: object, **_: object) -> T:
    """Work without a thread: while a thread works, the clock jumps to the end of all patience."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


@pytest.fixture
async def target(
    autojump_clock: MockClock, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Target]:
    monkeypatch.setattr(trio.to_thread, "run_sync", run_at_once)
    settings = Settings.from_sources(
        pairs=[
            *TWO_OF_EACH,
            "auto.create.topics.enable=false",
            "group.initial.rebalance.delay.ms=0",
        ]
    )
    broker = TaskBroker(settings, tmp_path, clock=SimulatedClock(autojump_clock), seed=seed)
    with logged_errors() as errors:
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            target = Target(broker)
            await target.meet_bystander()
            yield target
            await target.stop()
        assert errors == []
    reasons = target.counted()
    assert not NEVER & set(reasons), reasons
    assert reasons.total() == target.connected
    assert target.memory_used() == 0


async def test_random_bytes_do_not_affect_other_clients(
    autojump_clock: MockClock, target: Target, seed: int
) -> None:
    random = Random(seed)
    for _ in range(200):
        await target.attack(random.randbytes(random.choice((1, 3, 4, 5, 20, 400))))
    await target.serve_bystander()


async def test_invalid_frame_lengths_close_the_connection(
    autojump_clock: MockClock, target: Target
) -> None:
    for length in (0, -1, -(2**31), 2**31 - 1, 100 * 1024 * 1024 + 1, 3, 9):
        await target.attack(length.to_bytes(4, "big", signed=True) + bytes(8))
        await target.serve_bystander()
    reasons = target.counted()
    assert reasons[CloseReason.BAD_FRAME] == 3
    assert reasons[CloseReason.FRAME_TOO_LARGE] == 2


async def test_http_and_tls_on_plaintext_listener_close_the_connection(
    autojump_clock: MockClock, target: Target
) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9):
        assert await target.attack(data) == b""
    assert target.counted()[CloseReason.BAD_FRAME] == 2


async def test_silent_clients_with_large_frames_are_evicted_and_delay_no_other(
    autojump_clock: MockClock, target: Target
) -> None:
    silent = [await target.connect() for _ in range(6)]
    for client in silent:
        await client.stream.send_all((90 * 1024 * 1024).to_bytes(4, "big") + b"\0\0")
    for _ in range(4):
        # Connections alternate between processors, so both are tested.
        other = await target.connect()
        with trio.fail_after(30):
            request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
            assert (await other.ask(request, 3)).error_code == 0
        other.close()
    assert not target.counted()[CloseReason.SLOW_CLIENT]
    await trio.sleep(10)
    # One at each processor keeps its memory, as no others wait for it any more.
    assert target.counted()[CloseReason.SLOW_CLIENT] == 4
    for client in silent:
        client.close()


async def test_half_closed_client_receives_its_responses(
    autojump_clock: MockClock, target: Target
) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    answer = await target.attack(frame(request, 4) + frame(request, 3))
    first = int.from_bytes(answer[:4], "big")
    second = int.from_bytes(answer[4 + first : 8 + first], "big")
    assert len(answer) == first + second + 8


async def test_client_that_never_reads_does_not_delay_shutdown(
    autojump_clock: MockClock, target: Target
) -> None:
    client = await target.connect()
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    with trio.move_on_after(PATIENCE_S) as sending:
        for _ in range(20_000):
            await client.stream.send_all(frame(request, 4))
    assert sending.cancelled_caught, "the broker must stop reading from this client"
    with trio.fail_after(PATIENCE_S):
        await target.stop()
    assert target.counted()[CloseReason.STOPPING] == 2


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: APIS[key].key.name)
async def test_every_api_survives_hostile_requests(
    autojump_clock: MockClock, target: Target, key: int, seed: int
) -> None:
    random = Random(f"{seed} {key}")
    low, high = APIS[key].versions
    for version in range(max(low, schema(key).valid_versions.low), high + 1):
        for _ in range(CASES_PER_VERSION):
            for data in attacks(key, version, random):
                await target.attack(data)
        await target.serve_bystander()


def attacks(key: int, version: int, random: Random) -> Iterator[bytes]:
    """A request with hostile contents, then damaged ones."""
    whole = hostile_frame(key, version, random)
    body = whole[4:]
    yield whole
    yield whole[: random.randrange(len(whole))]
    flipped = bytearray(body)
    for _ in range(random.randint(1, 3)):
        flipped[random.randrange(len(flipped))] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
    yield len(flipped).to_bytes(4, "big") + flipped
    at = random.randrange(len(body))
    extreme = random.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 5 + b"\x0f"))
    spoiled = body[:at] + extreme + body[at + len(extreme) :]
    yield len(spoiled).to_bytes(4, "big") + spoiled
    short = body[:at]
    yield len(short).to_bytes(4, "big") + short + whole


def hostile_frame(key: int, version: int, random: Random) -> bytes:
    """A well-formed request of well-formed nonsense."""
    while True:
        try:
            return frame(invent(schema(key).request, random), version)
        except EncodeError:
            continue  # Null where this version knows none.


def invent(cls: type[Struct], random: Random) -> Any:
    """A message or struct with values that look for trouble."""
    return cls(**{item.name: _value(item.kind, item.name, random) for item in cls.__fields__})


def _value(kind: Any, name: str, random: Random) -> Any:
    if isinstance(kind, Array):
        return [_value(kind.element, name, random) for _ in range(random.choice((0, 1, 1, 2, 5)))]
    if not isinstance(kind, Type):
        return invent(kind, random)
    if kind.nullable and random.random() < 0.1:
        return None
    sort = kind.name.removeprefix("plain ").removeprefix("nullable ")
    simple: dict[str, Sequence[Any]] = {
        "string": NAMES,
        "uuid": (bytes(16), random.randbytes(16)),
        "bool": (True, False),
        "float64": (0.0, -1.5, float("inf")),
    }
    if sort in simple:
        return random.choice(simple[sort])
    return _bytes(random) if sort in ("bytes", "records") else _integer(sort, name, random)


def _integer(sort: str, name: str, random: Random) -> int:
    bits = int(sort.removeprefix("u").removeprefix("int"))
    if name in WAITS:
        return random.choice((0, 1, 10, 7000))
    value = random.choice((*EXTREMES, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))))
    return value & (2**bits - 1) if sort.startswith("u") else value


def _bytes(random: Random) -> bytes:
    batch = build_batch([Record(0, 0, None, b"v")], producer_id=random.choice((-1, 7)))
    cut = random.randrange(len(batch))
    spoiled = bytearray(batch)
    spoiled[cut] ^= 0xFF
    return random.choice((b"", b"\0", batch, batch * 2, batch[:cut], bytes(spoiled), b"\xff" * 70))
