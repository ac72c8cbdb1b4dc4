"""Calls of the control API, over one persistent HTTP connection.

Owns requests, and errors with the API's texts. It must never import the broker or anything beyond
the standard library. Invariant: one call at a time uses the connection, from any thread, and a
broken connection is replaced once. The API is described at ``/openapi.json``.
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
        self._connection: HTTPConnection | None = None
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
        with self._lock:
            self._drop()

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
            try:
                status, raw = self._exchange(method, target, content, headers)
            except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self._drop()  # the server had closed the idle connection
                status, raw = self._exchange(method, target, content, headers)
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

    def _exchange(
        self, method: str, target: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = HTTPConnection(self._address, timeout=CALL_SECONDS_MAX)
        try:
            self._connection.request(method, target, content, headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException):
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
