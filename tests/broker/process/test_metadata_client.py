"""The metadata client applies updates in order, over restarts of the controller."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.metadata.image import (
    ALL_KINDS,
    BROKER,
    BROKER_LOGGER,
    CLIENT,
    IP,
    TOPIC,
    USER,
    BrokerGone,
    ConfigChanged,
    Image,
    ImageGapError,
    Update,
)
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import Snapshot
from minibroker.broker.process.environment import CONTROLLER, WORKER, Environment
from minibroker.broker.process.messages import (
    ClockAdvanced,
    DetailsRequest,
    ImageApplied,
    LogsRequest,
    MetricsRequest,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.process.metadata_client import MetadataClient, follow_log_levels
from minibroker.broker.settings import Settings
from minibroker.runtime.rpc import MemoryChannel, PeerFailed, RpcConnection
from tests.broker.process.conftest import MakeEnvironment

Answer = Callable[[Any], Any]


def update(number: int, epoch: int = 1) -> Update:
    return Update(epoch, number, (BrokerGone(9),))


def welcome(number: int, epoch: int = 1) -> RoleRegistered:
    return RoleRegistered(Image(controller_epoch=epoch, number=number))


class Controller:
    """Welcomes any role that connects, with its current ``image``."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self._listener = env.transport.listen(CONTROLLER)
        self._nursery = nursery
        self.greetings: list[RegisterRole] = []
        self.taken = 0
        self.welcome = welcome(5)

    def answer(self, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            self.greetings.append(request)
            return self.welcome
        if isinstance(request, ImageApplied):
            self.taken += 1
            return None
        return ("asked", request)

    async def meet(self) -> RpcConnection:
        """Return the next connection, which then continues by itself."""
        rpc = RpcConnection(await self._listener.accept(), self.answer)
        self._nursery.start_soon(rpc.run)
        return rpc


Play = Callable[[Controller, MetadataClient, trio.Nursery], Awaitable[None]]


async def with_controller(env: Environment, client: MetadataClient, play: Play) -> None:
    async with trio.open_nursery() as nursery:
        controller = Controller(env, nursery)
        nursery.start_soon(client.run)
        await play(controller, client, nursery)
        nursery.cancel_scope.cancel()


async def test_client_registers_and_applies_the_image_then_each_update(
    make_env: MakeEnvironment,
) -> None:
    steps: list[tuple[int, int]] = []
    env = make_env(WORKER, 1, incarnation=3)

    def on_image(before: Image, after: Image) -> None:
        steps.append((before.number, after.number))

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        rpc = await controller.meet()
        await client.wait_image()
        assert controller.greetings == [RegisterRole(WORKER, 1, 3)]
        assert client.image == controller.welcome.image
        assert controller.taken == 1
        assert await rpc.request(update(6)) is None
        assert client.image.number == 6
        assert await rpc.request(update(6)) is None
        assert steps == [(0, 5), (5, 6)]
        with pytest.raises(PeerFailed, match=ImageGapError.__name__):
            await rpc.request(update(8))
        assert client.image.number == 6

    await with_controller(env, MetadataClient(env, on_image=on_image), play)


@pytest.mark.parametrize("attempt", range(20))
async def test_update_after_snapshot_applies_to_it(make_env: MakeEnvironment, attempt: int) -> None:
    env = make_env(WORKER)

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        channel = await env.transport.listen(CONTROLLER).accept()
        assert isinstance(channel, MemoryChannel)
        _, number, greeting = await channel.receive()
        assert isinstance(greeting, RegisterRole)
        # Both are in the channel before the client runs again; then the scheduler decides.
        for message in ((1, number, welcome(5)), (0, 1, update(6))):
            channel._outgoing.send_nowait(pickle.dumps(message))
        answers = [await channel.receive(), await channel.receive()]
        assert (1, 1, None) in answers
        assert (0, 2, ImageApplied()) in answers
        assert client.image.number == 6

    await with_controller(env, MetadataClient(env), play)


async def test_image_of_restarted_controller_is_one_more_step(make_env: MakeEnvironment) -> None:
    steps: list[tuple[int, int]] = []
    env = make_env(WORKER)

    def on_image(before: Image, after: Image) -> None:
        steps.append((before.controller_epoch, after.controller_epoch))

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        first = await controller.meet()
        await client.wait_image()
        first.close()
        controller.welcome = welcome(0, epoch=2)
        second = await controller.meet()
        await client.wait_image()
        await second.request(update(1, epoch=2))
        assert steps == [(0, 1), (1, 2), (2, 2)]

    await with_controller(env, MetadataClient(env, on_image=on_image), play)


async def test_requests_are_sent_and_answered(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    client = MetadataClient(env, details=lambda: ["mine"], on_request=lambda request: request.topic)

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        rpc = await controller.meet()
        assert await client.request("what") == ("asked", "what")
        snapshot = await rpc.request(MetricsRequest())
        assert isinstance(snapshot, Snapshot)
        assert snapshot.process == "worker-0"
        assert await rpc.request(DetailsRequest()) == ["mine"]
        assert await rpc.request(ClockAdvanced()) is None
        assert await rpc.request(LogsRequest("t")) == "t"

    await with_controller(env, client, play)


async def test_requests_wait_for_restarted_controller(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    answers: list[Any] = []

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        (await controller.meet()).close()
        await wait_all_tasks_blocked()

        async def ask() -> None:
            answers.append(await client.request("now?"))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert answers == []
        await controller.meet()
        await wait_all_tasks_blocked()
        assert answers == [("asked", "now?")]

    await with_controller(env, MetadataClient(env), play)


async def test_role_without_handlers_reports_error(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER, 1)

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        rpc = await controller.meet()
        with pytest.raises(PeerFailed, match="worker-1 cannot handle LogsRequest"):
            await rpc.request(LogsRequest("t"))

    await with_controller(env, MetadataClient(env), play)


async def test_role_receives_only_configs_it_uses(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        known = {(kind, "x"): {"k": "v"} for kind in ALL_KINDS}
        controller.welcome = welcome(5)._replace(image=replace(welcome(5).image, configs=known))
        rpc = await controller.meet()
        await client.wait_image()
        assert set(client.image.configs) == {(TOPIC, "x"), (BROKER, "x"), (BROKER_LOGGER, "x")}
        held = client.image.configs
        changes = tuple(ConfigChanged(kind, "y", {}) for kind in (USER, CLIENT, IP))
        await rpc.request(update(6)._replace(changes=changes))
        assert (client.image.number, client.image.configs) == (6, held)
        assert client.image.configs is held
        await rpc.request(update(7)._replace(changes=(ConfigChanged(TOPIC, "x", {}),)))
        assert set(client.image.configs) == {(BROKER, "x"), (BROKER_LOGGER, "x")}

    await with_controller(env, MetadataClient(env, configs=(TOPIC, BROKER)), play)


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("a bug")])
@pytest.mark.parametrize("later", [False, True], ids=["at-once", "later"])
async def test_metadata_client_whose_image_step_fails_ends(
    make_env: MakeEnvironment, error: Exception, later: bool
) -> None:
    async def fail() -> None:
        raise error

    def on_image(before: Image, after: Image) -> Awaitable[None] | None:
        if after.number < 6:
            return None
        if later:
            return fail()
        raise error

    client = MetadataClient(make_env(WORKER), on_image=on_image)

    async def play(controller: Controller, _: MetadataClient, nursery: trio.Nursery) -> None:
        rpc = await controller.meet()
        await client.wait_image()
        with pytest.raises(PeerFailed):
            await rpc.request(update(6))
        await trio.sleep_forever()

    with pytest.RaisesGroup(type(error), flatten_subgroups=True):
        await with_controller(client._env, client, play)


class Extra:
    """A request that a part of the role handles."""


async def test_handlers_get_what_comes_with_the_registration_and_their_requests(
    make_env: MakeEnvironment,
) -> None:
    client, extra = MetadataClient(make_env(WORKER)), Extra()
    registered: list[Sequence[object]] = []

    async def note_registration(further: Sequence[object]) -> None:
        registered.append(further)

    client.on_registered.append(note_registration)
    client.handlers[int] = lambda number: number + 1

    async def play(controller: Controller, client: MetadataClient, nursery: trio.Nursery) -> None:
        controller.welcome = controller.welcome._replace(further=(extra,))
        rpc = await controller.meet()
        await client.wait_registered()
        ((found,),) = registered
        assert type(found) is Extra
        assert await rpc.request(1) == 2
        rpc.close()
        controller.welcome = welcome(0, epoch=2)
        await controller.meet()
        await wait_all_tasks_blocked()
        assert registered[1:] == [()]

    await with_controller(client._env, client, play)


SETTINGS = Settings.from_sources()
NAMES = ("minibroker", "minibroker.storage", "minibroker.processor", "minibroker.processor-7")


def level(name: str) -> int:
    return logging.getLogger(name).getEffectiveLevel()


@pytest.fixture(autouse=True)
def _levels_as_before() -> Iterator[None]:
    loggers = [
        logger
        for logger in logging.root.manager.loggerDict.values()
        if isinstance(logger, logging.Logger)
    ]
    levels = {logger: logger.level for logger in loggers}
    yield
    for name, known in logging.root.manager.loggerDict.items():
        if isinstance(known, logging.Logger) and name.startswith("minibroker"):
            known.setLevel(levels.get(known, logging.NOTSET))


def test_loggers_of_all_parts_get_the_levels_of_the_image() -> None:
    EventLog("processor-7")
    levels = {"root": "WARN", "minibroker.processor": "DEBUG"}
    changed = replace(Image(), configs={(BROKER_LOGGER, "1"): levels})
    follow_log_levels(SETTINGS, Image(), changed)
    assert [level(name) for name in NAMES] == [30, 30, 10, 10]
    follow_log_levels(SETTINGS, changed, Image())
    assert [level(name) for name in NAMES] == [20, 20, 20, 20]


def test_levels_are_left_alone_if_the_image_has_the_same() -> None:
    logging.getLogger("minibroker").setLevel(logging.ERROR)
    follow_log_levels(SETTINGS, Image(), Image())
    of_another = replace(Image(), configs={(BROKER_LOGGER, "2"): {"root": "DEBUG"}})
    follow_log_levels(SETTINGS, Image(), of_another)
    assert level("minibroker") == logging.ERROR
