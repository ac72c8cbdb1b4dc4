"""Connections that are slow, silent, half-open, never read, reset or many.

Owns their sockets and habits. The invariant: at most `HELD_MAX` are open at a time, each for a few
seconds, and nothing that the broker does with one holds up the others.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from system_tests.attack.attacks.frames import RESET
from system_tests.attack.targets import Target
from system_tests.faults.hostile import METADATA, api_versions_request, request

HELD_MAX: Final = 160
HELD_S: Final = (0.5, 12.0)
STORM: Final = 60
"""Connections that come and go at once, in one step."""

CLAIMED_BYTES: Final = 16 * 1024 * 1024
"""The largest frame that the attacked brokers accept."""

TURN_S: Final = 0.05
ALL_TOPICS: Final = request(METADATA, 1, struct.pack(">i", -1))


class Held:
    """A connection and its habit: what it sends at each turn."""

    def __init__(self, stream: socket.socket, until: float, habit: Callable[[], bytes]) -> None:
        self.stream = stream
        self.until = until
        self._habit = habit
        self.is_open = True

    def turn(self) -> None:
        """Send the next bytes, without waiting."""
        data = self._habit()
        if not data:
            return
        try:
            self.stream.send(data)
        except BlockingIOError:
            return
        except OSError:
            self.is_open = False


def attack(target: Target, seed: str, deadline: float) -> Counter[str]:
    """Hold connections of all kinds until the deadline."""
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    held: list[Held] = []
    try:
        while time.monotonic() < deadline:
            if len(held) < HELD_MAX:
                _open(target, dice, counts, held)
            if dice.random() < 0.1:
                _storm(target, dice, counts)
            now = time.monotonic()
            for each in held:
                each.turn()
            over = [each for each in held if not each.is_open or now > each.until]
            counts["hostile connections closed by the broker"] += sum(
                not each.is_open for each in over
            )
            for each in over:
                held.remove(each)
                _close(each.stream, dice)
            time.sleep(TURN_S if len(held) >= HELD_MAX else 0.002)
    finally:
        for each in held:
            each.stream.close()
    return counts


def _open(target: Target, dice: random.Random, counts: Counter[str], held: list[Held]) -> None:
    name = dice.choice(tuple(HABITS))
    try:
        stream = _connected(target, dice, small_buffer=name.startswith("never reading"))
    except OSError:
        counts["hostile connections refused"] += 1
        return
    until = time.monotonic() + dice.uniform(*HELD_S)
    held.append(Held(stream, until, HABITS[name](dice)))
    counts[f"{name} connections"] += 1


def _connected(target: Target, dice: random.Random, *, small_buffer: bool) -> socket.socket:
    source = f"127.0.0.{dice.randrange(1, 20)}"
    stream = socket.socket()
    try:
        if small_buffer:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.settimeout(1.0)
        stream.bind((source, 0))
        stream.connect(target.address)
        stream.setblocking(False)
    except OSError:
        stream.close()
        raise
    return stream


def _storm(target: Target, dice: random.Random, counts: Counter[str]) -> None:
    """Connect many times; close at once, in the middle of a frame, or with RST."""
    streams = []
    for _ in range(STORM):
        try:
            streams.append(_connected(target, dice, small_buffer=False))
        except OSError:
            counts["hostile connections refused"] += 1
    for stream in streams:
        with suppress(OSError):
            stream.send(dice.choice((b"", ALL_TOPICS[:9], ALL_TOPICS)))
        _close(stream, dice)
    counts["connections of storms"] += len(streams)


def _close(stream: socket.socket, dice: random.Random) -> None:
    with suppress(OSError):
        if dice.random() < 0.5:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.close()


def _trickle(dice: random.Random) -> Callable[[], bytes]:
    """Claim a large frame, then send a byte now and then."""
    beginning = [struct.pack(">i", dice.choice((1000, 1_000_000, CLAIMED_BYTES)))]
    pace = dice.choice((1.0, 0.2, 0.02))

    def habit() -> bytes:
        if beginning:
            return beginning.pop()
        return b"\0" if dice.random() < pace else b""

    return habit


def _claim(dice: random.Random) -> Callable[[], bytes]:
    """Claim a large frame and send nothing more."""
    beginning = [struct.pack(">i", CLAIMED_BYTES) + dice.randbytes(dice.choice((0, 1, 1000)))]
    return lambda: beginning.pop() if beginning else b""


def _silent(dice: random.Random) -> Callable[[], bytes]:
    return lambda: b""


def _half_header(dice: random.Random) -> Callable[[], bytes]:
    beginning = [api_versions_request()[: dice.randrange(1, 12)]]
    return lambda: beginning.pop() if beginning else b""


def _never_reading(dice: random.Random) -> Callable[[], bytes]:
    """Ask much and read nothing."""
    return lambda: ALL_TOPICS * 200


def _bytewise(dice: random.Random) -> Callable[[], bytes]:
    """Honest requests, byte by byte."""
    data = iter(ALL_TOPICS * 1000)
    return lambda: bytes((next(data, 0),))


HABITS: Final[dict[str, Callable[[random.Random], Callable[[], bytes]]]] = {
    "trickling": _trickle,
    "claiming": _claim,
    "silent": _silent,
    "half-open": _half_header,
    "never reading": _never_reading,
    "bytewise": _bytewise,
}
