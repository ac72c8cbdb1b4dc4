"""TLS on a client connection: a byte stream over another one, and a listener's context.

Owns the handshake, the encryption and the messages of their failures. It must never know what the
bytes mean, or what the owner of a certificate may do. ``ssl`` is loaded with this module, so
brokers without such listeners never import it. Invariant: each buffer holds at most
``CIPHER_BYTES_MAX`` bytes that were not passed on. Kafka's ``SslTransportLayer`` and
``DefaultSslEngineFactory``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from minibroker.broker.metrics.log import EventLog
from minibroker.broker.security.certificates import (
    BadCertificate,
    Identity,
    distinguished_name,
    identity,
)
from minibroker.broker.settings import (
    NODE_ID,
    SSL_ALLOW_DN_CHANGES,
    SSL_ALLOW_SAN_CHANGES,
    SSL_CLIENT_AUTH,
    SSL_ENABLED_PROTOCOLS,
    SSL_KEY_PASSWORD,
    SSL_KEYSTORE_CERTIFICATE_CHAIN,
    SSL_KEYSTORE_KEY,
    SSL_KEYSTORE_LOCATION,
    SSL_RENEWED,
    SSL_TRUSTSTORE_CERTIFICATES,
    SSL_TRUSTSTORE_LOCATION,
    ConfigError,
    Setting,
    Settings,
)
from minibroker.broker.settings.dynamic import BROKERS, Configs, effective
from minibroker.broker.settings.listeners import has_tls
from minibroker.runtime.stream import ByteStream, StreamClosed
from minibroker.runtime.system import secret_path

if TYPE_CHECKING:
    from ssl import SSLContext


CIPHER_BYTES_MAX: Final = 64 * 1024
"""Bytes encrypted at once, or read at once to be decrypted."""

_JAVA_STORE: Final = b"\xfe\xed\xfe\xed"
_DER: Final = b"\x30"

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_scratch = memoryview(bytearray(CIPHER_BYTES_MAX))
"""Received bytes, shared by all streams: copied before any other task runs."""


Subject = tuple[tuple[tuple[str, str], ...], ...]
"""Subject of a certificate: parts of one or more (kind, value) pairs."""


class TlsHandshakeFailed(Exception):
    """The TLS handshake failed; the text is logged.

    ``failure`` is what OpenSSL reported; ``__cause__`` is not set if this module is compiled.
    """

    def __init__(self, text: str, failure: ssl.SSLError) -> None:
        super().__init__(text)
        self.failure = failure


class TlsContext(NamedTuple):
    """TLS context of a listener and the subject of its certificate."""

    context: ssl.SSLContext
    identity: Identity


def tls_context(settings: Settings, listener: str) -> TlsContext:
    """Return the context that settings describe; each file is read once. Raises ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[name] for name in settings.at_listener(listener, SSL_ENABLED_PROTOCOLS)]
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)
    # Sessions are not resumed: a ticket would be valid longer than its certificate.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    key_identity = _load_key(context, settings, listener)
    _load_trusted(context, settings, listener)
    context.verify_mode = _VERIFY[settings.at_listener(listener, SSL_CLIENT_AUTH)]
    return TlsContext(context, key_identity)


def _load_key(context: ssl.SSLContext, settings: Settings, listener: str) -> Identity:
    location = settings.at_listener(listener, SSL_KEYSTORE_LOCATION)
    password = settings.at_listener(listener, SSL_KEY_PASSWORD) or ""
    if location is not None:
        key, chain = "", _read(SSL_KEYSTORE_LOCATION.name, location)
        where = f"{SSL_KEYSTORE_LOCATION.name}={location}"
    else:
        key = settings.at_listener(listener, SSL_KEYSTORE_KEY) or ""
        chain = settings.at_listener(listener, SSL_KEYSTORE_CERTIFICATE_CHAIN) or ""
        where = f"{SSL_KEYSTORE_KEY.name}, {SSL_KEYSTORE_CERTIFICATE_CHAIN.name}"
    try:
        with secret_path(f"{key}\n{chain}\n".encode()) as path:
            # A password is always passed, or OpenSSL would ask for it at the terminal.
            context.load_cert_chain(path, password=lambda: password)
        return identity(chain)
    except BadCertificate as error:
        reason = f"it {error}"
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "they are not PEM"
    text = f"{where} ({listener}): key and certificate can't be used ({reason})"
    text += "; give a PEM private key, its certificate, then the signers' certificates"
    raise ConfigError([text])


