"""Consistency checks of the TLS and SASL settings of each listener.

Owns the error texts for missing and conflicting settings; it must never read a file.  The
invariant: a listener that passes has all required settings, although a file may still be invalid.
Echoes Kafka's ``DefaultSslEngineFactory``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from minibroker.broker.settings import sasl_definitions as a
from minibroker.broker.settings import security_definitions as s
from minibroker.broker.settings.jaas import EXAMPLE as JAAS_EXAMPLE
from minibroker.broker.settings.listeners import Listener, has_sasl, has_tls
from minibroker.broker.settings.setting import MECHANISMS, Setting, listener_name

T = TypeVar("T")


class ListenerSettings(Protocol):
    """The part of ``Settings`` that the checks use."""

    @property
    def client_listeners(self) -> tuple[Listener, ...]: ...

    @property
    def given(self) -> tuple[str, ...]: ...

    def security_protocol(self, listener: str) -> str: ...

    def at_listener(self, listener: str, key: Setting[T], mechanism: str = ...) -> T: ...


def problems(settings: ListenerSettings) -> Iterator[tuple[str, str]]:
    """Check the settings of each listener: (setting name, problem) pairs."""
    for listener in settings.client_listeners:
        if has_tls(settings.security_protocol(listener.name)):
            yield from _tls_problems(settings, listener.name)
        if has_sasl(settings.security_protocol(listener.name)):
            yield from _sasl_problems(settings, listener.name)


def _tls_problems(settings: ListenerSettings, listener: str) -> Iterator[tuple[str, str]]:
    file = settings.at_listener(listener, s.SSL_KEYSTORE_LOCATION)
    chain = settings.at_listener(listener, s.SSL_KEYSTORE_CERTIFICATE_CHAIN)
    key = settings.at_listener(listener, s.SSL_KEYSTORE_KEY)
    if file is None and not (chain and key):
        text = f"has {listener}, which uses TLS but has no certificate; set "
        text += f"{s.SSL_KEYSTORE_LOCATION.name} to a PEM file with key and certificate chain, or "
        text += "set both as texts in "
        text += f"{s.SSL_KEYSTORE_KEY.name} and {s.SSL_KEYSTORE_CERTIFICATE_CHAIN.name}"
        yield "listeners", text
    if file is not None and (chain or key):
        other = s.SSL_KEYSTORE_CERTIFICATE_CHAIN if chain else s.SSL_KEYSTORE_KEY
        yield _given_name(settings, listener, s.SSL_KEYSTORE_LOCATION), _conflict(other)
    trusted = settings.at_listener(listener, s.SSL_TRUSTSTORE_LOCATION)
    inline = settings.at_listener(listener, s.SSL_TRUSTSTORE_CERTIFICATES)
    if trusted is not None and inline:
        name = _given_name(settings, listener, s.SSL_TRUSTSTORE_LOCATION)
        yield name, _conflict(s.SSL_TRUSTSTORE_CERTIFICATES)
    wanted = settings.at_listener(listener, s.SSL_CLIENT_AUTH)
    if wanted != "none" and trusted is None and not inline:
        text = "needs certificate authorities for client certificates: set "
        text += f"{s.SSL_TRUSTSTORE_LOCATION.name} to a PEM file"
        yield _given_name(settings, listener, s.SSL_CLIENT_AUTH), text


def _sasl_problems(settings: ListenerSettings, listener: str) -> Iterator[tuple[str, str]]:
    mechanisms = settings.at_listener(listener, a.SASL_ENABLED_MECHANISMS)
    name = _given_name(settings, listener, a.SASL_ENABLED_MECHANISMS)
    if not mechanisms:
        text = f"must name mechanisms for the listener {listener}: {', '.join(MECHANISMS)}"
        yield name, text
    entry = settings.at_listener(listener, a.SASL_JAAS_CONFIG, "PLAIN")
    if "PLAIN" in mechanisms and (entry is None or not entry.users):
        own = listener_name(listener, f"plain.{a.SASL_JAAS_CONFIG.name}")
        yield name, f"has PLAIN, but {listener} has no users; set {own} to {JAAS_EXAMPLE}"


def _conflict(other: Setting[Any]) -> str:
    return f"conflicts with {other.name}; set only one of them"


def _given_name(settings: ListenerSettings, listener: str, key: Setting[Any]) -> str:
    """Return the name under which the value for a listener was set."""
    own = listener_name(listener, key.name)
    return own if own in settings.given else key.name
