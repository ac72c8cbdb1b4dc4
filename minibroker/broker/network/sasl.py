"""SASL on a client connection: receives frames, runs the authentication, sends the answers.

Owns the requests allowed before authentication, their responses, and the end of a session. The
order of steps is in `Authentication`, and the check of credentials in the mechanisms. Invariant:
before authentication no other API reads a byte, and no log line contains a secret. Kafka's
``SaslServerAuthenticator``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.apis import api_versions
from minibroker.broker.apis.base import Context
from minibroker.broker.apis.registry import serving
from minibroker.broker.metadata.acls import find_token, shapes
from minibroker.broker.metadata.image import EMPTY, USER, Image
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.quotas.types import sanitize
from minibroker.broker.security.authentication import (
    OAUTHBEARER,
    PLAIN,
    Authentication,
    AuthenticationAnswer,
    AuthenticationState,
    IllegalStep,
    Mechanism,
    Plain,
)
from minibroker.broker.security.oauth import (
    Claims,
    OAuthBearer,
    TokenRules,
    UnusableKeys,
    Verifier,
    unsecured,
    verifier,
)
from minibroker.broker.security.scram import (
    ITERATIONS_MIN,
    Credential,
    CredentialShape,
    Scram,
    TokenCredential,
    parse_credential,
    token_credential,
)
from minibroker.broker.settings import (
    CONNECTIONS_MAX_REAUTH_MS,
    DELEGATION_TOKEN_SECRET_KEY,
    PERSONA,
    SASL_ENABLED_MECHANISMS,
    SASL_JAAS_CONFIG,
    SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS,
    SASL_OAUTHBEARER_EXPECTED_AUDIENCE,
    SASL_OAUTHBEARER_EXPECTED_ISSUER,
    SASL_OAUTHBEARER_JWKS_ENDPOINT_URL,
    SASL_OAUTHBEARER_SUB_CLAIM_NAME,
    ConfigError,
    Settings,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.errors import ErrorCode, UnsupportedVersion
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader, decode_request_header, encode_response_header

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.runtime.arena import Block
    from minibroker.runtime.clock import ControlledClock


NONCE_BYTES: Final = 24
_SIZE_BYTES: Final = 4

ALLOWED: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""All requests that are allowed before authentication, if they are served."""


class SaslFailed(Exception):
    """Authentication failed finally; ``response`` is sent after a delay, if there is one."""

    def __init__(
        self, text: str, response: bytes = b"", answering: Callable[[], None] | None = None
    ) -> None:
        """``answering`` must be called before the response is sent."""
        super().__init__(text)
        self.response = response
        self.answering = answering


class SaslStep:
    """One request of an authentication, and what it led to."""

    def __init__(self, request: Any, version: int) -> None:
        """``version`` is that of the response."""
        self.request = request
        self.version = version
        self.failure: str | None = None
        """Why the response is the last one."""
        self.lifetime_ms = 0
        """Lifetime of the new session; 0 if it does not expire."""


