"""Addresses of hosts while a resolver is slow."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission import host_addresses
from minibroker.broker.admission.host_addresses import HostAddresses


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

    monkeypatch.setattr(host_addresses, "look_up", look_up)
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
