"""A server that answers clients as recorded in a capture.

Owns its listener, connections and the delay of responses. It must never know what a response means.
Invariant: a connection gets its responses in the order of its requests; a request without a
recorded response closes it. Kafka's ``MockClient`` answers requests of a test in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from minibroker.broker.settings.types import HostPort
from minibroker.lab.replay.capture import Capture
from minibroker.lab.replay.recorded_answers import RecordedAnswers, answer_frame
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.framing import FrameDecoder
from minibroker_protocol.headers import decode_request_header
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.registry import ApiKey

RECEIVE_BYTES: Final = 64 * 1024
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
REPEATED_S: Final = 0.1
"""Delay of a repeated response, so that a client that polls does not loop."""


async def serve_capture(
    capture: Capture,
    listening: HostPort,
    on_ready: Callable[[HostPort], None],
    *,
    speed: float | None = 1.0,
) -> None:
    """Serve until cancelled; ``on_ready`` gets the address. ``speed`` as in `replay_load`."""
    answers = RecordedAnswers(capture.requests)
    listeners = await trio.open_tcp_listeners(listening.port, host=listening.host)
    address = HostPort(listening.host, listeners[0].socket.getsockname()[1])

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await _serve_client(stream, answers, address, speed)

    on_ready(address)
    await trio.serve_listeners(serve, listeners)


async def _serve_client(
    stream: trio.SocketStream, answers: RecordedAnswers, address: HostPort, speed: float | None
) -> None:
    decoder = FrameDecoder(limit=FRAME_BYTES_MAX)
    try:
        while data := await stream.receive_some(RECEIVE_BYTES):
            decoder.receive(data)
            while (frame := decoder.next_frame()) is not None:
                if not await _answer(stream, frame, answers, address, speed):
                    return
    except (trio.BrokenResourceError, DecodeError, UnsupportedVersion):
        return


async def _answer(
    stream: trio.SocketStream,
    frame: bytes,
    answers: RecordedAnswers,
    address: HostPort,
    speed: float | None,
) -> bool:
    """Answer one request; return False if there is no response to it."""
    header, at = decode_request_header(frame)
    if header.api_key == ApiKey.PRODUCE and _has_no_response(header.api_version, frame, at):
        return True
    found = answers.take(header, frame[at:])
    if found is None:
        return False
    captured, is_repeated = found
    if is_repeated:
        await trio.sleep(REPEATED_S)
    elif speed is not None:
        await trio.sleep(captured.latency_ms / 1000 / speed)
    response = answer_frame(captured, header.correlation_id, address, is_repeated=is_repeated)
    await stream.send_all(len(response).to_bytes(4, "big") + response)
    return True


def _has_no_response(version: int, frame: bytes, at: int) -> bool:
    return decode(ProduceRequest, version, frame, at).acks == 0
