"""Before authentication, no bytes are answered by any API but three.

Random bytes, hostile requests of every API and mutated handshakes and tokens are sent over a
listener with SASL, in every order. They are answered by ApiVersions, SaslHandshake or
SaslAuthenticate, or not at all; the connection is closed or waits, and no client is authenticated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.registry import APIS
from minibroker.broker.network.sasl import ALLOWED
from minibroker.broker.security.principal import ANONYMOUS
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from minibroker_protocol.registry import schema
from tests.broker.network.secured import HELLO, SecuredBroker, secured
from tests.simulation.client import frame
from tests.simulation.world import logged_errors

SETTINGS = (
    "listeners=SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    'sasl.jaas.config=x.PlainLoginModule required user_alice="not to be guessed";',
)
CASES = 400
PIECES = 4
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI", "")
TOKENS = (b"", b"\0alice\0guess", b"n,,n=alice,r=x", b"c=biws,r=x,p=eA==", b"\x01", b"n,,\x01\x01")


def pieces(random: Random) -> Iterator[bytes]:
    """Frames that a client might send, each whole or damaged."""
    for _ in range(random.randrange(1, PIECES)):
        kind = random.randrange(5)
        if kind == 0:
            yield random.randbytes(random.randrange(60))
            continue
        if kind == 1:
            body = random.randbytes(random.randrange(1, 60))
            yield len(body).to_bytes(4, "big") + body
            continue
        if kind == 2:
            made = frame(HELLO, 4)
        elif kind == 3:
            made = frame(SaslHandshakeRequest(mechanism=random.choice(MECHANISMS)), 1)
        else:
            token = random.choice([*TOKENS, random.randbytes(random.randrange(40))])
            made = frame(SaslAuthenticateRequest(auth_bytes=token), random.randrange(3))
        damaged = bytearray(made)
        if random.random() < 0.4:
            damaged[random.randrange(4, len(damaged))] = random.randrange(256)
        yield bytes(damaged)


async def send(at: SecuredBroker, data: list[bytes]) -> bytes:
    client = await at.connect("SASL_PLAINTEXT")
    answer = b""
    with trio.move_on_after(5):
        try:
            for piece in data:
                await client.stream.send_all(piece)
            client.end_sending()
        except StreamClosed:
            pass
        answer = await client.wait_closed()
    client.close()
    return answer


async def test_random_bytes_authenticate_no_client(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with logged_errors() as errors:
        async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
            for seed in range(CASES):
                await send(at, list(pieces(Random(seed))))
            assert set(at.known.values()) <= {ANONYMOUS}
            assert at.asked <= set(ALLOWED)
    assert errors == []


@pytest.mark.parametrize("prefix", [0, 1, 2], ids=["at once", "named", "with a mechanism"])
async def test_unauthenticated_client_reaches_no_other_api(
    tmp_path: Path, autojump_clock: MockClock, prefix: int
) -> None:
    start = [frame(HELLO, 4), frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)][:prefix]
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        before = await send(at, start)
        for key, api in APIS.items():
            if key in ALLOWED:
                continue
            for version in {api.served_from or api.versions[0], api.versions[1]}:
                request = schema(key).request()
                assert await send(at, [*start, frame(request, version)]) == before
        assert at.asked <= set(ALLOWED)
