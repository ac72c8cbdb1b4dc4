"""The addresses of a broker under attack, and requests to its control API.

Owns their form on the command line of another process, which is JSON. The invariant: a control API
that does not answer yields None, never an error, because an attack may be the reason.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final, NamedTuple, Self

CONTROL_TIMEOUT_S: Final = 5.0


class Target(NamedTuple):
    """A broker under attack. Addresses are host and port."""

    address: tuple[str, int]
    control_url: str
    recording: str = ""
    """A file with recorded frames of real clients; empty for none."""
    tls: tuple[str, int] | None = None
    sasl_tls: tuple[str, int] | None = None
    sasl: tuple[str, int] | None = None

    def encoded(self) -> str:
        return json.dumps(self)

    @classmethod
    def decoded(cls, text: str) -> Self:
        address, control_url, recording, *others = json.loads(text)
        return cls(tuple(address), control_url, recording, *map(_address, others))


def _address(found: list[Any] | None) -> tuple[str, int] | None:
    return None if found is None else (found[0], found[1])


def ask_control(control_url: str, path: str, body: object = None) -> Any:
    """The answer of the control API, or None if there is none in time."""
    request = urllib.request.Request(
        control_url.rstrip("/") + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=CONTROL_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None
