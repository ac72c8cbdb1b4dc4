from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from minibroker.client.control import Control
from minibroker.testing import ControlError, FaultNeverFired, MiniBroker
from minibroker.testing.faults import FaultHandle, Faults, SharedFaultError
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from tests.broker.network.raw_client import RawClient
from tests.testing.conftest import PLUGINS_AND_CACHE_OFF


@pytest.fixture
def client(minibroker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(minibroker.bootstrap_servers, "faulty") as connected:
        yield connected


def beat(client: RawClient, group: str) -> int:
    return int(client.ask(HeartbeatRequest(group_id=group, member_id="m"), 4).error_code)


def test_rule_fires_is_counted_and_removed_at_the_end_of_its_context(
    minibroker: MiniBroker, client: RawClient, minibroker_group: str
) -> None:
    with minibroker.faults as faults:
        rule = faults.add("error", api="Heartbeat", group=minibroker_group, error="16", first=1)
        assert [beat(client, minibroker_group) for _ in range(2)] == [16, 25]
        assert (rule.matches, rule.hits, rule.held) == (2, 1, 0)
        assert rule.wait()["id"] == rule.id
        assert rule.id in {each["id"] for each in faults.list()}
        assert repr(rule).startswith(f"fault rule {rule.id} (action='error'")
    assert rule.id not in {each["id"] for each in minibroker.faults.list()}


def test_broker_acts_at_once(minibroker: MiniBroker, minibroker_topic: str) -> None:
    assert minibroker.faults.act("roll", topic=minibroker_topic) == 0
    with pytest.raises(ControlError, match="there is no group"):
        minibroker.faults.act("rebalance", group="none")


def test_context_fails_if_a_rule_never_fired(minibroker: MiniBroker, minibroker_group: str) -> None:
    with (
        pytest.raises(FaultNeverFired, match="matched 0 times"),
        minibroker.faults as faults,
    ):
        faults.add("observe", group=minibroker_group)
    with pytest.raises(ZeroDivisionError), minibroker.faults as faults:
        assert 1 / faults.add("observe", group=minibroker_group).hits
    assert not [each for each in minibroker.faults.list() if minibroker_group in str(each)]


def test_wait_for_a_rule_that_does_not_fire_ends(
    minibroker_faults: Faults, client: RawClient, minibroker_group: str
) -> None:
    rule = minibroker_faults.add("observe", group=minibroker_group)
    with pytest.raises(FaultNeverFired, match="fired 0 of 1 times"):
        rule.wait(timeout_s=0)
    beat(client, minibroker_group)


def test_held_request_can_be_released_during_a_wait(
    minibroker_faults: Faults, client: RawClient, minibroker_group: str
) -> None:
    rule = minibroker_faults.add("hold", group=minibroker_group, name="beats")
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(beat(client, minibroker_group)))
    thread.start()
    rule.wait()
    (held,) = rule.holds
    assert (held["api"], held["client_id"], held["member"]) == ("HEARTBEAT", "faulty", "m")
    rule.release()
    thread.join()
    assert codes == [25]


def test_wrong_field_is_an_error_with_its_name(minibroker_faults: Faults) -> None:
    with pytest.raises(ControlError, match="did you mean 'api'"):
        minibroker_faults.add("observe", topic="t", apis="Fetch")


def test_rule_removed_by_others_is_no_error(minibroker: MiniBroker, minibroker_group: str) -> None:
    rule = minibroker.faults.add("observe", group=minibroker_group)
    minibroker.control.delete("v1", "faults", rule.id)
    minibroker.faults.clear()


def test_wide_rule_on_shared_broker_is_rejected(minibroker: MiniBroker) -> None:
    faults = Faults(minibroker.control, guarded=True)
    with pytest.raises(SharedFaultError, match="other xdist workers"):
        faults.add("observe", api="Fetch")
    faults.add("observe", topic="mine").remove()


def test_fixture_fails_a_test_whose_rule_never_fired(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_silent(minibroker_faults):
            minibroker_faults.add("observe", topic="t")

        def test_next(minibroker_faults):
            assert minibroker_faults.list() == []
        """
    )
    result = pytester.runpytest_subprocess(*PLUGINS_AND_CACHE_OFF)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*never fired: fault rule 1 (action='observe', topic='t')*"])


def test_handle_keeps_given_fields(minibroker: MiniBroker, minibroker_group: str) -> None:
    rule = minibroker.faults.add("delay", group=minibroker_group, delay_ms=5)
    assert isinstance(rule, FaultHandle)
    assert rule.rule == {"action": "delay", "group": minibroker_group, "delay_ms": 5}
    rule.remove()


def test_held_call_does_not_delay_its_release() -> None:
    with MiniBroker() as broker, broker.faults as faults:
        rule = faults.add("hold", point="controller.applied", topic="held")
        creating = threading.Thread(target=broker.create_topic, args=("held",))
        creating.start()
        began = time.monotonic()
        rule.wait()
        assert rule.held == 1
        assert broker.groups() == []
        assert rule.release() == 1
        creating.join()
        assert time.monotonic() - began < Control.timeout_s


HELD_CALLS = 12
"""More than the default executor of asyncio has threads on small machines."""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_held_calls_of_event_loops_do_not_delay_their_release(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 1, raising=False)

    async def use() -> None:
        async with MiniBroker() as broker, broker.faults as faults:
            rule = await faults.add("hold", point="controller.applied")
            creating = [partial(broker.create_topic, f"t{each}") for each in range(HELD_CALLS)]
            if loop == "trio":
                async with trio.open_nursery() as nursery:
                    for each in creating:
                        nursery.start_soon(each)
                    await rule.wait()
                    await rule.remove()
            else:
                tasks = [asyncio.ensure_future(each()) for each in creating]
                await asyncio.sleep(0)
                await rule.wait()
                await rule.remove()
                await asyncio.gather(*tasks)
            topics = (await broker.control.get("v1", "topics"))["topics"]
            assert len([each for each in topics if not each["internal"]]) == HELD_CALLS

    began = time.monotonic()
    trio.run(use) if loop == "trio" else asyncio.run(use())
    assert time.monotonic() - began < Control.timeout_s


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_rules_are_awaited_in_event_loops(loop: str) -> None:
    async def use() -> None:
        async with MiniBroker() as broker:
            async with broker.faults as faults:
                rule = await faults.add("hold", group="g", name="beats")
                assert [each["id"] for each in await faults.list()] == [rule.id]
                with RawClient(broker.bootstrap_servers) as client:
                    client.send(HeartbeatRequest(group_id="g", member_id="m"), 4)
                    assert (await rule.wait())["hits"] == 1
                    await rule.release()
                    client.receive_frame()
                assert (await rule.view())["rule"] == rule.rule
            with pytest.raises(FaultNeverFired):
                async with broker.faults as faults:
                    await faults.add("observe")

    if loop == "trio":
        trio.run(use)
    else:
        asyncio.run(use())
