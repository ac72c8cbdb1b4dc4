"""The control API as an ASGI application: reads requests, runs operations, writes responses.

Owns the reading of bodies, the rejection of malformed and foreign requests, and the conversion of
every outcome to JSON. It must never know a particular operation, or sockets. Invariant: every
response is bounded, describes the error, and never shows a traceback. Import it only in the process
that serves it: Starlette takes 3 MB. Kafka has no equivalent.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable
from contextlib import aclosing
from functools import partial
from hmac import compare_digest
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from minibroker.broker.settings.setting import similar_names
from minibroker.lab.control.operation import (
    Answer,
    ApiContext,
    ApiOperation,
    Redirect,
    Stream,
    Text,
)
from minibroker.lab.errors import ApiError, error_json, json_bytes
from minibroker.lab.schema import Fault, InvalidJson, parse, record_fields

SIMILARITY_MIN: Final = 0.6
"""Least similarity of a path that is suggested."""

SHOWN_PATH_MAX: Final = 200
"""Characters of an unknown path that are repeated in the answer."""

_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def make_app(context: ApiContext, allowed_hosts: Iterable[str] = (), token: str = "") -> Starlette:
    """Create the application for one broker or proxy, with the operations that it has.

    ``allowed_hosts`` are further names of this broker, such as a container's; IP addresses and
    ``localhost`` are always allowed. Requests must have the ``token``, unless it is empty.
    """
    app = Starlette(
        routes=[_route(context, operation) for operation in context.operations],
        middleware=[
            Middleware(
                _Guard,
                allowed_hosts=frozenset(map(str.lower, allowed_hosts)),
                token=token.encode(),
                public=frozenset(each.path for each in context.operations if each.public),
            )
        ],
        exception_handlers={
            404: partial(_no_such_route, context),
            405: partial(_wrong_method, context),
            ApiError: _rejected,
            InvalidJson: _invalid,
            HTTPException: _other,
            Exception: _fault,
        },
    )
    app.router.redirect_slashes = False
    return app


def _route(context: ApiContext, operation: ApiOperation) -> Route:
    async def endpoint(request: Request) -> Response:
        arguments: list[object] = list(request.path_params.values())
        if operation.body is not None:
            read = _read_form if operation.form else _read_json
            body = await read(request, operation.body_max_bytes)
            if operation.form:  # As OAuth says, unknown fields are ignored.
                fields = record_fields(operation.body)
                body = {name: value for name, value in body.items() if name in fields}
            arguments.append(parse(operation.body, body))
        if operation.query is not None:
            arguments.append(parse(operation.query, dict(request.query_params)))
        answer = await operation.run(context, *arguments)
        if isinstance(answer, Answer):
            return _json_response(answer.content, answer.status)
        if isinstance(answer, Redirect):
            if "text/html" in request.headers.get("accept", ""):
                return Response(None, 302, {**_HEADERS, "location": answer.path})
            answer = answer.otherwise
        if isinstance(answer, Stream):
            return _StreamResponse(answer)
        if isinstance(answer, Text):
            headers = {**_HEADERS, **answer.headers}
            return Response(answer.content, operation.status, headers, answer.media_type)
        if operation.answer is None:
            return Response(status_code=operation.status, headers=_HEADERS)
        return _json_response(answer, operation.status)

    # Names such as group ids may contain slashes, so a parameter is the rest of the path.
    path = operation.path.replace("}", ":path}")
    return Route(path, endpoint, methods=[operation.method], name=operation.name)


async def _read_body(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    # A generator left half-way is only closed by the garbage collector, which trio forbids.
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > bytes_max:
                raise HTTPException(413, f"the body has more than {bytes_max} bytes")
    return bytes(body)


async def _read_form(request: Request, bytes_max: int) -> dict[str, str]:
    """The fields of a form, with the client's id and secret of the scheme Basic (RFC 6749, 2.3)."""
    body = await _read_body(request, bytes_max)
    fields = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    name, _, password = _basic_credentials(request.headers.get("authorization", "")).partition(":")
    if name:
        fields |= {"client_id": unquote_plus(name), "client_secret": unquote_plus(password)}
    return fields


