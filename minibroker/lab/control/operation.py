"""One operation of the control API, and the kinds of responses.

Owns the shape of a row of the table of operations. It must never know an operation. Invariant: a
row says all that the application, the OpenAPI description and the reference need. Kafka has no HTTP
API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

UNAVAILABLE: Final = {503: "A process is restarting, or the broker is stopping."}


class Stream(NamedTuple):
    """A response without an end: ``run`` sends its bytes until it is cancelled."""

    run: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]
    media_type: str


class Text(NamedTuple):
    """A response that is not a record as JSON."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = {}


class Redirect(NamedTuple):
    """A redirect for browsers, and the response for other clients."""

    path: str
    otherwise: Text


class Answer(NamedTuple):
    """A response with a status other than the default of the operation."""

    content: object
    status: int


class ApiOperation(NamedTuple):
    """One operation of the API.

    ``run`` gets the context and its arguments: the path's ``{parameter}`` if there is one, then the
    body if ``body`` is a record, or what follows the path's ``?`` if ``query`` is one, of texts.
    Its name is the operation's id in the OpenAPI description, and its docstring the summary.
    ``answer`` is a record, a media type, or None for no content. ``errors`` are the statuses that
    reject a request, beyond those of every operation.
    """

    method: str
    path: str
    answer: type | str | None
    run: Callable[..., Awaitable[object]]
    body: type | None = None
    query: type | None = None
    status: int = 200
    errors: Mapping[int, str] = {}
    example: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The operation's id in the OpenAPI description."""
        return self.run.__name__

    @property
    def summary(self) -> str:
        """What the operation does, in one line."""
        return (self.run.__doc__ or "").strip()

    @property
    def parameter(self) -> str | None:
        """The name of the path's parameter."""
        return (
            self.path[self.path.index("{") + 1 : self.path.index("}")] if "{" in self.path else None
        )

    def matches_path(self, path: str) -> bool:
        """Whether a request's path matches the operation's path."""
        if self.parameter is None:
            return path == self.path
        start, _, rest = self.path.partition("{")
        end = rest.partition("}")[2]
        return path.startswith(start) and path.endswith(end)


class ApiContext(Protocol):
    """The program that operations act on: a broker or a proxy."""

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """The operations that it has."""
