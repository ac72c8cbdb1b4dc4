"""A listener with TLS answers in TLS only, and no API executes requests without certificate.

Random bytes, plain requests, and starts of a handshake, complete, truncated and damaged, are sent
to a listener that requires client certificates; then clients finish the handshake without a
certificate, or with an expired or untrusted one. Responses are complete TLS records, or none; the
connection is closed, and nothing is logged as an error of the broker.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio
import trustme
from trio.testing import MockClock

from minibroker.broker.network.tls import TlsHandshakeFailed
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.broker.network.certificates import client_context, truststore
from tests.broker.network.secured import HELLO, SecuredBroker, secured
from tests.simulation.client import SimulatedClient, frame
from tests.simulation.world import logged_errors

CASES = 300
CONTENT_TYPES = range(20, 24)
"""The kinds of TLS records."""

HANDSHAKE = 22
RECORD_HEADER = 5
RECORD_MAX = 2**14 + 256
LONGEST_WAIT_S = 60.0


def settings(directory: Path) -> tuple[str, ...]:
    return (
        "listeners=SSL://127.0.0.1:0",
        "ssl.client.auth=required",
        f"ssl.truststore.location={truststore(directory)}",
    )


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return the first message of a client."""
    due = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), due)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return due.read()


def record(random: Random) -> bytes:
    """A TLS record that means nothing, and may claim more than it has."""
    body = random.randbytes(random.randrange(200))
    claimed = random.choice([len(body), random.randrange(2**16)])
    kind = random.choice([*CONTENT_TYPES, random.randrange(256)])
    return bytes([kind, 3, random.choice([1, 3, 4])]) + claimed.to_bytes(2, "big") + body


def pieces(random: Random, hello: bytes) -> Iterator[bytes]:
    """Yield what a broken or hostile client might send."""
    for _ in range(random.randrange(1, 4)):
        match random.randrange(5):
            case 0:
                yield random.randbytes(random.randrange(300))
            case 1:
                yield frame(HELLO, 4)
            case 2:
                yield record(random)
            case 3:
                yield hello[: random.randrange(len(hello))]
            case _:
                damaged = bytearray(hello)
                for _ in range(random.randrange(4)):
                    damaged[random.randrange(len(damaged))] = random.randrange(256)
                yield bytes(damaged)


def check_is_tls(answer: bytes) -> None:
    while answer:
        size = int.from_bytes(answer[3:RECORD_HEADER], "big")
        assert answer[0] in CONTENT_TYPES
        assert answer[1] == 3
        assert size <= min(RECORD_MAX, len(answer) - RECORD_HEADER)
        answer = answer[RECORD_HEADER + size :]


async def answer_to(at: SecuredBroker, data: list[bytes]) -> bytes:
    """All that comes back until the connection ends."""
    client = SimulatedClient(await at.dial("SSL"))
    with trio.fail_after(LONGEST_WAIT_S):
        with suppress(StreamClosed):
            for piece in data:
                await client.stream.send_all(piece)
            client.end_sending()
        answer = await client.wait_closed()
    client.close()
    return answer


async def test_mutated_handshake_is_answered_with_valid_tls_records_or_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    hello = client_hello(client_context())
    with logged_errors() as errors:
        async with secured(tmp_path, autojump_clock, *settings(tmp_path)) as at:
            answers = [
                await answer_to(at, list(pieces(Random(seed), hello))) for seed in range(CASES)
            ]
            assert at.asked == set()
    for answer in answers:
        check_is_tls(answer)
    assert {answer[0] for answer in answers if answer} >= {HANDSHAKE}  # some were understood
    assert errors == []


def strangers() -> ssl.SSLContext:
    """Return the context of a client with a certificate of an untrusted authority."""
    context = client_context()
    trustme.CA().issue_cert(common_name="alice").configure_cert(context)
    return context


@pytest.mark.parametrize("who", ["nobody", "expired", "strangers"])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_without_valid_certificate_reaches_no_api(
    tmp_path: Path, autojump_clock: MockClock, who: str, newest: ssl.TLSVersion
) -> None:
    contexts = {
        "nobody": client_context,
        "expired": lambda: client_context("alice", expired=True),
        "strangers": strangers,
    }
    context = contexts[who]()
    context.maximum_version = newest
    answer = b""
    with logged_errors() as errors:
        async with secured(tmp_path, autojump_clock, *settings(tmp_path)) as at:
            with suppress(TlsHandshakeFailed, StreamClosed), trio.fail_after(LONGEST_WAIT_S):
                client = await at.connect("SSL", context)  # in TLS 1.3 it believes to be let in
                await client.send_request(HELLO, 4)
                await client.send_request(MetadataRequest(topics=None), 9)
                answer = await client.wait_closed()
            assert at.asked == set()
    assert answer == b""
    assert errors == []
