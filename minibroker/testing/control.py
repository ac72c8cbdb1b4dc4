"""Calls of the control API, over persistent HTTP connections.

Owns requests, and errors with the API's texts. It must never import the broker or anything beyond
the standard library. Invariant: a call has a connection of its own while it lasts, so a call that
the broker holds delays no other one, and a connection that the broker closed is replaced once. The
API is described at ``/openapi.json``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from typing import Any, Final
from urllib.parse import quote, urlencode

from minibroker.control_url import split

CALL_SECONDS_MAX: Final = 30.0

IDLE_CONNECTIONS_MAX: Final = 4
"""Connections that are kept for later calls."""


class ControlError(RuntimeError):
    """The broker rejected a call. ``code`` is Kafka's error name where it has one."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        super().__init__(f"{code}: {message} {hint}".rstrip())
        self.code = code
        self.status = status


class Control:
    """Calls to the control API of one broker; thread-safe."""

    def __init__(self, url: str) -> None:
        self._address, self._headers = split(url)
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def get(self, *path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Return the answer to ``GET``; parts of the path are quoted."""
        return self._call("GET", path, None, query)

    def post(self, *path: str, **body: object) -> dict[str, Any]:
        """Return the answer to ``POST`` with ``body`` as JSON; entries that are None are
        omitted.
        """
        given = {name: value for name, value in body.items() if value is not None}
        return self._call("POST", path, given)

    def delete(self, *path: str) -> None:
        """Send ``DELETE``, whose answer is empty."""
        self._call("DELETE", path, None)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(
        self,
        method: str,
        path: tuple[str, ...],
        body: dict[str, object] | None,
        query: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        target = "/" + "/".join(quote(part, safe="") for part in path)
        if query:
            target += f"?{urlencode(query)}"
        content = json.dumps(body).encode() if body else None
        headers = self._headers | ({"Content-Type": "application/json"} if content else {})
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            status, raw = self._exchange(self._connect(), method, target, content, headers)
        else:
            try:
                status, raw = self._exchange(connection, method, target, content, headers)
            except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # The server had closed the idle connection.
                status, raw = self._exchange(self._connect(), method, target, content, headers)
        answer: dict[str, Any] = json.loads(raw) if raw else {}
        if status >= 400:
            error = answer.get("error", {})
            raise ControlError(
                error.get("code", str(status)),
                error.get("message", ""),
                error.get("hint", ""),
                status,
            )
        return answer

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self._address, timeout=CALL_SECONDS_MAX)

    def _exchange(
        self,
        connection: HTTPConnection,
        method: str,
        target: str,
        content: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            answer = response.status, response.read()
        except (OSError, HTTPException):
            connection.close()
            raise
        with self._lock:
            is_kept = len(self._idle) < IDLE_CONNECTIONS_MAX
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()
        return answer
