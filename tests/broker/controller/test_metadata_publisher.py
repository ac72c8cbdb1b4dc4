"""Updates reach all processes, in order, before they are reported as published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.controller.metadata_publisher import MetadataPublisher, Publisher
from minibroker.broker.metadata.image import BrokerGone, Image, Update, apply_update
from minibroker.broker.process.messages import ImageApplied, RegisterRole, RoleRegistered
from minibroker.runtime.channel import memory_channel_pair
from minibroker.runtime.rpc import PeerLost, RpcConnection


class Role:
    """One life of a role that greets, and takes updates over when the test lets it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.image = Image()
        self.numbers: list[int] = []
        self.gate = trio.Event()
        self.gate.set()
        self.breaks = False
        here, self.there = memory_channel_pair()
        self.rpc = RpcConnection(here, self.answer)

    async def answer(self, request: Any) -> Any:
        if isinstance(request, Update):
            await self.gate.wait()
            if self.breaks:
                raise ZeroDivisionError
            self.numbers.append(request.number)
            return None
        return (self.name, request)

    async def register(self, *, takes: bool = True) -> RoleRegistered:
        role, _, number = self.name.partition("-")
        welcome: RoleRegistered = await self.rpc.request(RegisterRole(role, int(number or 0), 1))
        if takes:
            await self.take()
        return welcome

    async def take(self) -> None:
        await self.rpc.request(ImageApplied())


class Controller:
    """Subscribers with an image, and roles that dial them."""

    def __init__(self, nursery: trio.Nursery, *expected: str) -> None:
        self.nursery = nursery
        self.image = Image(controller_epoch=1)
        self.subscribers = MetadataPublisher(lambda: self.image, self.answer, 0, expected)
        self.done: list[int] = []
        nursery.start_soon(self.subscribers.run)

    def answer(self, request: Any) -> Any:
        return ("controller", request)

    def dial(self, name: str) -> Role:
        role = Role(name)
        self.nursery.start_soon(self.subscribers.serve_role, role.there)
        self.nursery.start_soon(role.rpc.run)
        return role

    async def role(self, name: str) -> Role:
        role = self.dial(name)
        await role.register()
        return role

    async def change(self, count: int = 1) -> None:
        """Publish ``count`` updates together; ``done`` gets the last number."""
        updates = []
        for _ in range(count):
            update = Update(1, self.image.number + 1, (BrokerGone(9),))
            self.image = apply_update(self.image, update)
            updates.append(update)
        number = self.image.number

        async def publish() -> None:
            await self.subscribers.publish(updates)
            self.done.append(number)

        self.nursery.start_soon(publish)
        await wait_all_tasks_blocked()


@pytest.fixture
async def nursery_of_test() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


@pytest.fixture
def controller(nursery_of_test: trio.Nursery) -> Controller:
    return Controller(nursery_of_test)


async def test_change_completes_when_all_subscribers_applied_it(controller: Controller) -> None:
    first, second = await controller.role("worker-0"), await controller.role("processor-1")
    assert controller.subscribers.names() == ["processor-1", "worker-0"]
    second.gate = trio.Event()
    await controller.change()
    assert (first.numbers, second.numbers, controller.done) == ([1], [], [])
    assert controller.subscribers.complete == 0
    second.gate.set()
    await wait_all_tasks_blocked()
    assert (second.numbers, controller.done) == ([1], [1])
    assert controller.subscribers.complete == 1


async def test_updates_are_received_one_at_a_time_in_order(controller: Controller) -> None:
    slow, quick = await controller.role("worker-0"), await controller.role("worker-1")
    slow.gate = trio.Event()
    await controller.change(2)
    await controller.change()
    assert quick.numbers == [1]
    slow.gate.set()
    await wait_all_tasks_blocked()
    assert slow.numbers == quick.numbers == [1, 2, 3]
    assert controller.done == [2, 3]


async def test_change_without_subscribers_completes_immediately(controller: Controller) -> None:
    await controller.subscribers.publish([])
    await controller.change()
    assert controller.done == [1]


async def test_lost_subscriber_does_not_block_change(controller: Controller) -> None:
    dying, other = await controller.role("worker-0"), await controller.role("worker-1")
    dying.gate = other.gate = trio.Event()
    await controller.change()
    dying.rpc.close()
    await wait_all_tasks_blocked()
    assert controller.subscribers.names() == ["worker-1"]
    assert controller.done == []
    other.gate.set()
    await wait_all_tasks_blocked()
    assert controller.done == [1]


async def test_late_subscriber_gets_newest_image_and_later_updates(
    controller: Controller,
) -> None:
    slow = await controller.role("worker-0")
    slow.gate = trio.Event()
    await controller.change()
    await controller.change()
    late = controller.dial("worker-1")
    assert (await late.register()).image.number == 2
    slow.gate.set()
    await wait_all_tasks_blocked()
    await controller.change()
    assert late.numbers[-1] == 3
    assert controller.done == [1, 2, 3]