def _load_trusted(context: ssl.SSLContext, settings: Settings, listener: str) -> None:
    location = settings.at_listener(listener, SSL_TRUSTSTORE_LOCATION)
    trusted = settings.at_listener(listener, SSL_TRUSTSTORE_CERTIFICATES)
    where = SSL_TRUSTSTORE_CERTIFICATES.name
    if location is not None:
        trusted = _read(SSL_TRUSTSTORE_LOCATION.name, location)
        where = f"{SSL_TRUSTSTORE_LOCATION.name}={location}"
    if trusted is None:
        return
    try:
        context.load_verify_locations(cadata=trusted)
    except (ssl.SSLError, ValueError):
        text = f"{where} ({listener}): has no certificates; give those of signers, in PEM"
        raise ConfigError([text]) from None


def _read(name: str, location: str) -> str:
    try:
        data = Path(location).read_bytes()
    except OSError as error:
        raise ConfigError([f"{name}={location}: can't be read: {error.strerror}"]) from None
    if data.startswith((_JAVA_STORE, _DER)):
        text = f"{name}={location}: is a Java key store, but PEM is required; convert it: keytool "
        text += f"-importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype "
        text += "PKCS12, then openssl pkcs12 -in store.p12 -out store.pem -nodes"
        raise ConfigError([text])
    return data.decode("ascii", "replace")


