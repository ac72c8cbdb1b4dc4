"""Observers are called at each moment in the life of a request, and change nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from minibroker.broker.network.client_connection import ClientConnection, RequestReader
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.network.request_observer import RequestObserver
from minibroker.runtime.arena import Block
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.broker.network.running_handler import RunningHandler, accept, produce
from tests.simulation.client import frame

HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")


class Storing:
    """Replaces the reader: puts a body into request memory."""

    def __init__(self, running: RunningHandler) -> None:
        self._part = running.part

    async def store(self, body: bytes) -> Block:
        block = self._part.allocate_nowait(len(body))
        assert block is not None
        block.view[:] = body
        return block


class Recording(RequestObserver):
    """Notes the moments, and the size of the response."""

    def __init__(self) -> None:
        self.moments: list[tuple[str, Any]] = []

    def received(self, request: RequestCost, body: bytes | Block) -> None:
        self.moments.append(("received", request.request_bytes))

    def detained(self, request: RequestCost) -> None:
        self.moments.append(("detained", None))

    def answering(self, request: RequestCost, frame: bytes | None, size: int) -> None:
        assert frame is None or len(frame) == size
        self.moments.append(("answering", size))

    def sent(self, request: RequestCost, frame: bytes | None) -> None:
        self.moments.append(("sent", request.sent_bytes))

    def failed(self, request: RequestCost) -> None:
        self.moments.append(("failed", None))


@pytest.fixture
def recording(running: RunningHandler) -> Recording:
    observer = Recording()
    running.request_handler.observers = (RequestObserver(), observer)
    return observer


async def test_request_in_steps_is_detained_before_it_is_answered(
    running: RunningHandler, recording: Recording
) -> None:
    body = frame(HELLO, 3)[4:]
    await running.ask(HELLO, 3)
    assert [name for name, _ in recording.moments] == ["received", "detained", "answering", "sent"]
    sizes = dict(recording.moments)
    assert sizes["received"] == len(body)
    assert sizes["answering"] == sizes["sent"] > 0


async def test_request_that_is_answered_at_once_is_not_detained(
    running: RunningHandler, recording: Recording
) -> None:
    body = frame(HELLO, 3)[4:]
    running.ours.reader = cast("RequestReader", Storing(running))
    rest = running.request_handler.serve(running.ours, body)
    assert rest is not None
    await rest  # Its response is kept.
    recording.moments.clear()
    assert running.request_handler.serve(running.ours, body) is None
    assert [name for name, _ in recording.moments] == ["received", "answering", "sent"]


async def test_request_without_response_is_sent_without_an_answer(
    running: RunningHandler, recording: Recording
) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.take(frame(produce(0, acks=0), 9)[4:])
    assert [name for name, _ in recording.moments] == ["received", "detained", "sent"]


async def test_request_fails_if_the_client_has_disconnected(
    running: RunningHandler, recording: Recording
) -> None:
    running.theirs.close()
    await trio.lowlevel.checkpoint()
    with pytest.raises(StreamClosed):
        await running.take(frame(HELLO, 3)[4:])
    assert recording.moments[-1][0] == "failed"
    assert "sent" not in dict(recording.moments)


async def test_observer_does_nothing_by_itself(running: RunningHandler) -> None:
    observer, client = RequestObserver(), running.ours
    cost = RequestCost(client, 10, 0, 0)
    assert isinstance(client, ClientConnection)
    observer.opened(client)
    observer.authentication_received(client, memoryview(b""), is_token=True)
    observer.authentication_answering(client, None, 0, None)
    observer.authenticated(client, is_first=True)
    observer.received(cost, b"")
    observer.detained(cost)
    observer.answering(cost, b"", 0)
    observer.sent(cost, b"")
    observer.failed(cost)
    observer.closed(client)
