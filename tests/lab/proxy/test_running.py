from __future__ import annotations

import socket

import pytest
import trio

from minibroker.broker.controller.journal import journal_of_one_process
from minibroker.broker.settings.types import HostPort, parse_host_port
from minibroker.lab.proxy.running import (
    NoBrokerReachable,
    ProxyOptions,
    ProxyStartError,
    run_proxy,
)
from minibroker.ready import ProxyReady
from minibroker.testing import MiniBroker

LOOPBACK = "127.0.0.1"
FREE = HostPort(LOOPBACK, 0)


async def ready_of(options: ProxyOptions) -> ProxyReady:
    """Run a proxy until it is ready, and stop it."""
    found: list[ProxyReady] = []
    is_ready = trio.Event()

    def on_ready(ready: ProxyReady) -> None:
        found.append(ready)
        is_ready.set()

    await run_proxy(options, is_ready.wait, on_ready, journal_of_one_process)
    return found[0]


def address_of(sock: socket.socket) -> HostPort:
    return HostPort(*sock.getsockname()[:2])


async def test_proxy_is_ready_with_one_broker_of_several(minibroker: MiniBroker) -> None:
    broker = parse_host_port(minibroker.bootstrap_servers)
    with socket.socket() as lost:
        lost.bind((LOOPBACK, 0))
        upstream = [address_of(lost), broker, broker]
        ready = await ready_of(ProxyOptions(upstream, FREE))
    assert len(ready.bootstrap_servers.split(",")) == 2
    assert ready.control_url.startswith("http://127.0.0.1:")


async def test_unreachable_cluster_is_an_error_with_advice() -> None:
    with socket.socket() as lost:
        lost.bind((LOOPBACK, 0))
        port = lost.getsockname()[1]
        with pytest.raises(NoBrokerReachable, match=rf"(?s){port} can't .*refused.*--upstream"):
            await ready_of(ProxyOptions([address_of(lost)], FREE))


async def test_taken_ports_are_errors_with_advice(minibroker: MiniBroker) -> None:
    taken = parse_host_port(minibroker.bootstrap_servers)
    with pytest.raises(ProxyStartError, match=r"in use; choose another .* --listener"):
        await ready_of(ProxyOptions([taken], taken))
    with pytest.raises(ProxyStartError, match="in use; choose another port with --control"):
        await ready_of(ProxyOptions([taken], FREE, taken.port))


async def test_proxy_can_be_stopped_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(host: str, port: int) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    await run_proxy(
        ProxyOptions([HostPort("a", 1)], FREE),
        trio.lowlevel.checkpoint,
        print,
        journal_of_one_process,
    )
