"""Frames of real clients, recorded by a proxy between them and the broker under attack.

Three client libraries create topics, produce, consume as members of groups and commit. The program
stays until its standard input ends, with the members in their groups, so that the ids in the frames
are valid while damaged copies are sent. The invariant: the proxy changes nothing on the way, and
keeps a bounded number of frames of each API and version.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from minibroker_protocol import registry
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.schema import Struct
from minibroker_protocol.wire import decode_request_header
from system_tests.attack.values import Words
from system_tests.clients.adapters.aio import AiokafkaClient
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.adapters.pure import KafkaPythonClient
from system_tests.clients.model import Client, Member, Record, drain

FRAME_MAX_BYTES: Final = 64 * 1024
FRAMES_OF_A_KIND_MAX: Final = 12
RECORDS: Final = 20
CLIENTS: Final[tuple[type[Client], ...]] = (ConfluentClient, KafkaPythonClient, AiokafkaClient)


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """The complete frames at the beginning of a stream, and what remains."""
    frames, at = [], 0
    while len(data) - at >= 4:
        (length,) = struct.unpack_from(">i", data, at)
        end = at + 4 + max(length, 0)
        if end > len(data):
            break
        frames.append(data[at:end])
        at = end
    return frames, data[at:]


def words_of(frames: Iterable[bytes]) -> Words:
    """The strings and ids in recorded requests: topics, groups, members, topic ids."""
    strings: set[str] = set()
    uuids: set[bytes] = set()
    for frame in frames:
        try:
            header, at = decode_request_header(frame, 4)
            request = registry.schema(header.api_key).request
            found = decode(request, header.api_version, frame, at)
        except (DecodeError, UnsupportedVersion):
            continue
        for value in _values(found):
            if isinstance(value, str) and value:
                strings.add(value)
            elif isinstance(value, bytes) and len(value) == 16 and any(value):
                uuids.add(value)
    return Words(sorted(strings), sorted(uuids))


def _values(found: Any) -> Iterator[Any]:
    if isinstance(found, Struct):
        for item in found.__fields__:
            yield from _values(getattr(found, item.name))
    elif isinstance(found, list):
        for element in found:
            yield from _values(element)
    else:
        yield found


class Recorder:
    """The frames of all connections, a few of each API and version."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._kept: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def add(self, frame: bytes) -> None:
        kind = frame[4:8]
        with self._lock:
            if len(frame) <= FRAME_MAX_BYTES and self._kept[kind] < FRAMES_OF_A_KIND_MAX:
                self._kept[kind] += 1
                self.frames.append(frame)


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, behind: tuple[str, int], recorder: Recorder) -> None:
        super().__init__(("127.0.0.1", port), _Session)
        self.behind = behind
        self.recorder = recorder

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections may be cut at any moment: by the broker, or by a client that ends."""


class _Session(socketserver.BaseRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        with socket.create_connection(self.server.behind) as behind:
            back = threading.Thread(target=self._copy_back, args=(behind,), daemon=True)
            back.start()
            rest = b""
            while data := self.request.recv(65536):
                frames, rest = split_frames(rest + data)
                for frame in frames:
                    self.server.recorder.add(frame)
                behind.sendall(data)

    def _copy_back(self, behind: socket.socket) -> None:
        try:
            while data := behind.recv(65536):
                self.request.sendall(data)
            self.request.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def session(kind: type[Client], servers: str) -> tuple[Client, Member]:
    """One client's work; its member stays in its group."""
    client = kind(servers)
    topic = f"recorded-{client.name}"
    client.create_topic(topic, 2)
    client.produce(topic, [Record(b"key", b"value %d" % i) for i in range(RECORDS)])
    member = client.join(f"recorded-group-{client.name}", topic)
    drain(member, RECORDS)
    member.commit()
    client.topics()
    client.bounds(topic, 0)
    client.groups()
    return client, member


def main(port: str, behind: str, file: str) -> None:
    """Record sessions through a proxy on ``port`` into ``file``, then wait for the end of input."""
    host, behind_port = json.loads(behind)
    recorder = Recorder()
    proxy = _Proxy(int(port), (host, behind_port), recorder)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    kept = [session(kind, f"127.0.0.1:{port}") for kind in CLIENTS]
    Path(file).write_bytes(b"".join(recorder.frames))
    print(json.dumps({"frames": len(recorder.frames), "clients": len(kept)}), flush=True)
    sys.stdin.read()
    os._exit(0)  # The clients may not be able to end: the broker under them was attacked.


if __name__ == "__main__":
    main(*sys.argv[1:])
