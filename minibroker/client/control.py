"""Calls of a broker's control API, over persistent HTTP connections.

Owns requests, and errors with the API's texts. It must never import the broker or anything beyond
the standard library, because test processes import it. Invariant: a call has a connection of its
own while it lasts, so a call that the broker holds delays no other one, and a connection that the
broker closed is replaced once. The API is described at ``/openapi.json``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, RemoteDisconnected
from typing import Any, ClassVar, Final, Self
from urllib.parse import quote, urlencode

from minibroker.control_url import split

STREAM_TIMEOUT_S: Final = 60.0
"""Longest silence of a stream, which sends blank lines."""

IDLE_CONNECTIONS_MAX: Final = 4
"""Connections that are kept for later calls."""


class ControlError(RuntimeError):
    """The broker rejected a call. ``code`` is Kafka's error name where it has one."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        self.code = code
        self.text = f"{message} {hint}".rstrip()
        self.status = status
        super().__init__(f"{code}: {self.text}".rstrip())


class Control:
    """Calls to the control API of one broker; thread-safe."""

    timeout_s: ClassVar = 30.0
    """How long a call waits for an answer, unless it says otherwise."""

    def __init__(self, url: str) -> None:
        self._address, self._headers = split(url)
        self.url = f"http://{self._address}"
        """Where the API is, without the token."""
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def get(self, *path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Return the answer to ``GET``; parts of the path are quoted."""
        return _decoded(self.request("GET", target_of(path, query)))

    def post(self, /, *path: str, **body: object) -> dict[str, Any]:
        """Return the answer to ``POST`` with ``body`` as JSON, without entries that are None."""
        given = {name: value for name, value in body.items() if value is not None}
        return _decoded(self.request("POST", target_of(path), given or None))

    def delete(self, *path: str) -> None:
        """Send ``DELETE``, whose answer is empty."""
        self.request("DELETE", target_of(path))

    def request(
        self, method: str, target: str, body: object = None, timeout_s: float | None = None
    ) -> bytes:
        """Send a request with ``body`` as JSON, and return what is answered."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._exchange(connection, method, target, body, timeout_s)
            except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                pass  # The server had closed the idle connection.
        return self._exchange(HTTPConnection(self._address), method, target, body, timeout_s)

    def lines(self, target: str) -> Iterator[bytes]:
        """Yield the lines of a response that may have no end."""
        with closing(HTTPConnection(self._address)) as connection:
            response = self._respond(connection, "GET", target, None, STREAM_TIMEOUT_S)
            if response.status >= 300:
                raise _error(response.status, response.read())
            while line := response.readline():
                yield line

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        body: object,
        timeout_s: float | None,
    ) -> bytes:
        try:
            response = self._respond(connection, method, target, body, timeout_s or self.timeout_s)
            answer = response.read()
        except (OSError, HTTPException):
            connection.close()
            raise
        with self._lock:
            is_kept = len(self._idle) < IDLE_CONNECTIONS_MAX
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()
        if response.status >= 300:
            raise _error(response.status, answer)
        return answer

    def _respond(
        self, connection: HTTPConnection, method: str, target: str, body: object, timeout_s: float
    ) -> HTTPResponse:
        """Return the response when its head has arrived."""
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": "application/json"} if content else {})
        connection.request(method, target, content, headers)
        return connection.getresponse()


def target_of(path: tuple[str, ...], query: Mapping[str, object] | None = None) -> str:
    """Return the path of a URL from its parts, with a query."""
    target = "/" + "/".join(quote(part, safe="") for part in path)
    return f"{target}?{urlencode(query)}" if query else target


def _decoded(answer: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(answer) if answer else {}
    return decoded


def _error(status: int, body: bytes) -> ControlError:
    try:
        error = json.loads(body)["error"]
        return ControlError(error.get("code", str(status)), error["message"], error["hint"], status)
    except (ValueError, KeyError, TypeError):
        message = f"HTTP status {status}: is it the control API?"
        return ControlError(str(status), message, "", status)


def journal_pages(control: Any, after: int = 0, **query: object) -> Iterator[dict[str, Any]]:
    """Yield the answers with a broker's journal after a sequence, until it has no more entries."""
    while True:
        page = control.get("v1", "journal", query={**query, "after": after})
        yield page
        if not page["has_more"] or not page["entries"]:
            return
        after = page["entries"][-1]["sequence"]