async def _read_json(request: Request, bytes_max: int) -> Any:
    body = await _read_body(request, bytes_max)
    if not body:
        raise InvalidJson([Fault("(body)", "is empty; a JSON object is needed")])
    try:
        return json.loads(body.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidJson([Fault("(body)", f"is not UTF-8 at byte {error.start}")]) from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        raise InvalidJson([Fault("(body)", f"is not JSON: {error.msg} at {at}")]) from None
    except (ValueError, RecursionError) as error:
        reason = (
            "nested too deep" if isinstance(error, RecursionError) else "has a too large number"
        )
        raise InvalidJson([Fault("(body)", f"is not usable JSON: {reason}")]) from None


def _no_constant(name: str) -> None:
    raise json.JSONDecodeError(f"{name} is not a JSON number", name, 0)


class _StreamResponse(Response):
    """A response that is sent piece by piece until the client disconnects."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(None, 200, _HEADERS, stream.media_type)
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream."""
        del scope, receive
        headers = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(headers)

        async def send_bytes(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        await self._stream.run(send_bytes)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


# Answers ------------------------------------------------------------------------------------


def _json_response(answer: object, status: int) -> Response:
    return Response(json_bytes(answer), status, _HEADERS, "application/json")


def _error(
    status: int, code: str, message: str, hint: str, faults: Iterable[Fault] = ()
) -> Response:
    content = error_json(code, message, hint, faults)
    return Response(content, status, _HEADERS, "application/json")


async def _no_such_route(context: ApiContext, request: Request, _: Exception) -> Response:
    path = request.scope["path"][:SHOWN_PATH_MAX]
    known = {operation.path: None for operation in context.operations}
    suggestions = similar_names(path, known, count_max=3, similarity_min=SIMILARITY_MIN)
    hint = f"Similar: {', '.join(suggestions)}" if suggestions else "GET / lists all operations."
    return _error(404, "NO_SUCH_ROUTE", f"there is no resource at {path}", hint)


async def _wrong_method(context: ApiContext, request: Request, _: Exception) -> Response:
    allowed = [
        operation.method
        for operation in context.operations
        if operation.matches_path(request.scope["path"])
    ]
    message = f"{request.method[:SHOWN_PATH_MAX]} is not allowed"
    response = _error(405, "METHOD_NOT_ALLOWED", message, f"Allowed: {', '.join(allowed)}.")
    response.headers["allow"] = ", ".join(allowed)
    return response


async def _rejected(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(error.status, error.code, error.message, error.hint)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidJson)
    hint = "GET /openapi.json describes every body."
    return _error(400, "INVALID_REQUEST", str(error), hint, error.faults)


async def _other(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "BODY_TOO_LARGE" if error.status_code == 413 else "REFUSED"
    return _error(error.status_code, code, error.detail, "GET / lists all operations.")


async def _fault(_: Request, __: Exception) -> Response:
    message = "the broker failed to respond; this is an internal error"
    return _error(500, "INTERNAL_ERROR", message, "The broker's log has the details.")


# Who may ask ----------------------------------------------------------------------------------

_FOREIGN_PAGE: Final = "the request is from a page of another site"
_OWN_PAGE: Final = "same-origin"
_OWN_SITES: Final = frozenset({_OWN_PAGE, "none"})
"""Values of ``Sec-Fetch-Site``: of this API's pages, and of what the user typed. Another port of
this host is ``same-site``, which is another program.
"""


_NAME_WITHOUT_DOT: Final = re.compile(r"[a-z0-9_-]+")


class _Guard:
    """Rejects requests without the token, and those that web pages of other sites send.

    An unknown name in ``Host`` is DNS rebinding: a page whose name was made to point here. Other
    containers use names without a dot, which pages on the internet do not have; connections to a
    loopback address need no such name. A
    foreign ``Origin`` on a changing request is a form sent by another page. ``Sec-Fetch-Site``
    says the same of every request of a browser, also of one without ``Origin``; from another site,
    only a link may lead here, not a frame. The paths in ``public`` need no token: health, so that
    probes of containers work, and the token issuer, which OAuth clients use.
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: frozenset[str], token: bytes, public: frozenset[str]
    ) -> None:
        self._app = app
        self._allowed_hosts = allowed_hosts
        self._token = token
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            address, _ = scope.get("server") or ("", None)
            headers = Headers(scope=scope)
            refusal = self._refusal(address, scope["method"], scope["path"], headers)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, address: str, method: str, path: str, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if not self._is_ours(_host_name(host), address):
            hint = (
                "Use localhost or an IP address, or add the name to advertised.listeners when the "
                "broker is started."
            )
            return _error(403, "FOREIGN_HOST", "the Host header does not match this broker", hint)
        origin = headers.get("origin")
        if origin is not None and method not in {"GET", "HEAD"} and origin != f"http://{host}":
            hint = "Send it without an Origin header, as tools other than browsers do."
            return _error(403, "FOREIGN_ORIGIN", _FOREIGN_PAGE, hint)
        if headers.get("sec-fetch-site", _OWN_PAGE) not in _OWN_SITES and not (
            method in {"GET", "HEAD"} and headers.get("sec-fetch-dest") == "document"
        ):
            hint = "Send it without a Sec-Fetch-Site header, as tools other than browsers do."
            return _error(403, "FOREIGN_ORIGIN", _FOREIGN_PAGE, hint)
        if self._token and path not in self._public:
            given = _token_of(headers.get("authorization", ""))
            if not compare_digest(given, self._token):
                hint = "Use the URL that `minibroker start` printed, or the header Authorization."
                response = _error(401, "TOKEN_MISSING", "the request has no valid token", hint)
                response.headers["www-authenticate"] = 'Basic realm="minibroker"'
                return response
        return None

    def _is_ours(self, name: str, address: str) -> bool:
        if name == "localhost" or name.endswith(".localhost") or name in self._allowed_hosts:
            return True
        if _address(name) is not None:
            return True
        reached = _address(address)
        is_remote = reached is not None and not reached.is_loopback
        return is_remote and _NAME_WITHOUT_DOT.fullmatch(name) is not None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _token_of(authorization: str) -> bytes:
    """The token in a header: of the scheme Bearer, or the password of the scheme Basic."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    return _basic_credentials(authorization).partition(":")[2].encode()


def _basic_credentials(authorization: str) -> str:
    """``name:password`` of the scheme Basic; empty for other schemes."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(value, validate=True).decode()
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