async def test_new_incarnation_replaces_the_previous_one(controller: Controller) -> None:
    previous = await controller.role("worker-0")
    previous.gate = trio.Event()
    await controller.change()
    reborn = await controller.role("worker-0")
    await wait_all_tasks_blocked()
    assert controller.done == [1]
    await controller.change()
    assert reborn.numbers == [2]
    assert controller.subscribers.names() == ["worker-0"]
    with pytest.raises(PeerLost):
        await previous.rpc.request("anything")


async def test_subscriber_failing_an_update_must_rejoin(controller: Controller) -> None:
    breaking = await controller.role("worker-0")
    breaking.breaks = True
    await controller.change()
    # It lives on, with an image that can't be known.
    assert controller.done == []
    with pytest.raises(PeerLost):
        await breaking.rpc.request("anything")
    assert (await controller.dial("worker-0").register()).image.number == 1
    await wait_all_tasks_blocked()
    assert controller.done == [1]


async def test_requests_wait_for_image_of_this_incarnation(
    nursery_of_test: trio.Nursery,
) -> None:
    controller = Controller(nursery_of_test, "worker-0", "worker-1")
    await controller.role("worker-0")
    await controller.change()
    assert controller.done == []
    late = controller.dial("worker-1")
    await late.register(takes=False)
    await wait_all_tasks_blocked()
    assert controller.done == []  # The update may not have arrived yet.
    await late.take()
    await wait_all_tasks_blocked()
    assert controller.done == [1]
    late.rpc.close()
    await wait_all_tasks_blocked()
    await controller.change()
    assert controller.done == [1, 2]  # Its next process serves nothing before it has an image.


async def test_request_to_subscribers_skips_lost_ones(controller: Controller) -> None:
    names = ["worker-1", "worker-0", "acceptor"]
    roles = {name: await controller.role(name) for name in names}
    everybody = await controller.subscribers.request_all("hello")
    assert list(everybody.items()) == [(name, (name, "hello")) for name in sorted(names)]
    some = await controller.subscribers.request_all("hello", ["worker-0", "worker-9"])
    assert list(some) == ["worker-0"]
    roles["worker-0"].rpc.close()
    await wait_all_tasks_blocked()
    assert sorted(await controller.subscribers.request_all("hello")) == ["acceptor", "worker-1"]
    with pytest.raises(PeerLost, match="worker-0 is not connected"):
        await controller.subscribers.request("worker-0", "hello")


async def test_roles_send_requests_to_each_other(controller: Controller) -> None:
    role = await controller.role("worker-0")
    assert await role.rpc.request("why?") == ("controller", "why?")


def update(number: int) -> Update:
    return Update(1, number, ())


def behind(publisher: Publisher) -> dict[str, int]:
    """Number of updates that each subscriber has not acknowledged yet."""
    return {name: publisher.newest - number for name, number in publisher.acknowledged.items()}


def test_update_completes_when_every_subscriber_acknowledged_it() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.join("b")
    assert publisher.publish(update(1)) == ("a", "b")
    publisher.acknowledge("a", 1)
    assert publisher.complete == 0
    assert behind(publisher) == {"a": 0, "b": 1}
    publisher.acknowledge("b", 1)
    assert publisher.complete == 1


def test_update_without_subscribers_completes_immediately() -> None:
    publisher = Publisher(5)
    assert publisher.publish(update(6)) == ()
    assert publisher.complete == publisher.newest == 6


def test_departed_subscriber_does_not_block_completion() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.join("b")
    publisher.publish(update(1))
    publisher.acknowledge("a", 1)
    publisher.leave("b")
    assert publisher.complete == 1
    publisher.acknowledge("b", 1)
    publisher.leave("b")
    assert behind(publisher) == {"a": 0}


def test_joining_subscriber_is_not_behind() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.publish(update(1))
    publisher.join("b")
    assert behind(publisher) == {"a": 1, "b": 0}
    publisher.join("a")
    assert publisher.complete == 1


def test_older_acknowledgement_is_ignored() -> None:
    publisher = Publisher()
    publisher.join("a")
    publisher.publish(update(1))
    publisher.publish(update(2))
    publisher.acknowledge("a", 2)
    publisher.acknowledge("a", 1)
    assert publisher.complete == 2


def test_updates_are_acknowledged_in_order() -> None:
    publisher = Publisher()
    publisher.join("a")
    with pytest.raises(ValueError, match="update 2 cannot follow update 0"):
        publisher.publish(update(2))
    with pytest.raises(ValueError, match="a acknowledged 1, the newest is 0"):
        publisher.acknowledge("a", 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "publish", "acknowledge"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(STEPS)
def test_complete_number_is_monotonic_lower_bound(steps: list[tuple[str, str, int]]) -> None:
    publisher = Publisher()
    complete = 0
    for step, name, number in steps:
        if step == "join":
            publisher.join(name)
        elif step == "leave":
            publisher.leave(name)
        elif step == "publish":
            publisher.publish(update(publisher.newest + 1))
        else:
            publisher.acknowledge(name, min(number, publisher.newest))
        assert complete <= publisher.complete <= publisher.newest
        complete = publisher.complete
        assert all(publisher.newest - lag >= complete for lag in behind(publisher).values())