class SaslAuthenticator:
    """Authenticates the clients of one listener."""

    def __init__(
        self,
        settings: Settings,
        listener: str,
        *,
        clock: ControlledClock,
        image: Callable[[], Image],
        secret: bytes,
    ) -> None:
        """``secret`` is the same in every process that serves this listener.

        Raises ``ConfigError``.
        """
        self._settings = settings
        self._persona = settings[PERSONA]
        apis = serving(settings).apis
        self._served = {key: apis[key].versions for key in ALLOWED if key in apis}
        self._listener = listener
        self._clock = clock
        self._image = image
        self._secret = secret
        self._shapes_of: object = None
        self._known_shapes: dict[str, tuple[CredentialShape, ...]] = {}
        self._mechanisms = settings.at_listener(listener, SASL_ENABLED_MECHANISMS)
        self._verify, self._rules = token_rules(settings, listener)
        entry = settings.at_listener(listener, SASL_JAAS_CONFIG, PLAIN)
        self._tokens = TokenCredentials(settings, image, clock.wall_ms)
        self._passwords = {} if entry is None else entry.users

    def begin(self) -> Authentication:
        """Start the authentication of a new connection."""
        return Authentication(self._mechanisms, self._create_mechanism, self._reauth_max_ms)

    def _create_mechanism(self, mechanism: str) -> Mechanism:
        if mechanism == PLAIN:
            return Plain(self._passwords)
        if mechanism == OAUTHBEARER:
            return OAuthBearer(self._verify, self._rules, self._clock.wall_ms)

        def find(user: str) -> Credential | None:
            config = self._image().configs.get((USER, sanitize(user)), EMPTY)
            credential = parse_credential(config.get(mechanism, ""))
            return (
                credential
                if credential is not None and credential.iterations >= ITERATIONS_MIN
                else None
            )

        nonce = secrets.token_urlsafe(NONCE_BYTES)
        return Scram(
            mechanism,
            find,
            nonce=nonce,
            secret=self._secret,
            shapes=lambda: self._shapes(mechanism),
            find_token=partial(self._tokens.find, mechanism),
        )

    def _shapes(self, mechanism: str) -> tuple[CredentialShape, ...]:
        """Return the shapes of credentials in the image; users are scanned once per change of
        configs.
        """
        image = self._image()
        if self._shapes_of is not image.configs:
            self._shapes_of, self._known_shapes = image.configs, {}
        if mechanism not in self._known_shapes:
            self._known_shapes[mechanism] = shapes(image, mechanism)
        return self._known_shapes[mechanism]

    def _reauth_max_ms(self, mechanism: str) -> int:
        return self._settings.at_listener(self._listener, CONNECTIONS_MAX_REAUTH_MS, mechanism)

    async def step(
        self,
        client: ClientConnection,
        block: Block,
        handler: RequestHandler,
    ) -> None:
        """Handle one frame of an authentication or reauthentication.

        Raises ``SaslFailed``, ``InterceptorDisconnect``, or the errors of bytes that are not a
        request.
        """
        authentication = client.authentication
        assert authentication is not None
        is_raw = authentication.state is AuthenticationState.RAW
        for observer in handler.observers:
            observer.authentication_received(client, block.view, is_token=is_raw)
        if is_raw:
            await self._take_token(client, authentication, block, handler)
            return
        header, at = decode_request_header(block.view)
        if header.api_key not in self._served:
            name = ApiKey(header.api_key).name
            raise SaslFailed(f"{name} was requested before the client was authenticated")
        client.client_id = header.client_id
        context = handler.context(client, header, block)
        request = self._decoded(header, block.view, at)
        step = SaslStep(request, 0 if request is None else header.api_version)
        respond = partial(self._respond, authentication, context, step)
        interceptor, interception = handler.interceptor, None
        if request is None or interceptor is None or not interceptor.concerns(block):
            response = await respond()
        else:
            response, interception = await interceptor.execute(
                client, header, request, context.image, respond
            )
        frame = _response(header, response, step.version)
        answered = header._replace(api_version=step.version)
        size = len(frame) - _SIZE_BYTES
        answering = partial(_announce, handler, client, answered, size, response)
        if step.failure is not None:
            raise SaslFailed(step.failure, frame, answering)
        answering()
        if interception is None:
            await client.stream.send_all(frame)
        else:
            await interception.send(frame)
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            self._set_session_expiry(client, step.lifetime_ms)
        if interception is not None:
            await interception.mute()

    async def _take_token(
        self,
        client: ClientConnection,
        authentication: Authentication,
        block: Block,
        handler: RequestHandler,
    ) -> None:
        """Handle a token without a header, as after SaslHandshake of version 0."""
        answer = authentication.on_token(bytes(block.view), self._clock.wall_ms())
        if answer.failure is not None:
            raise SaslFailed(answer.failure)
        _announce(handler, client, None, len(answer.data), None)
        await client.stream.send_all(_framed(answer.data))
        self._set_session_expiry(client, answer.lifetime_ms)

    def _decoded(self, header: RequestHeader, body: memoryview, at: int) -> Any:
        """The request; None for an ApiVersions request of an unknown version."""
        key, version = ApiKey(header.api_key), header.api_version
        low, high = self._served[key]
        if low <= version <= high:
            return decode(registry.schema(key).request, version, body, at)
        if key != ApiKey.API_VERSIONS:
            raise UnsupportedVersion(f"version {version} of a SASL request is not served")
        return None

    async def _respond(
        self, authentication: Authentication, context: Context, step: SaslStep
    ) -> Any:
        """Take the step, and return its response."""
        header, request = context.header, step.request
        if header.api_key != ApiKey.API_VERSIONS:
            answer = self._handle_request(authentication, header, request)
            step.failure, step.lifetime_ms = answer.failure, answer.lifetime_ms
            return _as_response(header, answer, authentication)
        if request is None:
            response = api_versions.unsupported_version(self._served, self._persona)
        else:
            response = api_versions.before_authentication(context, request)
        try:
            authentication.on_versions(served=response.error_code == ErrorCode.NONE)
        except IllegalStep as illegal:
            step.version, step.failure = 0, str(illegal)
            return ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        return response

    def _handle_request(
        self, authentication: Authentication, header: RequestHeader, request: Any
    ) -> AuthenticationAnswer:
        try:
            if header.api_key == ApiKey.SASL_HANDSHAKE:
                return authentication.on_handshake(request.mechanism, header.api_version)
            return authentication.on_token(bytes(request.auth_bytes), self._clock.wall_ms())
        except IllegalStep as illegal:
            return AuthenticationAnswer(
                ErrorCode.ILLEGAL_SASL_STATE, str(illegal), failure=str(illegal)
            )

    def _set_session_expiry(self, client: ClientConnection, lifetime_ms: int) -> None:
        authentication = client.authentication
        assert authentication is not None
        if authentication.state is AuthenticationState.COMPLETE:
            expires_at = self._clock.now() + lifetime_ms / 1000
            client.session_expires_at = expires_at if authentication.expires else None


