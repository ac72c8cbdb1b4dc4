"""Send hostile frames over many connections at once.

Owns the sockets; the frames come from ``system_tests.attack.frames``. The invariant: no frame
holds the attack up: one that is neither answered nor refused in time costs its connection.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

from system_tests.attack.frames import hostile_frames
from system_tests.attack.recording import split_frames, words_of
from system_tests.attack.targets import Target

CONNECTIONS: Final = 24
ANSWER_WITHIN_S: Final = 0.3
SEND_WITHIN_S: Final = 0.3
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST."""


def attack(target: Target, seed: str, deadline: float) -> Counter[str]:
    """Send frames until the deadline."""
    recorded: list[bytes] = []
    if target.recording:
        recorded, _ = split_frames(Path(target.recording).read_bytes())
    frames = hostile_frames(seed, words_of(recorded), recorded)
    senders = Senders(target.address, random.Random(f"connections {seed}"))
    try:
        while time.monotonic() < deadline:
            if senders.has_room():
                senders.send(next(frames))
            senders.receive(0.0 if senders.has_room() else 0.05)
    finally:
        senders.close()
    return senders.counts


class Senders:
    """Connections that each wait for the answer to one frame."""

    def __init__(self, address: tuple[str, int], dice: random.Random) -> None:
        self._address = address
        self._dice = dice
        self._selector = selectors.DefaultSelector()
        self._idle: list[socket.socket] = []
        self.counts: Counter[str] = Counter()

    def has_room(self) -> bool:
        return len(self._selector.get_map()) < CONNECTIONS

    def send(self, frame: bytes) -> None:
        """Send a frame over an idle or a new connection."""
        try:
            stream = self._idle.pop() if self._idle else self._connected()
        except OSError:
            self.counts["hostile connections refused"] += 1
            return
        try:
            stream.sendall(frame)
        except OSError:
            self._close(stream)
        else:
            self._selector.register(stream, selectors.EVENT_READ, time.monotonic())
        self.counts["hostile frames"] += 1

    def _connected(self) -> socket.socket:
        stream = socket.create_connection(self._address, SEND_WITHIN_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def receive(self, timeout_s: float) -> None:
        """Take what has arrived; give up connections that wait for too long."""
        for key, _ in self._selector.select(timeout_s):
            stream = key.fileobj
            assert isinstance(stream, socket.socket)
            self._selector.unregister(stream)
            try:
                is_open = bool(stream.recv(65536))
            except OSError:
                is_open = False
            self.counts["hostile frames answered" if is_open else "hostile frames refused"] += 1
            if is_open and self._dice.random() < 0.9:
                self._idle.append(stream)
            else:
                self._close(stream)
        now = time.monotonic()
        for key in list(self._selector.get_map().values()):
            if now - key.data > ANSWER_WITHIN_S:
                stream = key.fileobj
                assert isinstance(stream, socket.socket)
                self._selector.unregister(stream)
                self.counts["hostile frames unanswered"] += 1
                self._close(stream)

    def _close(self, stream: socket.socket) -> None:
        with suppress(OSError):
            if self._dice.random() < 0.3:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        stream.close()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        for stream in self._idle:
            stream.close()
        self._selector.close()
