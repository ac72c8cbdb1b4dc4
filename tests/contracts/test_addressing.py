"""The contract of a switchboard: names can be dialled before, while and after they listen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minibroker.runtime.addressing import MemorySwitchboard, Switchboard, UnixSwitchboard


@pytest.fixture(params=["memory", "unix"])
def switchboard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Switchboard]:
    if request.param == "memory":
        yield MemorySwitchboard()
    else:
        tmp_path.chmod(0o700)
        unix = UnixSwitchboard(tmp_path, ["worker-0", "controller"], ["processor-0"])
        yield unix
        unix.close()
        assert list(tmp_path.iterdir()) == []


async def test_dial_connects_to_listener_of_that_name(switchboard: Switchboard) -> None:
    listener = switchboard.listen("worker-0")
    switchboard.listen("controller")
    here = await switchboard.dial("worker-0")
    there = await listener.accept()
    await here.send("hello")
    assert await there.receive() == "hello"
    here.close()
    there.close()


async def test_dial_before_listen_delivers_early_messages(switchboard: Switchboard) -> None:
    here = await switchboard.dial("controller")
    await here.send("early")
    there = await switchboard.listen("controller").accept()
    assert await there.receive() == "early"
    here.close()
    there.close()


async def test_dial_handoff_connects_to_handoff_listener(switchboard: Switchboard) -> None:
    here = await switchboard.dial_handoff("processor-0")
    there = await switchboard.listen_handoff("processor-0").accept()
    await here.send("slot")
    assert await there.receive() == ("slot", None)
    here.close()
    there.close()


async def test_accept_blocks_until_dial(switchboard: Switchboard) -> None:
    accepted = []

    async def accept() -> None:
        accepted.append(await switchboard.listen("worker-0").accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        here = await switchboard.dial("worker-0")
    assert len(accepted) == 1
    here.close()
    accepted[0].close()


def test_socket_directory_with_other_mode_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        UnixSwitchboard(tmp_path, [], [])
