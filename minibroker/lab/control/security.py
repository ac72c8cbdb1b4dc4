"""Certificates and tokens in the control API: a token issuer, and wrong ones on request.

Owns their records and operations, and what the token endpoint issues. It must never validate a
token, nor know a connection: processes read renewed files by themselves. Invariant: when a change
is answered, every new connection sees the new certificate and open ones go on. The issuer is an
OAuth 2.0 server with the grant ``client_credentials`` (RFC 6749). Kafka has no equivalent.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.image import BROKER
from minibroker.broker.settings import (
    CONTROL_SECURITY_DIR,
    NODE_ID,
    SASL_OAUTHBEARER_EXPECTED_ISSUER,
    SSL_CLIENT_AUTH,
    SSL_KEYSTORE_LOCATION,
)
from minibroker.broker.settings.listeners import has_tls
from minibroker.lab.control.operation import UNAVAILABLE, Answer, Operations
from minibroker.lab.errors import ApiError, Conflict
from minibroker.lab.schema import Doc, Range
from minibroker.secured import (
    OAUTH,
    CertificateKind,
    ClientCertificateKind,
    InvalidSecurity,
    Secured,
    certificate_kind,
    issue_certificate,
    issue_client_certificate,
    read_files,
)
from minibroker.token_issuer import (
    LIFETIME_S,
    Algorithm,
    IssuedKind,
    NoTokenLibrary,
    TokenIssuer,
    TokenKind,
    TokenWishes,
)

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker

LIFETIME_S_MAX: Final = 10 * 365 * 86_400
SECURITY_ERRORS: Final = {409: "The broker was not started with `--tls` or `--sasl oauth`."}


class CertificateChange(NamedTuple):
    """The certificate that new connections are shown from now on."""

    kind: Annotated[
        CertificateKind,
        Doc("`valid` issues a new certificate of the same authority, as a renewal does."),
    ] = "valid"


class CertificateView(NamedTuple):
    """The certificate that new connections are shown."""

    kind: CertificateKind
    listeners: Annotated[tuple[str, ...], Doc("The listeners that use it.")]


class ClientCertificateCreation(NamedTuple):
    """A certificate for a client to create, of which `kind` makes one thing wrong."""

    kind: ClientCertificateKind = "valid"
    user: Annotated[
        str | None, Doc("Its common name. By default the user of the broker's clients.")
    ] = None


class CreatedClientCertificate(NamedTuple):
    """A certificate for a client."""

    pem: Annotated[str, Doc("The key, and the certificates.")]
    file: Annotated[str, Doc("The same in a file on the broker's machine.")]


class TokenCreation(NamedTuple):
    """A token to create, of which `kind` makes one thing wrong."""

    kind: TokenKind = "valid"
    subject: Annotated[str | None, Doc("By default the user of the broker's clients.")] = None
    lifetime_s: Annotated[int, Range(1, LIFETIME_S_MAX)] = LIFETIME_S
    scope: str | None = None
    claims: Annotated[Mapping[str, object], Doc("Further claims, which override the others.")] = {}


class CreatedToken(NamedTuple):
    """A token for clients."""

    access_token: str


class IssuerChange(NamedTuple):
    """What the token endpoint answers from now on."""

    kind: Annotated[
        IssuedKind,
        Doc("`denied` answers invalid_client with 401, `unavailable` temporarily_unavailable 503."),
    ] = "valid"
    lifetime_s: Annotated[int, Range(1, LIFETIME_S_MAX)] = LIFETIME_S


class IssuerView(NamedTuple):
    """The token issuer of the broker."""

    issuer: Annotated[str, Doc("Its URL, which is also the claim `iss`.")]
    token_endpoint: str
    kind: IssuedKind
    lifetime_s: int
    issued: Annotated[int, Doc("Number of tokens that the endpoint has issued.")]
    keys: Annotated[tuple[str, ...], Doc("Ids of the public keys; the first one signs.")]


class KeyRotation(NamedTuple):
    """A new key that signs tokens from now on."""

    keep_old: Annotated[bool, Doc("Whether tokens that older keys signed remain valid.")] = True
    algorithm: Algorithm = "ES256"


class TokenRequest(NamedTuple):
    """A form of OAuth 2.0; the client's id and secret may be in HTTP's Basic scheme instead."""

    grant_type: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""


class TokenResponse(NamedTuple):
    """The response of a token endpoint."""

    access_token: str
    token_type: str
    expires_in: int
    scope: str = ""


class _Issuer:
    """What the token endpoint answers."""

    def __init__(self, _: ControlledBroker) -> None:
        self.change = IssuerChange()
        self.issued = 0


SECURITY_OPERATIONS: Final = Operations()


def _secured(broker: ControlledBroker) -> Secured:
    """What the broker was secured with. Raises ``Conflict``."""
    folder = broker.env.settings[CONTROL_SECURITY_DIR]
    try:
        if folder is not None:
            return read_files(Path(folder))
        reason = "the broker was not started with tls or sasl"
    except InvalidSecurity as error:
        reason = str(error)
    hint = "Start it with MiniBroker(tls=True), or `minibroker start --tls`."
    raise Conflict("NOT_SECURED", reason, hint)


# Certificates -------------------------------------------------------------------------------------


@SECURITY_OPERATIONS.add("GET", "/v1/certificate", errors=SECURITY_ERRORS)
async def get_certificate(broker: ControlledBroker) -> CertificateView:
    """Return which certificate new connections are shown."""
    _with_tls(broker)
    listeners = _listeners(broker)
    # The config survives a restart of this process, and a snapshot has it.
    config = broker.image.configs.get((BROKER, str(broker.env.settings[NODE_ID])), {})
    location = config.get(_keystore(listeners[0]), "")
    return CertificateView(certificate_kind(location), listeners)


@SECURITY_OPERATIONS.add(
    "POST",
    "/v1/certificate",
    errors={**SECURITY_ERRORS, **UNAVAILABLE},
    example={"kind": "expired"},
)
async def present_certificate(
    broker: ControlledBroker, change: CertificateChange
) -> CertificateView:
    """Show new connections another certificate; open connections go on."""
    made = _with_tls(broker)
    try:
        path = issue_certificate(made, change.kind)
    except (InvalidSecurity, OSError) as error:
        raise Conflict("NO_CERTIFICATE", str(error)) from None
    listeners = _listeners(broker)
    steps = tuple(ConfigOperation(_keystore(name), Op.SET, str(path)) for name in listeners)
    node = str(broker.env.settings[NODE_ID])
    outcome = await broker.scope.cluster.alter_configs([Alteration(BROKER, node, steps)])
    await broker.scope.publish(outcome.updates)
    for rejection in outcome.rejections:
        if rejection is not None:
            raise ApiError(rejection.code.name, rejection.text)
    return CertificateView(change.kind, listeners)


@SECURITY_OPERATIONS.add(
    "POST",
    "/v1/certificate/clients",
    errors={409: "The broker was not started with `--mutual-tls`."},
    example={"kind": "expired"},
)
async def create_client_certificate(
    broker: ControlledBroker, new: ClientCertificateCreation
) -> CreatedClientCertificate:
    """Create a key and a certificate for a client."""
    made = _with_tls(broker)
    settings = broker.env.settings
    if all(settings.at_listener(name, SSL_CLIENT_AUTH) == "none" for name in _listeners(broker)):
        hint = 'Start it with MiniBroker(tls="mutual"), or `minibroker start --mutual-tls`.'
        raise Conflict("NO_CLIENT_AUTH", "no listener asks clients for a certificate", hint)
    try:
        file = issue_client_certificate(made, new.kind, new.user)
        return CreatedClientCertificate(file.read_text(), str(file))
    except (InvalidSecurity, OSError) as error:
        raise Conflict("NO_CERTIFICATE", str(error)) from None


def _keystore(listener: str) -> str:
    return f"listener.name.{listener.lower()}.{SSL_KEYSTORE_LOCATION.name}"


def _with_tls(broker: ControlledBroker) -> Secured:
    made = _secured(broker)
    if made.tls == "none" or not _listeners(broker):
        raise Conflict("NO_TLS", "the broker was not started with tls, or no listener uses it")
    return made


def _listeners(broker: ControlledBroker) -> tuple[str, ...]:
    settings = broker.env.settings
    return tuple(
        listener.name
        for listener in settings.client_listeners
        if has_tls(settings.security_protocol(listener.name))
    )


# Tokens -------------------------------------------------------------------------------------------


@SECURITY_OPERATIONS.add("GET", "/v1/oauth", errors=SECURITY_ERRORS)
async def get_token_issuer(broker: ControlledBroker) -> IssuerView:
    """Return the token issuer, and what its endpoint answers."""
    made = _with_tokens(broker)
    issuer, state = _issuer(broker), broker.state(_Issuer)
    keys = tuple(str(key["kid"]) for key in TokenIssuer(made.folder).jwks()["keys"])
    return IssuerView(issuer, f"{issuer}/token", *state.change, state.issued, keys)


@SECURITY_OPERATIONS.add("POST", "/v1/oauth", errors=SECURITY_ERRORS, example={"kind": "expired"})
async def change_token_issuer(broker: ControlledBroker, change: IssuerChange) -> IssuerView:
    """Change what the token endpoint answers."""
    _with_tokens(broker)
    broker.state(_Issuer).change = change
    return await get_token_issuer(broker)


@SECURITY_OPERATIONS.add(
    "POST", "/v1/oauth/tokens", errors=SECURITY_ERRORS, example={"kind": "wrong_audience"}
)
async def create_token(broker: ControlledBroker, new: TokenCreation) -> CreatedToken:
    """Create a token, whatever the token endpoint answers."""
    made = _with_tokens(broker)
    wishes = TokenWishes(new.subject or made.user, new.kind, new.lifetime_s, new.scope, new.claims)
    return CreatedToken(_signed(broker, made, wishes))


@SECURITY_OPERATIONS.add(
    "POST", "/v1/oauth/rotate", errors=SECURITY_ERRORS, example={"keep_old": False}
)
async def rotate_token_keys(broker: ControlledBroker, rotation: KeyRotation) -> IssuerView:
    """Sign with a new key; new connections are authenticated by the new keys, open ones go on."""
    made = _with_tokens(broker)
    TokenIssuer(made.folder).rotate(keep_old=rotation.keep_old, algorithm=rotation.algorithm)
    return await get_token_issuer(broker)


@SECURITY_OPERATIONS.add(
    "POST",
    "/v1/oauth/token",
    form=True,
    public=True,
    errors={401: "The client's id or secret is wrong.", **SECURITY_ERRORS, **UNAVAILABLE},
    example={"grant_type": "client_credentials", "client_id": "test", "client_secret": "secret"},
)
async def issue_token(broker: ControlledBroker, asked: TokenRequest) -> TokenResponse | Answer:
    """Issue a token to a client with an id and secret, as OAuth 2.0 says."""
    made, state = _with_tokens(broker), broker.state(_Issuer)
    kind, lifetime_s = state.change
    if asked.grant_type != "client_credentials":
        return Answer({"error": "unsupported_grant_type"}, 400)
    if kind == "unavailable":
        return Answer({"error": "temporarily_unavailable"}, 503)
    given = f"{asked.client_id}:{asked.client_secret}"
    is_known = hmac.compare_digest(given.encode(), f"{made.user}:{made.password}".encode())
    if kind == "denied" or not is_known:
        return Answer({"error": "invalid_client"}, 401)
    token = _signed(broker, made, TokenWishes(made.user, kind, lifetime_s, asked.scope))
    state.issued += 1
    return TokenResponse(token, "Bearer", lifetime_s, asked.scope)


@SECURITY_OPERATIONS.add(
    "GET", "/v1/oauth/keys", media_type="application/json", public=True, errors=SECURITY_ERRORS
)
async def get_token_keys(broker: ControlledBroker) -> Answer:
    """Return the public keys of tokens as a JWKS (RFC 7517)."""
    return Answer(TokenIssuer(_with_tokens(broker).folder).jwks(), 200)


@SECURITY_OPERATIONS.add(
    "GET",
    "/v1/oauth/.well-known/openid-configuration",
    media_type="application/json",
    public=True,
    errors=SECURITY_ERRORS,
)
async def get_openid_configuration(broker: ControlledBroker) -> Answer:
    """Return the metadata of the issuer, as OpenID Connect Discovery says."""
    made = _with_tokens(broker)
    return Answer(TokenIssuer(made.folder).discovery(_issuer(broker)), 200)


def _with_tokens(broker: ControlledBroker) -> Secured:
    made = _secured(broker)
    if made.mechanism != OAUTH:
        raise Conflict("NO_OAUTH", "the broker was not started with sasl=oauth")
    return made


def _issuer(broker: ControlledBroker) -> str:
    return broker.env.settings[SASL_OAUTHBEARER_EXPECTED_ISSUER] or ""


def _signed(broker: ControlledBroker, made: Secured, wishes: TokenWishes) -> str:
    now_s = broker.env.clock.wall_ms() // 1000
    try:
        return TokenIssuer(made.folder).token(wishes, _issuer(broker), now_s)
    except NoTokenLibrary as error:
        raise Conflict("NO_TOKENS", str(error)) from None
