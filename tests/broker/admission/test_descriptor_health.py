"""A shortage of descriptors is logged and shown once, and ends when there are descriptors again."""

from __future__ import annotations

import errno
import os

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import AcceptedConnection, ConnectionsClosed
from minibroker.broker.admission.descriptor_health import CALM_S, RETRY_S, DescriptorHealth
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.log import EventLog
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.process.shortage import RealTime, conditions
from tests.broker.roles.running_processor import LISTENER, running_processor
from tests.runtime.test_system import no_descriptor_left


def shown(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


async def test_descriptor_health_of_repeated_failures_is_one_condition_and_two_lines(
    make_env: MakeEnvironment, real_time: RealTime, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env("processor")
    health = DescriptorHealth(env, EventLog("test"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(health.run)
        for _ in range(20):
            health.exhausted()
            await real_time.pass_s(CALM_S - 0.1)
            assert conditions(env) == ["descriptors_exhausted"]
        await real_time.pass_s(2 * CALM_S)
        assert conditions(env) == []
        health.exhausted()
        assert conditions(env) == ["descriptors_exhausted"]
        nursery.cancel_scope.cancel()
    started, ended = "descriptors are exhausted", "descriptors are available again"
    assert shown(caplog) == [started, ended, started]


async def test_descriptor_health_lasts_as_long_as_no_file_can_be_opened(
    make_env: MakeEnvironment, real_time: RealTime
) -> None:
    env = make_env("processor")
    health = DescriptorHealth(env, EventLog("test"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(health.run)
        with no_descriptor_left():
            health.exhausted()
            await real_time.pass_s(5 * CALM_S)
            assert conditions(env) == ["descriptors_exhausted"]
        await real_time.pass_s(2 * CALM_S)
        assert conditions(env) == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (errno.EMFILE, ["this process has no descriptor left"]),
        (errno.ENFILE, ["the system has no descriptor left"]),
        (errno.ENOBUFS, []),
    ],
)
async def test_descriptor_health_of_failed_accept_names_the_limit(
    make_env: MakeEnvironment, autojump_clock: MockClock, error: int, found: list[str]
) -> None:
    env = make_env("acceptor")
    health = DescriptorHealth(env, EventLog("test"))
    await health.accept_failed(LISTENER, OSError(error, os.strerror(error)))
    assert trio.current_time() == pytest.approx(RETRY_S)
    texts = [each.text for each in env.conditions.all()]
    assert [whose in text for whose, text in zip(found, texts, strict=True)] == [True] * len(found)


async def test_processor_that_cannot_receive_a_connection_shows_it(
    make_env: MakeEnvironment,
) -> None:
    async with running_processor(make_env) as at:
        assert at.handoff is not None
        client = ("127.0.0.1", 40_000)
        await at.handoff.send(AcceptedConnection(LISTENER, ("127.0.0.1", 9092), client, 1))
        done, _ = await at.handoff.receive()
        await wait_all_tasks_blocked()
        assert isinstance(done, ConnectionsClosed)
        assert at.closed() == {CloseReason.LIMIT: 1}
        assert conditions(at.env) == ["descriptors_exhausted"]
