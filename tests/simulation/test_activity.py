"""The activity of a complete broker: each request once, with exactly what quotas recorded.

The broker writes events to its own log, which is read when it has ended. Replayed with the plain
arithmetic of rates, the events result in every rate and every throttle that the broker had.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.registry import APIS
from minibroker.broker.metrics.definitions import ACTIVITY_DROPPED, ACTIVITY_EVENTS
from minibroker.broker.quotas.rate import Rate, throttle_ms
from minibroker.lab.activity.events import TOPIC
from minibroker.lab.observers import activity_sender
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID
from tests.lab.activity.decoding import events_in
from tests.simulation.actors import fetch_request
from tests.simulation.client import SimulatedClient, frame
from tests.simulation.test_quotas import (
    CLIENT,
    CONSUMER,
    MUTATION,
    PRODUCER,
    TIME,
    Open,
    OpenBroker,
    plainest,
    produce,
    serve,
    topics,
)

__all__ = ["serve"]

ON = ("activity.enable=true", "num.io.threads=2")
WAITS = ("delayed", "admitted")
Events = list[dict[str, Any]]


def events(directory: Path) -> Events:
    """All that was written, in the order in which it was."""
    found: Events = []
    for path in sorted((directory / f"{TOPIC}-0").glob("*.log")):
        data = memoryview(path.read_bytes())
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            for record in iter_records(batch):
                found += events_in(record.value or b"")
    sequences = [each["sequence"] for each in found]
    assert sequences == sorted(set(sequences))
    return found


def requests(directory: Path, client_id: str = "c") -> Events:
    return [each for each in events(directory) if each.get("client_id") == client_id]


def of(found: Events, connection: int) -> list[str]:
    return [each["happened"] for each in found if each["connection"] == connection]


def happened(directory: Path) -> Events:
    return [each for each in events(directory) if each["kind"] == "connection"]


def counted(it: OpenBroker, name: str) -> int:
    roles = [role for role in it.broker.role_names if role != "controller"]
    snapshots = [it.broker.environment(role).metrics.snapshot() for role in roles]
    return sum(each.counters.get((name, ()), 0) for each in snapshots)


async def test_requests_of_every_api_are_recorded_once(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    sizes: dict[int, tuple[int, int, int]] = {}
    async with serve(*ON) as it:
        for api in APIS.values():
            request, version = plainest(api), api.versions[1]
            client = await it.connect()
            await client.ask(request, version)
            head = 4 if version < 5 and api.key == ApiKey.API_VERSIONS else None
            asked = len(frame(request, version, client_id="c")) - 4
            sizes[api.key] = version, asked, len(client.received) if head is None else 0
    recorded = requests(tmp_path)
    assert Counter(each["api_key"] for each in recorded) == dict.fromkeys(map(int, APIS), 1)
    for each in recorded:
        version, asked, answered = sizes[each["api_key"]]
        assert (each["api_version"], each["request_bytes"]) == (version, asked)
        # The header of a response is its correlation id, and a byte in newer versions.
        assert not answered or answered - each["response_bytes"] in (4, 5)
        assert each["throttle_ms"] == 0
        assert each["checked_ns"] > 0
        assert not {"produce", "fetch", "request", "mutation"} & each.keys()
        assert min(each["total_ns"], each["network_ns"]) > 0


async def test_records_and_errors_are_recorded(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve(*ON) as it:
        await it.create("t")
        client = await it.connect()
        await client.ask(produce(build_batch([Record(value=b"v")] * 7), topic="t"), 9)
        await client.ask(produce(build_batch([Record(value=b"v")]), topic="missing"), 9)
        await client.send_request(produce(build_batch([Record(value=b"v")]), topic="t", acks=0), 9)
        await client.ask(ApiVersionsRequest(), 0)
    recorded = requests(tmp_path)
    figures = [(each.get("records"), each["error_code"], each["exempt"]) for each in recorded]
    assert figures == [(7, 0, False), (1, 3, False), (1, 0, True), (None, 0, False)]
    assert recorded[2]["response_bytes"] == 0


def replayed(recorded: Events, kind: str, *, mutes: bool) -> Iterator[tuple[str, float, int]]:
    """Yield entity, rate and throttle of each quota check, by plain arithmetic."""
    steps: list[tuple[int, int, float, dict[str, Any] | None, tuple[str, str]]] = []
    for each in recorded:
        check = each.get(kind)
        if check is None:
            continue
        share = check["user"], check["client_id"]
        value = {
            "produce": each["request_bytes"],
            "fetch": each["response_bytes"] + 4,
            "request": each["checked_ns"] / 10_000_000,
        }[kind]
        ordinal = each["ordinal"]
        if kind == "request":
            ordinal = each.get("time_ordinal", ordinal)
        steps.append((ordinal, check["clock_ms"], value, check, share))
        if kind == "fetch" and mutes and each["throttle_ms"] > 0:
            steps.append((each["back_ordinal"], check["clock_ms"], -value, None, share))
        if kind == "request" and "late_ns" in each:
            late = each["late_ns"] / 10_000_000
            steps.append((each["late_ordinal"], each["late_clock_ms"], late, None, share))
    rates: dict[tuple[str, str], Rate] = defaultdict(lambda: Rate(11, 1000))
    longest_ms = 1000 if kind == "request" else 2**31 - 1
    for _, now_ms, value, check, share in sorted(steps, key=lambda step: step[0]):
        rate = rates[share]
        rate.record(value, now_ms)
        if check is not None:
            found, bound = rate.measure(now_ms), check.get("bound", float("inf"))
            ms = throttle_ms(found, bound, rate.span_ms(now_ms)) if found > bound else 0
            assert (found, min(ms, longest_ms)) == (check["rate"], check["throttle_ms"])
            yield kind, found, ms


async def load(it: OpenBroker, seed: int, clients: int = 4) -> None:
    """Clients of four names that produce and fetch, now and then faster than they may."""
    wall = iter(range(10**9))

    async def act(name: str, seed: int) -> None:
        random = Random(seed)
        client = await it.connect(name)
        for turn in range(30):
            await trio.sleep(random.choice((0, 0, 0.01, 0.1)))
            if turn % 2 == 0:
                value = random.randbytes(random.choice((10, 900, 3000)))
                batch = build_batch([Record(value=value, timestamp=next(wall))])
                await client.ask(produce(batch, topic="t"), 9)
            else:
                request = fetch_request({("t", 0): 0}, {"t": ZERO_UUID}, wait_ms=0, bytes_min=0)
                await client.ask(request, 12)

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(act, f"c{number % 4}", seed + number)


@pytest.mark.parametrize("mode", ["mute", "delay"])
async def test_replay_yields_every_rate_and_throttle(
    serve: Open, autojump_clock: MockClock, tmp_path: Path, seed: int, mode: str
) -> None:
    settings = ("num.network.threads=3", f"quota.throttle.mode={mode}")
    async with serve(*ON, *settings) as it:
        await it.create("t")
        await it.set({"client-id": "c0"}, **{PRODUCER: 500})
        await it.set({"client-id": "c1"}, **{CONSUMER: 300})
        await it.set({"client-id": "c2"}, **{TIME: 0.01})
        await it.set({"client-id": "c3"}, **{PRODUCER: 1000, CONSUMER: 1000, TIME: 0.02})
        await load(it, seed, clients=8)
    recorded = [each for each in events(tmp_path) if each.get("client_id", "").startswith("c")]
    throttles = Counter(
        kind
        for kind in ("produce", "fetch", "request")
        for kind, _, ms in replayed(recorded, kind, mutes=mode == "mute")
        if ms > 0
    )
    assert min(throttles[kind] for kind in ("produce", "fetch", "request")) > 0, (
        f"seed {seed}: {throttles}"
    )
    for each in recorded:
        asked = [
            each[kind]["throttle_ms"] for kind in ("produce", "fetch", "request") if kind in each
        ]
        assert each["throttle_ms"] == (sum(asked) if mode == "delay" else max(asked, default=0))


async def test_mutations_are_recorded_as_counted_by_the_controller(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve(*ON) as it:
        client = await it.connect()
        await client.ask(topics("free", partitions=2), 6)
        await it.set(CLIENT, **{MUTATION: 1})
        await client.ask(topics("a", "b", partitions=15), 6)
        await client.ask(topics("d", partitions=2), 5)
        await client.ask(DeleteTopicsRequest(topic_names=["missing"], timeout_ms=1), 4)
    first, strict, loose, none = requests(tmp_path)
    assert (first["mutations"], "mutation" in first) == (2, False)
    assert (strict["mutations"], strict["mutations_refused"], strict["strict"]) == (30, 15, True)
    assert strict["mutation"]["rate"] == -4
    assert strict["mutation"]["throttle_ms"] == strict["throttle_ms"] == 4000
    assert (loose["mutations"], loose["mutations_refused"], loose["strict"]) == (2, 0, False)
    assert "mutations" not in none


async def test_request_of_disconnected_client_is_in_the_activity(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve(*ON, "quota.throttle.mode=delay") as it:
        await it.set(CLIENT, **{PRODUCER: 1})
        client = await it.connect()
        await client.send_request(produce(bytes(1000)), 9)
        await trio.sleep(1)
        client.close()
    (recorded,) = requests(tmp_path)
    assert recorded["produce"]["throttle_ms"] == recorded["throttle_ms"] > 0
    assert "late_ns" not in recorded


@pytest.mark.parametrize("mode", ["single", "sharded"])
async def test_connections_are_shown_as_they_open_and_close(
    serve: Open, autojump_clock: MockClock, tmp_path: Path, mode: str
) -> None:
    async with serve(*ON, f"acceptor.mode={mode}", "kafka_connections_max=1") as it:
        client = await it.connect()
        await client.ask(ApiVersionsRequest(), 0)
        refused = await it.connect(host="10.0.0.7")
        await refused.wait_closed()
        await trio.sleep(1)
        client.close()
        await trio.sleep(1)
    recorded = happened(tmp_path)
    first, second = (
        [
            each["happened"]
            for each in recorded
            if each["ip"] == ip and each["happened"] not in WAITS
        ]
        for ip in ("127.0.0.1", "10.0.0.7")
    )
    assert (first, second) == (["accepted", "closed"], ["accepted", "refused"])
    reasons = {each["happened"]: each.get("reason") for each in recorded}
    assert (reasons["closed"], reasons["refused"]) == ("client_closed", "kafka_connections_max")


async def test_rate_limited_connection_is_recorded_with_its_delay(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    recheck = "connection.ip.throttle.recheck=true"
    async with serve(*ON, "max.connection.creation.rate=1000", recheck) as it:
        await it.set({"ip": "10.0.0.7"}, connection_creation_rate=1)
        for _ in range(12):
            client = await it.connect(host="10.0.0.7")
            with suppress(StreamClosed):
                await client.ask(ApiVersionsRequest(), 0)
        await trio.sleep(20)
    recorded = [each for each in happened(tmp_path) if each["ip"] == "10.0.0.7"]
    rate = Rate(11, 1000)
    outcomes: Counter[str] = Counter()
    for number in dict.fromkeys(each["connection"] for each in recorded):
        mine = [each for each in recorded if each["connection"] == number]
        held = [each for each in mine if each["happened"] == "held"]
        checks = [mine[0], *(each for each in mine if each["happened"] in ("admitted", "refused"))]
        for check in checks:
            # Each check of the per-IP rate uses the clock of one of these events.
            rate.record(1, check["clock_ms"])
            ms = rate.throttle_ms(1, check["clock_ms"], 1000)
            if ms > 0:
                rate.record(-1, check["clock_ms"])
            waits = held and check is mine[0]
            assert ms == (held[0]["delay_ms"] if waits else ms * (check["happened"] == "refused"))
        outcomes.update(each["happened"] for each in mine)
    assert outcomes["held"] > 0
    assert outcomes["held"] == outcomes["admitted"] + outcomes["refused"]


async def test_connection_that_waits_for_the_listener_is_delayed(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve(*ON, "max.connection.creation.rate=1") as it:
        for _ in range(13):
            await (await it.connect()).ask(ApiVersionsRequest(), 0)
    delayed = [each for each in happened(tmp_path) if each["happened"] == "delayed"]
    assert delayed
    assert {each["reason"] for each in delayed} == {"max.connection.creation.rate"}
    assert all(0 < each["delay_ms"] <= 1000 for each in delayed)
    for each in delayed:
        assert of(happened(tmp_path), each["connection"])[:3] == ["accepted", "delayed", "admitted"]


async def test_events_without_room_are_dropped_and_requests_continue(
    serve: Open, autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_sender, "PENDING_MAX", 10)
    async with serve(*ON, "num.network.threads=1") as it:
        client = await it.connect()
        for _ in range(100):  # all of it before anything can be sent
            await client.ask(ApiVersionsRequest(), 0)
        assert it.ms == 0
        await trio.sleep(1)
        dropped = counted(it, ACTIVITY_DROPPED.name)
        await client.ask(ApiVersionsRequest(), 0)
    assert dropped == 90
    found = events(tmp_path)
    assert [each["dropped"] for each in found if each["kind"] == "dropped"] == [90]
    assert len([each for each in found if each["kind"] == "request"]) == 11


async def test_events_of_dead_recorder_are_reported_as_dropped(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    asked = 0
    async with serve(*ON, "num.network.threads=1") as it:
        client = await it.connect()
        for _ in range(6):
            for _ in range(20):
                await client.ask(ApiVersionsRequest(), 0)
                asked += 1
            await trio.sleep(0.15)  # sent, but not written
            it.broker.kill("recorder")
            await it.broker.wait_ready()
            await trio.sleep(2)
        dropped = counted(it, ACTIVITY_DROPPED.name)
    found = events(tmp_path)  # sees to it that numbers go up
    recorded = len([each for each in found if each["kind"] == "request"])
    assert dropped == sum(each["dropped"] for each in found if each["kind"] == "dropped") > 0
    happenings = len([each for each in found if each["kind"] == "connection"])
    assert recorded + happenings + dropped == asked + 2


async def test_owner_kill_loses_and_duplicates_no_event(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    asked = 0
    async with serve(*ON, "process.mode=separate") as it:
        clients = [await it.connect() for _ in range(3)]
        for number in range(10):
            for client in clients:
                await client.ask(MetadataRequest(), 9)
                asked += 1
            await trio.sleep(0.07 * number)
            for worker in ("worker-0", "worker-1"):
                it.broker.kill(worker)
        await it.broker.wait_ready()
        await trio.sleep(2)
        assert counted(it, ACTIVITY_DROPPED.name) == 0
        assert counted(it, ACTIVITY_EVENTS.name) >= asked
    assert len(requests(tmp_path)) == asked


async def test_sampled_connections_are_recorded_completely(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve(*ON, "activity.sample=0.25") as it:
        for _ in range(40):
            client = await it.connect()
            await client.ask(ApiVersionsRequest(), 0)
            client.close()
    found = events(tmp_path)
    connections = {each["connection"] for each in found}
    assert 8 <= len(connections) <= 12
    assert len(found) == 3 * len(connections)
    assert {each["sample"] for each in found} == {0.25}


async def test_feature_is_off_without_the_setting(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve() as it:
        client = await it.connect()
        response = await client.ask(MetadataRequest(topics=None), 9)
        assert TOPIC not in {topic.name for topic in response.topics}
        assert "recorder" not in it.broker.names


async def test_reader_of_activity_is_recorded_without_feedback_loop(
    serve: Open, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with serve(*ON) as it:
        client: SimulatedClient = await it.connect("reader")
        response = await client.ask(MetadataRequest(topics=None), 9)
        assert TOPIC in {topic.name for topic in response.topics}
        offset, began = 0, trio.current_time()
        while trio.current_time() - began < 60:
            request = fetch_request(
                {(TOPIC, 0): offset}, {TOPIC: ZERO_UUID}, wait_ms=500, bytes_min=1
            )
            response = await client.ask(request, 12)
            found = response.responses[0].partitions[0]
            for _, header in iter_batches(found.records or b""):
                offset = header.next_offset
    fetches = [each for each in requests(tmp_path, "reader") if each["api_key"] == ApiKey.FETCH]
    assert 60 < len(fetches) < 60 * 12
