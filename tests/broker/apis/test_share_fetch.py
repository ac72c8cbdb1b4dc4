"""Members of a share group fetch, acknowledge and wait, at a whole broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metrics.definitions import TOPIC_BYTES_OUT
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import iter_batches
from tests.broker.apis.share_client import acquired, errors, share_world

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
TWO_WORKERS = ("process.mode=separate", "num.io.threads=2")
MODES = [(), TWO_WORKERS]


@pytest.mark.parametrize("mode", MODES)
async def test_records_are_delivered_and_acknowledged(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        await world.produce(0, 3)
        await world.produce(1, 2)
        member = await world.member("m")
        assert await member.join() == [0, 1]
        first = await member.fetch(0, 1)
        assert acquired(first) == {0: [(0, 2, 1)], 1: [(0, 1, 1)]}
        assert first.acquisition_lock_timeout_ms == 30_000
        acks = [(0, 0, 2, (ACCEPT,)), (1, 0, 1, (ACCEPT, RELEASE))]
        second = await member.fetch(acks=acks)
        assert errors(second) == {0: 0, 1: 0}
        assert acquired(second) == {1: [(1, 1, 2)]}


@pytest.mark.parametrize("mode", MODES)
async def test_fetch_waits_for_records_and_for_released_ones(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        one, two = await world.member("m"), await world.member("n")
        await one.join()
        await two.join()
        await one.fetch(0, 1)
        await two.fetch(0, 1)
        found: dict[str, Any] = {}

        async def wait(name: str, member: Any) -> None:
            found[name] = acquired(await member.fetch(max_wait_ms=60_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "m", one)
            await trio.testing.wait_all_tasks_blocked()
            await world.produce(1, 4)
        assert found == {"m": {1: [(0, 3, 1)]}}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "n", two)
            await trio.testing.wait_all_tasks_blocked()
            await one.acknowledge((1, 1, 2, (RELEASE,)))
        assert found["n"] == {1: [(1, 2, 2)]}


async def test_wait_ends_at_its_deadline(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        member = await world.member("m")
        await member.join()
        await member.fetch(0)
        started = trio.current_time()
        assert acquired(await member.fetch(max_wait_ms=5_000)) == {}
        assert trio.current_time() - started == pytest.approx(5, abs=0.1)


async def test_expired_lock_gives_the_records_to_a_waiting_member(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 2)
        one, two = await world.member("m"), await world.member("n")
        await one.join()
        await two.join()
        assert acquired(await one.fetch(0)) == {0: [(0, 1, 1)]}
        started = trio.current_time()
        assert acquired(await two.fetch(0)) == {}
        assert acquired(await two.fetch(max_wait_ms=60_000)) == {0: [(0, 1, 2)]}
        assert trio.current_time() - started == pytest.approx(30, abs=1)
        late = await one.acknowledge((0, 0, 1, (ACCEPT,)))
        assert errors(late) == {0: ErrorCode.INVALID_RECORD_STATE}


async def test_renewed_lock_holds_longer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 2)
        one, two = await world.member("m"), await world.member("n")
        await one.join()
        await two.join()
        await one.fetch(0)
        await two.fetch(0)
        await trio.sleep(20)
        assert errors(await one.acknowledge((0, 0, 0, (RENEW,)), renew=True)) == {0: 0}
        assert acquired(await two.fetch(max_wait_ms=15_000)) == {0: [(1, 1, 2)]}
        renewal = await one.fetch(
            acks=[(0, 0, 0, (RENEW,))],
            is_renew_ack=True,
            max_bytes=0,
            min_bytes=0,
            max_records=0,
        )
        assert errors(renewal) == {0: 0}
        limits = await one.fetch(acks=[(0, 0, 0, (RENEW,))], is_renew_ack=True)
        assert limits.error_code == ErrorCode.INVALID_REQUEST
        assert "maxBytes must be set to 0" in limits.error_message
        unannounced = await one.acknowledge((0, 0, 0, (RENEW,)))
        assert errors(unannounced) == {0: ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("mode", MODES)
async def test_closed_connection_releases_records(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        await world.produce(0, 2)
        one, two = await world.member("m"), await world.member("n")
        await one.join()
        await two.join()
        await one.fetch(0, 1)
        await two.fetch(0, 1)
        one.client.stream.close()
        started = trio.current_time()
        assert acquired(await two.fetch(max_wait_ms=10_000)) == {0: [(0, 1, 2)]}
        assert trio.current_time() - started < 1


async def test_killed_network_processor_releases_records(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, *TWO_WORKERS, "num.network.threads=1") as at:
        await at.produce(0, 2)
        await at.produce(1, 1)
        one = await at.member("m")
        await one.join()
        assert acquired(await one.fetch(0, 1)) == {0: [(0, 1, 1)], 1: [(0, 0, 1)]}
        started = trio.current_time()
        at.broker.kill("processor-0")
        await trio.sleep(2)
        two = await at.member("n")
        await two.join()
        assert acquired(await two.fetch(0, 1)) == {0: [(0, 1, 2)], 1: [(0, 0, 2)]}
        assert trio.current_time() - started < 5
        late = await at.member("m")
        await late.fetch(0, 1)
        refused = errors(await late.acknowledge((0, 0, 1, (ACCEPT,))))
        assert refused == {0: ErrorCode.INVALID_RECORD_STATE}


@pytest.mark.parametrize("mode", MODES)
async def test_fetched_bytes_are_counted_by_topic(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode, "num.network.threads=1") as world:
        await world.produce(0, 2)
        await world.produce(1, 1)
        member = await world.member("m")
        await member.join()
        response = await member.fetch(0, 1)
        (topic,) = response.responses
        size = sum(len(partition.records) for partition in topic.partitions)
        await member.fetch()
        counters = world.broker.environment("processor-0").metrics.snapshot().counters
        assert size > 0
        assert counters[TOPIC_BYTES_OUT.name, ("t",)] == size


@pytest.mark.parametrize("by_fetch", [True, False])
async def test_final_epoch_acknowledges_and_releases_the_rest(
    tmp_path: Path, autojump_clock: MockClock, by_fetch: bool
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 4)
        one, two = await world.member("m"), await world.member("n")
        await one.join()
        await two.join()
        await one.fetch(0)
        await two.fetch(0)
        last = (0, 0, 1, (ACCEPT,))
        ended = await (
            one.fetch(acks=[last], epoch=-1) if by_fetch else one.acknowledge(last, epoch=-1)
        )
        assert errors(ended) == {0: 0}
        assert acquired(await two.fetch()) == {0: [(2, 3, 2)]}
        again = await one.fetch(epoch=5)
        assert again.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_session_errors(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock, "group.share.max.share.sessions=1") as world:
        member = await world.member("m")
        await member.join()
        assert (await member.fetch(0, epoch=1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await member.fetch(0, epoch=-1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        early = await member.fetch(0, acks=[(0, 0, 0, (ACCEPT,))], epoch=0)
        assert early.error_code == ErrorCode.INVALID_REQUEST
        assert (await member.fetch(0, epoch=0)).error_code == ErrorCode.NONE
        wrong = ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await member.fetch(0, epoch=7)).error_code == wrong
        assert (await member.acknowledge((0, 0, 0, (ACCEPT,)), epoch=0)).error_code == wrong
        other = await world.member("n")
        limit = ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert (await other.fetch(0, epoch=0)).error_code == limit
        assert (await member.fetch(0, epoch=0)).error_code == ErrorCode.NONE
        nameless = await world.member("")
        assert (await nameless.fetch(0, epoch=0)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("ack", "error"),
    [
        ((0, 2, 1, (ACCEPT,)), ErrorCode.INVALID_REQUEST),
        ((0, 0, 1, ()), ErrorCode.INVALID_REQUEST),
        ((0, 0, 1, (ACCEPT, ACCEPT, ACCEPT)), ErrorCode.INVALID_REQUEST),
        ((0, 0, 1, (9,)), ErrorCode.INVALID_REQUEST),
        ((0, 0, 50, (ACCEPT,)), ErrorCode.INVALID_REQUEST),
        ((1, 0, 0, (ACCEPT,)), ErrorCode.INVALID_RECORD_STATE),
        ((7, 0, 0, (ACCEPT,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_invalid_acknowledgement_has_its_error(
    tmp_path: Path, autojump_clock: MockClock, ack: Any, error: ErrorCode
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 2)
        member = await world.member("m")
        await member.join()
        await member.fetch(0, 1)
        assert errors(await member.fetch(acks=[ack]))[ack[0]] == error
        assert errors(await member.acknowledge((0, 0, 1, (ACCEPT,)))) == {0: 0}


async def test_partition_without_acknowledgements_has_no_result_unless_it_is_unknown(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 2)
        member = await world.member("m")
        await member.join()
        await member.fetch(0, 1)
        assert errors(await member.acknowledge(nothing_of=(0, 1))) == {}
        accepted = (0, 0, 1, (ACCEPT,))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors(await member.acknowledge(accepted, nothing_of=(1, 9))) == {0: 0, 9: unknown}


async def test_unknown_partitions_are_reported_beside_records(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 1)
        member = await world.member("m")
        await member.join()
        response = await member.fetch(0, 9)
        assert acquired(response) == {0: [(0, 0, 1)]}
        by_index = {
            each.partition_index: each.error_code
            for topic in response.responses
            for each in topic.partitions
        }
        assert by_index == {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_strict_mode_and_batches(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 10, batches=3)
        member = await world.member("m")
        await member.join()
        response = await member.fetch(0, max_records=4, share_acquire_mode=1)
        assert acquired(response) == {0: [(0, 3, 1)]}
        loose = await member.fetch(max_records=4)
        assert acquired(loose) == {0: [(4, 9, 1)]}
        (data,) = [each for topic in loose.responses for each in topic.partitions]
        assert [header.base_offset for _, header in iter_batches(data.records)] == [0]


async def test_group_without_a_start_reads_new_records_only(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, earliest=False) as world:
        await world.produce(0, 5)
        member = await world.member("m")
        await member.join()
        assert acquired(await member.fetch(0)) == {}
        await world.produce(0, 2)
        assert acquired(await member.fetch()) == {0: [(5, 6, 1)]}


@pytest.mark.parametrize("mode", MODES)
async def test_state_survives_a_restart(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        await world.produce(0, 6)
        member = await world.member("m")
        await member.join()
        await member.fetch(0, 1)
        acks = [(0, 0, 1, (ACCEPT,)), (0, 3, 3, (RELEASE,)), (0, 4, 4, (REJECT,))]
        assert errors(await member.acknowledge(*acks)) == {0: 0}
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        again = await world.member("m")
        assert (await again.heartbeat(member.epoch)).error_code == ErrorCode.NONE
        found = acquired(await again.fetch(0, 1))
        assert found == {0: [(2, 2, 1), (3, 3, 2), (5, 5, 1)]}


@pytest.mark.parametrize("mode", MODES)
async def test_acknowledged_records_do_not_come_again_after_kills(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    """Each worker is killed between an acknowledgement and the next fetch."""
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        await world.produce(0, 8)
        finished: set[int] = set()
        workers = ("worker-0", "worker-1") if mode else ("combined-0",)
        for at, name in enumerate((*workers, *workers)):
            member = await world.member(f"m{at}")
            await member.join()
            response = await member.fetch(0, max_records=3, share_acquire_mode=1)
            (first, _, _), *_ = acquired(response)[0]
            assert first not in finished
            assert errors(await member.acknowledge((0, first, first, (ACCEPT,)))) == {0: 0}
            finished.add(first)
            member.client.stream.close()
            world.broker.kill(name)
            await trio.sleep(2)
        last = await world.member("z")
        await last.join()
        ranges = acquired(await last.fetch(0))[0]
        again = {at for begin, end, _ in ranges for at in range(begin, end + 1)}
        assert again == set(range(8)) - finished


async def test_delivery_limit_of_the_group_archives(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.configure(delivery_count_limit="2")
        await world.produce(0, 1)
        member = await world.member("m")
        await member.join()
        assert acquired(await member.fetch(0)) == {0: [(0, 0, 1)]}
        assert acquired(await member.fetch(acks=[(0, 0, 0, (RELEASE,))])) == {0: [(0, 0, 2)]}
        assert acquired(await member.fetch(acks=[(0, 0, 0, (RELEASE,))])) == {}
