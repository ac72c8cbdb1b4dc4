"""The contract of a transport: connecting works before, while and after a name listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from minibroker.runtime import system
from minibroker.runtime.addressing import MemoryTransport, Transport, UnixTransport


@pytest.fixture(params=["memory", "unix", "portable unix"])
def transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Transport]:
    monkeypatch.setattr(system, "is_portable", lambda: "portable" in request.param)
    if request.param == "memory":
        yield MemoryTransport()
    else:
        with TemporaryDirectory() as path:  # It is short, as that of a broker.
            unix = UnixTransport(Path(path), ["worker-0", "controller"], ["processor-0"])
            yield unix
            unix.close()
            assert list(Path(path).iterdir()) == []


async def test_dial_connects_to_listener_of_that_name(transport: Transport) -> None:
    listener = transport.listen("worker-0")
    transport.listen("controller")
    here = await transport.connect("worker-0")
    there = await listener.accept()
    await here.send("hello")
    assert await there.receive() == "hello"
    here.close()
    there.close()


async def test_dial_before_listen_delivers_early_messages(transport: Transport) -> None:
    here = await transport.connect("controller")
    await here.send("early")
    there = await transport.listen("controller").accept()
    assert await there.receive() == "early"
    here.close()
    there.close()


async def test_dial_handoff_connects_to_handoff_listener(transport: Transport) -> None:
    here = await transport.connect_handoff("processor-0")
    there = await transport.listen_handoff("processor-0").accept()
    await here.send("slot")
    assert await there.receive() == ("slot", None)
    here.close()
    there.close()


async def test_accept_blocks_until_dial(transport: Transport) -> None:
    accepted = []

    async def accept() -> None:
        accepted.append(await transport.listen("worker-0").accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        here = await transport.connect("worker-0")
    assert len(accepted) == 1
    here.close()
    accepted[0].close()


def test_socket_directory_with_other_mode_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        UnixTransport(tmp_path, [], [])
