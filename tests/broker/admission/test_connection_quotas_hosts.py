"""Limits of hosts that have to be looked up first, by a resolver that takes its time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission import connection_quotas
from minibroker.broker.admission.connection_events import ExceededLimit
from minibroker.broker.admission.connection_quotas import HostAddresses
from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.definitions import COUNTED
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import ACCEPTOR, CONTROLLER, RoleRefusedError
from minibroker.broker.process.messages import ImageApplied, RoleRegistered
from minibroker.broker.roles.acceptor import acceptor
from minibroker.broker.settings import Settings
from minibroker.runtime.rpc import RpcConnection
from tests.broker.admission.test_connection_quotas import IP_RATE, PLAINTEXT, hung_up, open_quotas
from tests.broker.process.conftest import MakeEnvironment


class Resolver:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, tuple[str, ...]] = {}
        self._answered = trio.Event()

    def answer(self, host: str, *addresses: str) -> None:
        """Set the addresses of a host; without any it is unknown."""
        self._answers[host] = addresses
        self._answered.set()
        self._answered = trio.Event()

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        while host not in self._answers:
            await self._answered.wait()
        if not self._answers[host]:
            raise OSError(f"{host} is not known")
        return list(self._answers[host])


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(connection_quotas, "look_up", made.look_up)
    return made


async def test_limit_of_host_applies_once_it_is_resolved(
    make_env: MakeEnvironment, resolver: Resolver
) -> None:
    async with open_quotas(make_env) as at:
        await at.processor()
        overrides = {"max.connections.per.ip.overrides": "slow.test:1,10.0.0.2:1"}
        done = trio.Event()

        async def configure() -> None:
            await at.configure("brokers", "<default>", overrides)
            done.set()

        at.nursery.start_soon(configure)
        await wait_all_tasks_blocked()
        first = await at.connect(2, "10.0.0.1") + await at.connect(2, "10.0.0.2")
        assert [await hung_up(client) for client in first] == [False, False, False, True]
        assert not done.is_set()  # the change is answered when all hosts are resolved
        resolver.answer("slow.test", "10.0.0.1")
        await done.wait()
        (late,) = await at.connect(1, "10.0.0.1")
        assert await hung_up(late)
        setting = "max.connections.per.ip.overrides"
        assert [limit for _, limit in await at.rejections()] == [
            ExceededLimit(setting, 1, "10.0.0.2"),
            ExceededLimit(setting, 1, "slow.test"),
        ]
        assert resolver.asked == ["slow.test"]


async def test_host_with_a_quota_is_looked_up_once(
    make_env: MakeEnvironment, resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    resolver.answer("here.test", "10.0.0.1", "10.0.0.2")
    resolver.answer("gone.test")
    async with open_quotas(make_env) as at:
        await at.processor()
        for name, rate in [("here.test", "0"), ("gone.test", "6"), ("::1", "8")]:
            await at.configure("ips", name, {IP_RATE: rate})
        assert resolver.asked == ["here.test", "gone.test"]
        assert caplog.text.count("its host cannot be resolved") == 1
        (shut_out,) = await at.connect(1, "10.0.0.2")
        await at.configure("ips", "here.test", {})
        (free,) = await at.connect(1, "10.0.0.2")
        assert at.gauge(COUNTED.name, PLAINTEXT) == len(at.open) == 1
        assert not await hung_up(free)
        assert not await hung_up(shut_out)  # it is held
        await at.configure("ips", "here.test", {IP_RATE: "0"})
        assert resolver.asked == ["here.test", "gone.test", "here.test"]


async def test_broker_with_unresolvable_host_does_not_start(
    make_env: MakeEnvironment, resolver: Resolver
) -> None:
    pairs = ["max.connections.per.ip.overrides=no.such:1,10.0.0.1:2"]
    made = make_env(ACCEPTOR, settings=Settings.from_sources(pairs=pairs))
    shut = connection_quotas.ConnectionQuotas(made, EventLog("test"))
    assert shut.counts.limits.per_ip_overrides == {"10.0.0.1": 2}
    resolver.answer("no.such")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shut.hosts.run)
        text = await shut.unknown_host()
        nursery.cancel_scope.cancel()
    assert text == (
        "max.connections.per.ip.overrides=no.such:1,10.0.0.1:2 (--set): cannot resolve no.such; "
        "name hosts that can be looked up, or their addresses"
    )


@pytest.mark.parametrize("life", [1, 2])
async def test_acceptor_ends_due_to_unknown_host_in_first_incarnation_only(
    life: int, make_env: MakeEnvironment, resolver: Resolver
) -> None:
    resolver.answer("no.such")
    settings = Settings.from_sources(pairs=["max.connections.per.ip.overrides=no.such:1"])
    env = make_env(ACCEPTOR, settings=settings, incarnation=life)
    is_ready = trio.Event()
    env.ready = is_ready.set
    rejections = []

    async def live() -> None:
        try:
            await acceptor(env)
        except RoleRefusedError as refused:
            rejections.append(str(refused))
        nursery.cancel_scope.cancel()

    def welcome(request: Any) -> RoleRegistered | None:
        return (
            None if isinstance(request, ImageApplied) else RoleRegistered(Image(controller_epoch=1))
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        controller = RpcConnection(await env.transport.listen(CONTROLLER).accept(), welcome)
        nursery.start_soon(controller.run)
        await is_ready.wait()
        env.stopping.set()
    assert is_ready.is_set() == (life > 1)
    assert len(rejections) == (life == 1)


async def test_hosts_become_known_one_by_one_and_are_forgotten_with_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = {name: trio.Event() for name in ("fast", "slow", "none")}
    news, unknown = list[int](), list[str]()

    async def look_up(host: str) -> list[str]:
        await go_on[host].wait()
        if host == "none":
            raise OSError(host)
        return [f"10.0.0.{len(host)}"]

    monkeypatch.setattr(connection_quotas, "look_up", look_up)
    made = HostAddresses(lambda: news.append(1), lambda host, _: unknown.append(host))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await made.wait_resolved()
        made.set_hosts({"fast", "slow", "none", "10.0.0.9"})
        await wait_all_tasks_blocked()
        assert made.unknown(go_on) == ["fast", "none", "slow"]
        assert made.addresses("10.0.0.9") == ["10.0.0.9"]
        go_on["fast"].set()
        await wait_all_tasks_blocked()
        assert (made.addresses("fast"), made.addresses("slow")) == (["10.0.0.4"], ())
        assert len(news) == 1
        made.set_hosts({"fast", "none"})  # an answer for "slow" is of no use any more
        go_on["slow"].set()
        go_on["none"].set()
        await made.wait_resolved()
        await wait_all_tasks_blocked()
        assert made.unknown({"fast", "slow", "none"}) == ["none", "slow"]
        assert unknown == ["none"]
        nursery.cancel_scope.cancel()
