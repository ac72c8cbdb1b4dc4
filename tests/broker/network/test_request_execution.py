"""The steps of one request: its owners, its memory, and errors of its bytes."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.apis import metadata
from minibroker.broker.apis.produce import ProducePart
from minibroker.broker.metadata.image import Topic, TopicCreated, apply
from minibroker.broker.network.client_connection import ChannelState
from minibroker.broker.process.environment import PROCESSOR
from minibroker.broker.process.local_worker import LocalWorker
from minibroker.broker.process.messages import ApiPart, ApiReply
from minibroker.broker.quotas.manager import Mutated
from minibroker.runtime.arena import ArenaRef
from minibroker.runtime.rpc import LocalPeer, PeerLost
from minibroker_protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.registry import ApiKey
from tests.broker.network.running_handler import (
    RunningHandler,
    accept,
    fetch,
    nothing,
    outcomes,
    produce,
)
from tests.broker.process.conftest import MakeEnvironment
from tests.simulation.client import frame


async def test_request_without_owners_is_answered(running: RunningHandler) -> None:
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1.2")
    response = await running.ask(request, 4)
    assert response.error_code == 0
    assert ApiKey.PRODUCE in {each.api_key for each in response.api_keys}
    assert running.ours.software == ("me", "1.2")
    assert running.ours.client_id == "t"
    assert (running.ours.state.state, running.ours.in_flight) == (ChannelState.NOT_MUTED, None)
    assert running.memory_used == 0


async def test_records_are_shown_in_place_and_freed_afterwards(running: RunningHandler) -> None:
    seen: list[bytes] = []

    async def look(part: ProducePart) -> Any:
        for batch in part.batches:
            assert isinstance(batch.ref, ArenaRef)
            seen.append(bytes(running.env.arena.view(batch.ref)))
        return await accept(part)

    for worker in running.workers:
        worker.handler = look
    response = await running.ask(produce(0, 1), 9)
    assert sorted(seen) == [b"records 0", b"records 1"]
    results = response.responses[0].partition_responses
    assert [(each.error_code, each.base_offset) for each in results] == [(0, 7), (0, 7)]
    assert [len(worker.asked) for worker in running.workers] == [1, 1]
    assert running.memory_used == 0


async def test_part_of_a_local_owner_is_executed_in_the_same_step(running: RunningHandler) -> None:
    done: list[str] = []

    def execute(part: ApiPart) -> ApiReply:
        done.append("executed")
        return ApiReply(outcomes(part.part), 1)

    running.request_handler.owners = {0: LocalPeer(execute), 1: LocalPeer(execute)}
    running.theirs._correlation_id = 1
    with trio.testing.assert_no_checkpoints():
        await running.take(frame(produce(0), 9)[4:])
        done.append("answered")
    assert done == ["executed", "answered"]
    [topic] = (await running.theirs.answer(ApiKey.PRODUCE, 9)).responses
    assert [each.base_offset for each in topic.partition_responses] == [7]


async def test_part_of_a_local_owner_that_waits_is_answered(running: RunningHandler) -> None:
    async def execute(part: ApiPart) -> ApiReply:
        await trio.lowlevel.checkpoint()
        return ApiReply(outcomes(part.part), 1)

    running.request_handler.owners = {0: LocalPeer(execute), 1: LocalPeer(execute)}
    [topic] = (await running.ask(produce(0), 9)).responses
    assert [each.base_offset for each in topic.partition_responses] == [7]


async def test_records_for_the_worker_of_this_process_are_not_copied(
    make_env: MakeEnvironment, nursery: trio.Nursery
) -> None:
    env = make_env(PROCESSOR, workers=1)
    env.local_worker = LocalWorker(env.work_time)
    running = RunningHandler(env, nursery)
    seen: list[object] = []

    def execute(part: ApiPart) -> ApiReply:
        seen.extend(batch.ref for batch in part.part.batches)
        return ApiReply(outcomes(part.part), 1)

    running.request_handler.owners = {0: LocalPeer(execute)}
    rest = running.request_handler.serve(running.ours, frame(produce(0, 1), 9)[4:])
    assert rest is not None
    await rest
    assert seen == [b"records 0", b"records 1"]
    assert all(isinstance(each, memoryview) for each in seen)
    assert running.part.statistics().peak == 0


async def test_memory_stays_until_the_last_owner_has_answered(running: RunningHandler) -> None:
    gate = trio.Event()
    used: list[int] = []

    async def die(part: Any) -> Any:
        raise PeerLost

    async def tarry(part: Any) -> Any:
        await gate.wait()
        used.append(running.memory_used)
        return await accept(part)

    running.workers[0].handler, running.workers[1].handler = die, tarry

    async def take() -> None:
        with pytest.raises(PeerLost):
            await running.take(frame(produce(0, 1), 9)[4:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert running.memory_used > 0
        gate.set()
    assert used[0] > 0
    assert running.memory_used == 0


async def test_close_waits_for_owner_reading_memory(running: RunningHandler) -> None:
    gate = trio.Event()

    async def tarry(part: Any) -> Any:
        await gate.wait()
        return await accept(part)

    for worker in running.workers:
        worker.handler = tarry

    async def take() -> None:
        with running.ours.scope:
            await running.take(frame(produce(0), 9)[4:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert not running.ours.interruptible
        running.ours.scope.cancel()
        await wait_all_tasks_blocked()
        assert running.memory_used > 0
        gate.set()
    assert running.memory_used == 0


async def test_long_poll_ends_with_its_connection(running: RunningHandler) -> None:
    async def wait(part: Any) -> Any:
        await trio.sleep_forever()

    for worker in running.workers:
        worker.handler = wait
    async with trio.open_nursery() as nursery:

        async def take() -> None:
            with running.ours.scope:
                await running.take(frame(fetch(0), 12)[4:])

        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert running.ours.interruptible
        assert running.ours.view(used=0.0).in_flight == ApiKey.FETCH
        assert running.memory_used == 0, "a request that waits would keep memory from others"
        running.ours.scope.cancel()
    assert running.memory_used == 0


async def test_first_owner_with_more_ends_the_wait_of_all(running: RunningHandler) -> None:
    cancelled: list[bool] = []

    async def wait(part: Any) -> Any:
        if part.enough == 0:
            return nothing(part)
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(True)

    async def grow(part: Any) -> Any:
        if part.enough == 0:
            return nothing(part)
        return nothing(part)._replace(size=1)

    running.workers[0].handler, running.workers[1].handler = wait, grow
    response = await running.ask(fetch(0, 1), 12)
    assert [each.error_code for each in response.responses[0].partitions] == [0, 0]
    await wait_all_tasks_blocked()
    assert cancelled == [True]


async def test_merge_uses_the_newest_image(running: RunningHandler) -> None:
    async def create(part: Any) -> Any:
        follower = running.request_handler._metadata_client
        follower.image = apply(follower.image, TopicCreated(Topic("new", b"n" * 16, ())))
        return metadata.MetadataReply({}, Mutated(0, 0, False, None, 0))

    running.controller.handler = create
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
    response = await running.ask(request, 9)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("new", 0)]
    assert len(running.controller.asked) == 1


async def test_newer_api_versions_is_answered_in_version_0(running: RunningHandler) -> None:
    body = bytearray(frame(ApiVersionsRequest(), 4)[4:])
    body[2:4] = (99).to_bytes(2, "big")
    running.theirs._correlation_id = 1
    await running.take(bytes(body))
    response = await running.theirs.answer(ApiKey.API_VERSIONS, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [each.api_key for each in response.api_keys] == [ApiKey.API_VERSIONS]


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (ApiKey.PRODUCE, 2, "PRODUCE version 2 is not served, 3 to 13 are"),
        (ApiKey.PRODUCE, 99, "PRODUCE version 99"),
        (ApiKey.FETCH, -1, "FETCH version -1"),
        (ApiKey.ADD_RAFT_VOTER, 0, "ADD_RAFT_VOTER is not served"),
        (999, 0, "no API has the key 999"),
        (-1, 0, "no API has the key -1"),
    ],
)
async def test_unserved_api_closes_the_connection(
    running: RunningHandler, key: int, version: int, text: str
) -> None:
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    with pytest.raises(UnsupportedVersion, match=text):
        await running.take(head + bytes(20))
    assert running.memory_used == 0


@pytest.mark.parametrize("cut", [1, 9, 14, -1])
async def test_body_that_ends_early_ends_the_connection(running: RunningHandler, cut: int) -> None:
    with pytest.raises(DecodeError):
        await running.take(frame(produce(0), 9)[4:][:cut])
    assert running.memory_used == 0
