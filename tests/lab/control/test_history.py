"""Samples of usage and lag are kept within their limits, and taken only of what is in use."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.groups.description import GroupOverview
from minibroker.broker.metadata.quotas import QuotaChange
from minibroker.broker.process.messages import (
    CommittedOffsetsRequest,
    GroupsRequest,
    LogView,
    PartitionLogsRequest,
)
from minibroker.lab.control import attach
from minibroker.lab.control.attach import sample_forever
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.history import (
    LAG_SAMPLE_S,
    USAGE_SAMPLE_S,
    History,
)
from minibroker.lab.control.lag import GroupLag, list_lag
from minibroker.lab.control.quotas import get_usage_history
from minibroker.runtime.clock import SimulatedClock, whole_ms
from minibroker_protocol.registry import ApiKey
from tests.lab.control.running_broker import At

WORKERS = ("worker-0", "worker-1")


def test_history_is_bounded_and_has_gaps() -> None:
    history: History[str, int] = History(samples_max=3, keys_max=2)
    assert (history.of("a"), history.keys(), history.sampled_at) == ((), [], 0)
    history.add({"a": 1, "b": 2, "c": 3}, now=5)
    history.add({"c": 4}, now=6)
    history.add({"a": 0}, now=7)
    assert history.of("a") == (1, None, 0)
    assert history.of("b") == (2, None, None)
    assert history.of("c") == (4, None), "it was beyond the limit of keys at first"
    history.add({}, now=8)
    assert (history.of("b"), history.keys(), history.sampled_at) == ((), ["c", "a"], 8)


def simulated(at: At, clock: MockClock) -> ControlledBroker:
    """A broker whose real time is simulated too, without committed offsets."""
    at.roles.answers |= {(worker, CommittedOffsetsRequest): {} for worker in WORKERS}
    env = replace(at.env, clock=SimulatedClock(clock))
    return ControlledBroker(env, at.scope, at.scope.subscribers, lambda *_: None)


async def sample_for(broker: ControlledBroker, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await sample_forever(broker)


async def test_broker_without_groups_and_quotas_has_no_samples(
    at: At, autojump_clock: MockClock
) -> None:
    broker = simulated(at, autojump_clock)
    at.roles.asked.clear()
    await sample_for(broker, 3.5 * LAG_SAMPLE_S)
    assert len(at.roles.asked) == 3 * len(WORKERS)
    assert {type(request) for _, request in at.roles.asked} == {CommittedOffsetsRequest}
    assert (await get_usage_history(broker)).uses == ()


async def test_sampling_goes_on_after_a_time_without_free_descriptors(
    at: At, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = simulated(at, autojump_clock)
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE), "minibroker.lab.control.lag")]
    sampled: list[ControlledBroker] = []

    async def offsets(of: ControlledBroker) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        sampled.append(of)
        return {}

    monkeypatch.setattr(attach, "committed_offsets", offsets)
    await sample_for(broker, 2.5 * LAG_SAMPLE_S)
    assert sampled == [broker]


async def test_lag_is_sampled_and_measured_anew(at: At, autojump_clock: MockClock) -> None:
    broker = simulated(at, autojump_clock)
    offsets = {("t", 0): 3, ("t", 1): 9, ("gone", 0): 0}
    groups = [
        GroupOverview("g", "consumer", "Stable", 1, 2, 3, "classic"),
        GroupOverview("h", "consumer", "Empty", 1, 0, 0, "classic"),
    ]
    at.roles.answers |= {
        ("worker-0", CommittedOffsetsRequest): {"g": offsets},
        ("worker-0", PartitionLogsRequest): {("t", 0): LogView(0, 10, 10, 1)},
        ("worker-1", PartitionLogsRequest): {("t", 1): LogView(0, 8, 8, 1)},
        ("worker-0", GroupsRequest): groups,
        ("worker-1", GroupsRequest): [],
    }
    await sample_for(broker, 2.5 * LAG_SAMPLE_S)
    at.roles.answers["worker-0", PartitionLogsRequest] = {("t", 0): LogView(0, 11, 11, 1)}
    view = await list_lag(broker)
    assert view.groups == (
        GroupLag("g", "Stable", 2, 8, (7, 7)),
        GroupLag("h", "Empty", 0, None, ()),
    )
    assert (view.interval_ms, view.sampled_ago_ms) == (LAG_SAMPLE_S * 1000, 2000)


async def test_usage_is_sampled_with_its_throttles(at: At, autojump_clock: MockClock) -> None:
    broker = simulated(at, autojump_clock)
    change = QuotaChange((("client-id", "c"),), (("producer_byte_rate", 1024.0),))
    outcome = await at.scope.cluster.alter_quotas([change])
    await at.scope.publish(outcome.updates)
    quotas, who, now_ms = at.scope.quotas, ("u", "c"), whole_ms(trio.current_time())
    quotas.throttled(quotas.produced(who, 20480, now_ms), who, ApiKey.PRODUCE, now_ms)
    await sample_for(broker, 8.5 * USAGE_SAMPLE_S)
    view = await get_usage_history(broker)
    (use,) = view.uses
    assert (use.type, use.user, use.client_id) == ("produce", "", "c")
    assert len(use.rates) == 8
    assert use.rates[0] == 2048
    assert use.throttled == (True, True, True, True, True, False, False, False)
    assert (view.interval_ms, view.sampled_ago_ms) == (USAGE_SAMPLE_S * 1000, 1000)
