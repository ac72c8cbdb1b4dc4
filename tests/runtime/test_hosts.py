"""Host names are resolved outside the loop."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
import trio

from minibroker.runtime import hosts
from minibroker.runtime.hosts import is_address, look_up, resolver_name, unresolvable


async def test_machine_description_is_complete() -> None:
    found = await look_up("localhost")
    assert set(found) & {"127.0.0.1", "::1"}
    assert len(set(found)) == len(found)


def test_ascii_host_is_resolved_without_the_codec_of_international_names() -> None:
    assert resolver_name("127.0.0.1") == b"127.0.0.1"
    assert resolver_name("bücher.example") == "bücher.example"


@pytest.mark.parametrize("host", ["a..b", "ä..b", "no.such.invalid"])
async def test_invalid_host_is_an_error(host: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        await look_up(host)


PATIENCE_S = 30.0


@pytest.fixture
def idle() -> None:
    """Wait until no look-up is in progress, though the system's resolver may be slow."""
    for _ in range(hosts.LOOK_UPS_MAX):
        assert hosts._slots.acquire(timeout=PATIENCE_S)
    hosts._slots.release(hosts.LOOK_UPS_MAX)


class Resolver:
    """The system's, when it says nothing until it is let go on."""

    def __init__(self) -> None:
        self.asked, self.go_on = Event(), Event()

    def __call__(self, *_words: Any, **_named: Any) -> list[Any]:
        self.asked.set()
        self.go_on.wait()
        return []


@pytest.fixture
def resolver(idle: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    silent = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    yield silent
    silent.go_on.set()


async def test_slow_resolver_does_not_block_the_loop(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "LOOK_UP_S", PATIENCE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_up, "slow.test")
        while not resolver.asked.is_set():
            await trio.lowlevel.checkpoint()
        resolver.go_on.set()  # Otherwise the look-up would time out.


async def test_unresponsive_resolver_times_out(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "LOOK_UP_S", 0.05)
    errors: list[str] = []

    async def ask(host: str) -> None:
        try:
            await look_up(host)
        except OSError as error:
            errors.append(str(error))

    async with trio.open_nursery() as nursery:
        for number in range(hosts.LOOK_UPS_MAX + 1):
            nursery.start_soon(ask, f"slow-{number}.test")
    assert sum("no answer within 0.05 s" in error for error in errors) == hosts.LOOK_UPS_MAX
    assert sum("other look-ups are in progress" in error for error in errors) == 1


async def test_unresolvable_hosts_are_returned_and_addresses_not_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def some(host: str) -> list[str]:
        asked.append(host)
        if host != "here.test":
            raise OSError(host)
        return ["10.0.0.1"]

    monkeypatch.setattr(hosts, "look_up", some)
    assert await unresolvable(["here.test", "gone.test", "10.0.0.2", "::1"]) == {"gone.test"}
    assert sorted(asked) == ["gone.test", "here.test"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.1", True), ("::1", True), ("fe80::1%eth0", True), ("localhost", False), ("1", False)],
)
def test_addresses_are_distinguished_from_names(host: str, expected: bool) -> None:
    assert is_address(host) == expected