def token_rules(settings: Settings, listener: str) -> tuple[Verifier, TokenRules]:
    """Return the verifier and the rules for tokens of a listener. Raises ``ConfigError``."""

    def at(key: Any) -> Any:
        return settings.at_listener(listener, key, OAUTHBEARER)

    path = at(SASL_OAUTHBEARER_JWKS_ENDPOINT_URL)
    issuer, audience = (
        at(SASL_OAUTHBEARER_EXPECTED_ISSUER),
        frozenset(at(SASL_OAUTHBEARER_EXPECTED_AUDIENCE)),
    )
    if path is None or OAUTHBEARER not in settings.at_listener(listener, SASL_ENABLED_MECHANISMS):
        entry = at(SASL_JAAS_CONFIG)
        is_ours = entry is not None and entry.module_name == "OAuthBearerLoginModule"
        options = dict(entry.options) if is_ours else {}
        prefix = "unsecuredValidator"
        try:
            skew_ms = int(options.get(f"{prefix}AllowableClockSkewMs", "0"))
        except ValueError:
            text = f"{SASL_JAAS_CONFIG.name}: {prefix}AllowableClockSkewMs must be a whole number"
            raise ConfigError([text]) from None
        return unsecured, TokenRules(
            options.get(f"{prefix}PrincipalClaimName", "sub"),
            options.get(f"{prefix}ScopeClaimName", "scope"),
            frozenset(options.get(f"{prefix}RequiredScope", "").split()),
            skew_ms,
            issuer,
            audience,
        )
    verify = JwksFile(path).verify
    skew_ms = at(SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS) * 1000
    name_claim = at(SASL_OAUTHBEARER_SUB_CLAIM_NAME)
    return verify, TokenRules(
        name_claim, skew_ms=skew_ms, issuer=issuer, audience=audience, signed=True
    )


