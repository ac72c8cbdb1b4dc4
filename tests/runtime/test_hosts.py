"""Look-ups beside the loop."""

from __future__ import annotations

import socket
from threading import Event
from typing import Any

import pytest
import trio

from minibroker.runtime import hosts
from minibroker.runtime.hosts import is_address, look_up, unresolvable


async def test_the_machine_knows_itself() -> None:
    found = await look_up("localhost")
    assert set(found) & {"127.0.0.1", "::1"}
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("host", ["a..b", "no.such.invalid"])
async def test_what_is_no_host_is_an_error(host: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        await look_up(host)


async def test_a_resolver_that_says_nothing_holds_up_nobody_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = Event()

    def hang(*_words: Any, **_named: Any) -> list[Any]:
        go_on.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(hosts, "LOOK_UP_S", 0.05)
    turns = 0
    errors: list[str] = []

    async def ask(host: str) -> None:
        try:
            await look_up(host)
        except OSError as error:
            errors.append(str(error))

    async with trio.open_nursery() as nursery:
        for number in range(hosts.LOOK_UPS_MAX + 1):
            nursery.start_soon(ask, f"slow-{number}.test")
        while len(errors) <= hosts.LOOK_UPS_MAX:
            turns += 1
            await trio.lowlevel.checkpoint()
    go_on.set()
    assert turns > 100
    assert sum("no answer within 0.05 s" in error for error in errors) == hosts.LOOK_UPS_MAX
    assert sum("other look-ups are under way" in error for error in errors) == 1


async def test_those_without_an_address_are_told_and_addresses_are_not_looked_up(
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
def test_addresses_are_told_from_names(host: str, expected: bool) -> None:
    assert is_address(host) == expected
