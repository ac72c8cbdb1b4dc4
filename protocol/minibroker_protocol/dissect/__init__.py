"""Dissects frames and log segments: the meaning of each byte, as a tree.

Owns the detection of a frame's kind (with or without size, request or response) and reads it as far
as possible. It raises no error about the bytes: damage, missing bytes and extra bytes are part of
the result. construct interprets the schema here, so the result follows the declarations,
independent of the generated codecs. The parts of a file are all of its bytes, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import construct as cs

from minibroker_protocol import registry
from minibroker_protocol.dissect.tree import Direction, Dissection, Line, Node, lines, render
from minibroker_protocol.dissect.walk import Broken, Walker, read_batches
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.framing import SIZE_BYTES
from minibroker_protocol.records import HEADER_BYTES, parse_batch_header, verify_crc
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.schema import Message, construct_for, field
from minibroker_protocol.types import INT16, INT32, PLAIN_NULLABLE_STRING

__all__ = [
    "Direction",
    "Dissection",
    "Line",
    "Node",
    "api_named",
    "dissect",
    "dissect_segment",
    "frames",
    "is_segment",
    "lines",
    "render",
]

_Body: TypeAlias = "Callable[[Walker], None]"


class RequestHeaderSchema(Message, versions="0-2", flexible="2+"):
    """Kafka's ``RequestHeader.json``, which `headers` reads by hand.

    Version 2 goes before requests in the compact encoding, version 1 before all others but
    version 0 of ControlledShutdown.
    """

    request_api_key: int = field(INT16)
    request_api_version: int = field(INT16)
    correlation_id: int = field(INT32)
    client_id: str | None = field(PLAIN_NULLABLE_STRING, versions="1+", default="")


class ResponseHeaderSchema(Message, versions="0-1", flexible="1+"):
    """Kafka's ``ResponseHeader.json``: version 1 goes before responses in the compact encoding."""

    correlation_id: int = field(INT32)


def dissect(
    frame: bytes | bytearray | memoryview,
    *,
    direction: Direction | str = Direction.AUTO,
    api_key: int | None = None,
    version: int | None = None,
) -> Dissection:
    """Dissect `frame`, with or without its size, even if its end is missing.

    A response does not contain its API: pass API and version. With direction ``auto`` a frame is a
    response if they are given and it is not more plausible as a request.
    """
    data = bytes(frame)
    wanted = Direction(direction)
    tries: list[_Try] = []
    for prefixed in (True, False):
        if wanted is not Direction.RESPONSE:
            tries.append(_Try(data, prefixed=prefixed).request())
        if wanted is not Direction.REQUEST and api_key is not None and version is not None:
            tries.append(_Try(data, prefixed=prefixed).response(api_key, version))
    if not tries:
        problem = "a response doesn't say what it answers: its API and version are needed"
        return Dissection(data, Node("frame", 0, len(data), len(data)), problem)
    return max(tries, key=lambda attempt: attempt.merit).result()


def is_segment(data: bytes) -> bool:
    """Whether the bytes start with a record batch, as a log segment does."""
    try:
        header = parse_batch_header(data)
    except DecodeError:
        return False
    return verify_crc(data) if header.size <= len(data) else len(data) >= HEADER_BYTES


def dissect_segment(data: bytes) -> Dissection:
    """Take a log segment apart: its batches and their records."""
    root = Node("log segment", 0, len(data), 0, text=f"{len(data)} bytes")
    read_batches(data, 0, len(data), root)
    failed = next((node for node in root.walk() if node.error), None)
    problem = None if failed is None else f"{failed.name}: {failed.error} (at byte {failed.start})"
    return Dissection(data, root, problem)


def frames(data: bytes) -> list[bytes]:
    """The frames that follow each other in ``data``, each with its size before it.

    If the sizes do not lead to the end of ``data``, it counts as one frame.
    """
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + SIZE_BYTES], "big", signed=True)
        end = at + SIZE_BYTES + size
        if size <= 0 or end > len(data):
            return [data]
        found.append(data[at:end])
        at = end
    return found or [data]