class JwksFile:
    """The keys of a file, which are read again when the issuer has changed them.

    Kafka reads a file once, and the keys of an issuer's URL again, as this class does.
    """

    def __init__(self, path: str) -> None:
        """Read the keys. Raises ``ConfigError``."""
        self._path = path
        self._state = self._current_state()
        self._verify = self._read()
        self._log = EventLog("network")

    def verify(self, token: str) -> Claims:
        """Return the claims of a token. Raises ``BadToken``."""
        state = self._current_state()
        if state and state != self._state:
            self._state = state
            try:
                self._verify = self._read()
                self._log.info("the keys of tokens are read again", file=self._path)
            except ConfigError as error:
                text = "the keys of tokens can't be read; the old ones stay in use"
                self._log.warning(text, reason="; ".join(error.problems))
        return self._verify(token)

    def _current_state(self) -> tuple[int, ...]:
        """What changes when the file is replaced; empty if it does not exist."""
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> Verifier:
        try:
            with open(self._path, encoding="utf-8") as file:
                return verifier(file.read())
        except (OSError, UnicodeDecodeError, UnusableKeys) as error:
            why = error.strerror if isinstance(error, OSError) else error
            text = f"{SASL_OAUTHBEARER_JWKS_ENDPOINT_URL.name}=file://{self._path}: {why}"
            raise ConfigError([text]) from None


def _as_response(
    header: RequestHeader, answer: AuthenticationAnswer, authentication: Authentication
) -> Any:
    if header.api_key == ApiKey.SASL_HANDSHAKE:
        mechanisms = list(authentication.mechanisms)
        return SaslHandshakeResponse(error_code=answer.error, mechanisms=mechanisms)
    return SaslAuthenticateResponse(
        error_code=answer.error,
        error_message=answer.text,
        auth_bytes=answer.data,
        session_lifetime_ms=answer.lifetime_ms,
    )


def _response(header: RequestHeader, response: Any, version: int) -> bytes:
    start = encode_response_header(header.api_key, version, header.correlation_id)
    return _framed(start + encode(response, version))


def _announce(
    handler: RequestHandler,
    client: ClientConnection,
    header: RequestHeader | None,
    size: int,
    response: Any,
) -> None:
    """Call the observers before a response is sent."""
    for observer in handler.observers:
        observer.authentication_answering(client, header, size, response)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


# --------------------------------------------------------------------------------------------------
# SCRAM credentials of delegation tokens, made when a client first uses them.
#
# Owns a bounded cache of credentials, because one takes milliseconds. It must never authenticate.
# Invariant: an expired or removed token has no credential. Kafka's ``DelegationTokenCache``, which
# makes the credentials of all tokens in advance.

CACHE_MAX: Final = 1000


class TokenCredentials:
    """Finds the credentials of tokens in the image."""

    def __init__(
        self, settings: Settings, image: Callable[[], Image], wall_ms: Callable[[], int]
    ) -> None:
        self._key = settings[DELEGATION_TOKEN_SECRET_KEY]
        self._image = image
        self._wall_ms = wall_ms
        self._known: dict[tuple[str, str], Credential] = {}

    def find(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """The credential of a valid token, or None."""
        token = find_token(self._image(), token_id) if self._key else None
        if token is None or not self._key or token.is_expired(self._wall_ms()):
            return None
        credential = self._known.get((mechanism, token_id))
        if credential is None:
            if len(self._known) >= CACHE_MAX:
                self._known.clear()
            credential = token_credential(self._key, token_id, mechanism)
            self._known[mechanism, token_id] = credential
        return TokenCredential(credential, token.owner.name, token.expires_ms)