class TlsStream(ByteStream):
    """TLS over a stream, for a server or a client; call ``handshake`` first."""

    def __init__(
        self,
        inner: ByteStream,
        context: ssl.SSLContext,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        """``server_hostname`` is for a client: the host that the certificate is checked for."""
        self._inner = inner
        self._received = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._received,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        # With a buffer the count is returned, despite the type hints.
        self._read_into = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._closed = False
        self._is_handshake_done = False
        self._received_bytes = 0
        """Encrypted bytes received so far."""
        self._received_before = 0
        self.waits = inner.waits
        self.peer = inner.peer
        self.local = inner.local

    @property
    def before_waiting(self) -> Callable[[], object]:
        """Callback of the stream that is waited for."""
        return self._inner.before_waiting

    @before_waiting.setter
    def before_waiting(self, callback: Callable[[], object]) -> None:
        self._inner.before_waiting = callback

    async def handshake(self) -> None:
        """Perform the handshake. Raises ``StreamClosed`` and ``TlsHandshakeFailed``."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._receive():
                    raise StreamClosed("the peer disconnected during the TLS handshake") from None
            except ssl.SSLError as error:
                with suppress(StreamClosed):
                    await self._flush()  # Sends the TLS alert.
                raise TlsHandshakeFailed(_describe(error), error) from error
            else:
                await self._flush()
                self._is_handshake_done = True
                return

    def subject(self) -> Subject | None:
        """Return the subject of the client's certificate, or None without one."""
        certificate = self._tls.getpeercert()
        return cast("Subject", certificate["subject"]) if certificate else None

    async def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                return self._read_into(len(view), view)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._receive():
                    return 0  # Many clients close without TLS's close_notify.
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            except ssl.SSLError as error:
                raise StreamClosed(_describe(error)) from None

    async def receive_exactly(self, view: memoryview) -> int:
        self._received_before = self._received_bytes - self._received.pending
        return await super().receive_exactly(view)

    def arrived(self) -> int:
        # Encrypted bytes are counted, because a record can be read only when it is complete.
        return self._received_bytes - self._received_before + self._inner.unread()

    def unread(self) -> int:
        return self._received.pending + self._inner.unread()

    async def send_all(self, data: bytes | memoryview, *, more: bool = False) -> None:
        rest = memoryview(data)
        while rest:
            try:
                self._tls.write(rest[:CIPHER_BYTES_MAX])
            except ssl.SSLError as error:
                raise StreamClosed(_describe(error)) from None
            rest = rest[CIPHER_BYTES_MAX:]
            await self._flush(more=more or bool(rest))

    def send_now(self, data: bytes) -> int:  # noqa: ARG002 - the stream's shape
        return 0  # Encrypted bytes that do not fit could not be sent later as plain ones.

    async def send_file(self, descriptor: int, position: int, length: int) -> None:
        # The kernel cannot send data that must be encrypted first.
        end = position + length
        while position < end:
            data = os.pread(descriptor, min(CIPHER_BYTES_MAX, end - position), position)
            if not data:
                raise EOFError(f"the file ends {end - position} bytes too early")
            await self.send_all(data)
            position += len(data)

    def reset_on_close(self) -> None:
        self._inner.reset_on_close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._is_handshake_done:
                # Sends close_notify, without waiting for the client's.
                with suppress(ssl.SSLError):
                    self._tls.unwrap()
                with suppress(StreamClosed):
                    self._inner.send_now(self._outgoing.read())
            self._inner.close()

    async def _receive(self) -> bool:
        """Receive bytes; return False at the end of the stream."""
        count = await self._inner.receive_into(_scratch)
        self.waits = self._inner.waits
        if count == 0:
            self._received.write_eof()
            return False
        self._received.write(_scratch[:count])
        self._received_bytes += count
        return True

    async def _flush(self, *, more: bool = False) -> None:
        if self._outgoing.pending:
            await self._inner.send_all(self._outgoing.read(), more=more)
            self.waits = self._inner.waits


def _describe(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: the client's certificate is rejected: {error.verify_message}"
    reason = (error.reason or "unknown").lower().replace("_", " ")
    if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE"):
        return f"TLS failed ({reason}): the client does not use TLS, which this listener requires"
    return f"TLS failed: {reason}"


# --------------------- TLS contexts of listeners, and their renewal while the broker runs (KIP-226)
# Owns the key and certificates in force of each listener, and whether others may replace them. It
# must never know a connection, which keeps what it started with. Invariant: keys that cannot be
# used, or that name another subject, change nothing; an unchanged file is not read again. Kafka's
# ``SslFactory`` and ``DynamicBrokerConfig.reloadUpdatedFilesWithoutConfigChange``.


_FILES: Final = (SSL_KEYSTORE_LOCATION, SSL_TRUSTSTORE_LOCATION)

_NO_CONFIG: Final[Mapping[str, str]] = {}


class _ListenerContext(NamedTuple):
    """TLS context of a listener, the settings it was made from, and the files' state when read."""

    tls_context: TlsContext
    settings_used: tuple[Any, ...]
    files: Mapping[str, tuple[int, ...]]
    trusts: bool


class SslContexts:
    """TLS contexts of one process; ``settings`` are those of the broker's start."""

    def __init__(self, settings: Settings) -> None:
        """Read the keys of all listeners. Raises ``ConfigError`` for unusable keys."""
        self._settings = settings
        self._config_key = (BROKERS, str(settings[NODE_ID]))
        self._log = EventLog("network")
        self._config: Mapping[str, str] | None = None
        """Configs of this broker when the files were last checked."""
        self._contexts = {
            listener.name: _listener_context(settings, listener.name)
            for listener in settings.client_listeners
            if has_tls(settings.security_protocol(listener.name))
        }

    def context(self, listener: str) -> SSLContext | None:
        """Return the context for new connections of a listener; None if it does not use TLS."""
        current = self._contexts.get(listener)
        return None if current is None else current.tls_context.context

    def problems(self, configs: Configs) -> list[str]:
        """Return why listeners cannot use these configs, one sentence each. Changes nothing."""
        settings = effective(self._settings, configs)
        found: list[str] = []
        for listener in self._contexts:
            try:
                self._renewed(settings, listener)
            except ConfigError as error:
                found += error.problems
        return found

    def follow(self, configs: Configs) -> None:
        """Apply renewed keys; keys that cannot be used are logged and ignored.

        Files are checked whenever configs of this broker are set, even to the same values.
        """
        config = configs.get(self._config_key, _NO_CONFIG)
        is_first, before = self._config is None, self._config
        if config is before:
            return
        self._config = config
        settings = effective(self._settings, configs)
        for listener in self._contexts:
            try:
                renewed = self._renewed(settings, listener, compare=not is_first)
            except ConfigError as error:
                text = "a listener's key or certificates can't be renewed; the old ones stay in use"
                self._log.warning(text, listener=listener, reason="; ".join(error.problems))
                continue
            if renewed is not None:
                self._contexts[listener] = renewed
                name = distinguished_name(renewed.tls_context.identity.subject)
                self._log.info(
                    "a listener's key or certificates are renewed",
                    listener=listener,
                    certificate=name,
                )

    def _renewed(
        self, settings: Settings, listener: str, *, compare: bool = True
    ) -> _ListenerContext | None:
        """Return the new context of a listener, or None if it is unchanged.

        Raises ``ConfigError``.
        """
        current = self._contexts[listener]
        if _settings_used(settings, listener) == current.settings_used and not _have_changed(
            current.files
        ):
            return None
        renewed = _listener_context(settings, listener)
        # Keys found in the store at start were compared when they were set.
        if compare and (problems := list(_differences(settings, listener, current, renewed))):
            raise ConfigError(problems)
        return renewed


def _listener_context(settings: Settings, listener: str) -> _ListenerContext:
    # Checked before they are read, so that a change in between is detected next time.
    locations = (settings.at_listener(listener, key) for key in _FILES)
    files = {location: _state(location) for location in locations if location is not None}
    trusted = settings.at_listener(listener, SSL_TRUSTSTORE_LOCATION)
    inline = settings.at_listener(listener, SSL_TRUSTSTORE_CERTIFICATES)
    trusts = trusted is not None or bool(inline)
    return _ListenerContext(
        tls_context(settings, listener), _settings_used(settings, listener), files, trusts
    )


def _settings_used(settings: Settings, listener: str) -> tuple[Any, ...]:
    return tuple(settings.at_listener(listener, key) for key in SSL_RENEWED)


def _state(location: str) -> tuple[int, ...]:
    """Return what changes when a file is written or replaced; empty if it does not exist."""
    try:
        status = os.stat(location)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _have_changed(files: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether files have changed. A missing file is ignored: its old content stays in use."""
    now = {location: _state(location) for location in files}
    return any(state and state != files[location] for location, state in now.items())


def _differences(
    settings: Settings, listener: str, current: _ListenerContext, renewed: _ListenerContext
) -> Iterator[str]:
    """Yield the reasons why one context may not replace the other."""
    old, new = current.tls_context.identity, renewed.tls_context.identity
    if not settings.at_listener(listener, SSL_ALLOW_DN_CHANGES) and _name(old) != _name(new):
        text = "Keystore DistinguishedName does not match: existing="
        text += f"{distinguished_name(old.subject)}, new={distinguished_name(new.subject)}"
        yield _rejection(listener, text, "the same subject", SSL_ALLOW_DN_CHANGES)
    missing = old.names - new.names
    if not settings.at_listener(listener, SSL_ALLOW_SAN_CHANGES) and missing:
        text = f"Keystore SubjectAltNames do not match: existing={_listed(old)}, new={_listed(new)}"
        yield _rejection(listener, text, ", ".join(sorted(missing)), SSL_ALLOW_SAN_CHANGES)
    if renewed.trusts and not current.trusts:
        text = f"{listener}: Cannot add SSL truststore to an existing listener for which no "
        yield text + "truststore was configured; give it when the broker is started"


def _rejection(listener: str, text: str, needed: str, allowing: Setting[bool]) -> str:
    return (
        f"{listener}: {text}; renew it with a certificate for {needed}, or start the broker with "
        f"{allowing.name}=true"
    )


def _name(identity: Identity) -> str:
    """Return a subject in comparable form: case and blanks do not matter."""
    parts = (
        tuple((kind, " ".join(value.split())) for kind, value in part) for part in identity.subject
    )
    return distinguished_name(tuple(parts)).casefold()


def _listed(identity: Identity) -> str:
    return ", ".join(sorted(identity.names)) or "none"
