"""Damaged, half and abandoned TLS handshakes, and damage after good ones.

Owns the sockets; the standard library makes the handshakes. The invariant: certificates are not
checked, as nothing that the broker says is believed.
"""

from __future__ import annotations

import functools
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from system_tests.attack.attacks.frames import RESET
from system_tests.attack.frames import garbage, hostile_frames
from system_tests.attack.mutations import DAMAGE
from system_tests.attack.targets import Target

HELD_MAX: Final = 60
WITHIN_S: Final = 0.3


def hello() -> bytes:
    """The first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    session = _context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


@functools.cache
def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _damaged_hello(stream: socket.socket, dice: random.Random) -> None:
    data = hello()
    for _ in range(dice.randrange(1, 4)):
        data = dice.choice(DAMAGE)(data, dice)
    stream.sendall(data)
    stream.recv(4096)


def _half_hello(stream: socket.socket, dice: random.Random) -> None:
    data = hello()
    stream.sendall(data[: dice.randrange(len(data))])


def _bytes(stream: socket.socket, dice: random.Random) -> None:
    stream.sendall(garbage(dice))
    stream.recv(4096)


def _abandoned(stream: socket.socket, dice: random.Random) -> None:
    """Read the server's part of the handshake, answer nothing or nonsense."""
    stream.sendall(hello())
    stream.recv(4096)
    stream.sendall(dice.choice((b"", dice.randbytes(100), b"\x14\x03\x03\0\1\1", hello())))


def _plain_after_handshake(stream: socket.socket, dice: random.Random) -> None:
    """A good handshake, then bytes that are not encrypted."""
    with _context().wrap_socket(stream.dup(), server_hostname="localhost"):
        stream.sendall(dice.randbytes(dice.choice((1, 5, 500))))
        stream.recv(4096)


def _frames_after_handshake(stream: socket.socket, dice: random.Random) -> None:
    frames = hostile_frames(dice.random())
    with _context().wrap_socket(stream.dup(), server_hostname="localhost") as wrapped:
        for _ in range(dice.randrange(1, 10)):
            wrapped.sendall(next(frames))


KINDS: Final[tuple[Callable[[socket.socket, random.Random], None], ...]] = (
    _damaged_hello,
    _damaged_hello,
    _half_hello,
    _bytes,
    _abandoned,
    _plain_after_handshake,
    _frames_after_handshake,
)


def attack(target: Target, seed: str, deadline: float) -> Counter[str]:
    """Begin and damage handshakes until the deadline."""
    assert target.tls is not None
    assert target.sasl_tls is not None
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    held: list[socket.socket] = []
    while time.monotonic() < deadline:
        kind = dice.choice(KINDS)
        try:
            stream = socket.create_connection(dice.choice((target.tls, target.sasl_tls)), WITHIN_S)
            held.append(stream)
            kind(stream, dice)
        except OSError:
            counts["TLS connections refused"] += 1
        counts["TLS connections"] += 1
        while len(held) > HELD_MAX or (held and dice.random() < 0.3):
            _close(held.pop(dice.randrange(len(held))), dice)
    for stream in held:
        stream.close()
    return counts


def _close(stream: socket.socket, dice: random.Random) -> None:
    with suppress(OSError):
        if dice.random() < 0.4:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.close()