class _Try:
    """One way to read the bytes, and how well it went."""

    def __init__(self, data: bytes, *, prefixed: bool) -> None:
        self.data = data
        self.root = Node("frame", 0, len(data), 0, text=f"{len(data)} bytes")
        self.prefixed = prefixed
        self.size: int | None = None
        self.problem: str | None = None
        # Of several readings, the one without remaining bytes is best, then one with the right
        # size.
        self.merit: tuple[int, ...] = (0,)

    def request(self) -> _Try:
        self._read(self._request)
        return self

    def response(self, api_key: int, version: int) -> _Try:
        self._read(lambda walker: self._response(walker, api_key, version))
        return self

    def result(self) -> Dissection:
        return Dissection(self.data, self.root, self.problem)

    def _read(self, body: _Body) -> None:
        walker = Walker(self.data)
        clean = known = False
        try:
            if self.prefixed:
                self.size = walker.read("size", cs.Int32sb, self.root).value
            body(walker)
            known = clean = True
        except Broken:
            known = len(self.root.children) > self.prefixed + 1
        except UnsupportedVersion as error:
            self.problem = str(error)
            end = len(self.data)
            unread = Node("unread", walker.position, end, end, f"{end - walker.position} bytes")
            self.root.children.append(unread)
        rest = self._finish(walker) if clean else 0
        failed = next((node for node in self.root.walk() if node.error), None)
        if failed is not None:
            self.problem = f"{_path(self.root, failed)}: {failed.error} (at byte {failed.start})"
        fits = self.size == len(self.data) - SIZE_BYTES
        short = self.size is not None and self.size > len(self.data) - SIZE_BYTES
        exact = clean and not rest
        self.merit = (fits and exact, exact, fits, known, clean, short, self.prefixed)

    def _finish(self, walker: Walker) -> int:
        """Account for the bytes behind the message; how many there are."""
        end = len(self.data)
        rest = end - walker.position
        if rest:
            node = Node("bytes left over", walker.position, end, end, f"{rest}")
            self.root.children.append(node)
            self.problem = f"{rest} bytes follow the message"
        elif self.size is not None and self.size != end - SIZE_BYTES:
            self.problem = f"the size says {self.size} bytes, {end - SIZE_BYTES} are here"
        return rest

    def _request(self, walker: Walker) -> None:
        data, at = self.data, walker.position
        if len(data) - at < 4:
            header = Node("request header", at, len(data), len(data))
            header.error = "a request header needs its API's key and version"
            self.root.children.append(header)
            raise Broken
        key = int.from_bytes(data[at : at + 2], "big", signed=True)
        version = int.from_bytes(data[at + 2 : at + 4], "big", signed=True)
        api = registry.schema(key)
        number = api.request_header_version(version)
        header = Node("request header", at, text=f"version {number}", own_end=at)
        self.root.children.append(header)
        try:
            walker.members(construct_for(RequestHeaderSchema, number), header)
        finally:
            header.end = walker.position
        self._body(walker, api, f"{api.name}Request", version, request=True)

    def _response(self, walker: Walker, api_key: int, version: int) -> None:
        api = registry.schema(api_key)
        at = walker.position
        number = api.response_header_version(version)
        header = Node("response header", at, text=f"version {number}", own_end=at)
        self.root.children.append(header)
        try:
            walker.members(construct_for(ResponseHeaderSchema, number), header)
        finally:
            header.end = walker.position
        self._body(walker, api, f"{api.name}Response", version, request=False)

    def _body(
        self, walker: Walker, api: ApiSchema, name: str, version: int, *, request: bool
    ) -> None:
        tree = construct_for(api.request if request else api.response, version)
        missing = ""
        if self.size is not None and self.size > len(self.data) - SIZE_BYTES:
            missing = f", {self.size + SIZE_BYTES - len(self.data)} bytes missing"
        body = Node(name, walker.position, text=f"version {version}{missing}")
        body.own_end = walker.position
        self.root.children.append(body)
        try:
            walker.members(tree, body)
        finally:
            body.end = walker.position


def _path(root: Node, target: Node) -> str:
    """The names on the way from below `root` to `target`."""

    def search(node: Node) -> list[str] | None:
        if node is target:
            return [node.name]
        for child in node.children:
            found = search(child)
            if found is not None:
                return [node.name, *found]
        return None

    names = (search(root) or [""])[1:]
    return ".".join(names).replace(".[", "[")


def api_named(name: str) -> ApiKey:
    """The API of that name or number, however it is written; ValueError if there is none."""
    wanted = name.replace("_", "").replace("-", "").lower()
    for key in ApiKey:
        if wanted in (key.name.replace("_", "").lower(), str(int(key))):
            return key
    raise ValueError(f"no API is called {name!r}")
