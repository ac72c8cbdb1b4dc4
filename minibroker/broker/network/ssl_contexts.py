"""TLS contexts of listeners, and their renewal while the broker runs (KIP-226).

Owns the key and certificates in force of each listener, and whether others may replace them. It
must never know a connection, which keeps what it started with. Invariant: keys that cannot be used,
or that name another subject, change nothing; an unchanged file is not read again. Kafka's
``SslFactory`` and ``DynamicBrokerConfig.reloadUpdatedFilesWithoutConfigChange``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.broker.metrics.log import EventLog
from minibroker.broker.network.tls import TlsContext, tls_context
from minibroker.broker.security.certificates import distinguished_name
from minibroker.broker.settings import (
    NODE_ID,
    SSL_ALLOW_DN_CHANGES,
    SSL_ALLOW_SAN_CHANGES,
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

if TYPE_CHECKING:
    from ssl import SSLContext

    from minibroker.broker.security.certificates import Identity

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
            listener.name: _read(settings, listener.name)
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
        renewed = _read(settings, listener)
        # Keys found in the store at start were compared when they were set.
        if compare and (problems := list(_differences(settings, listener, current, renewed))):
            raise ConfigError(problems)
        return renewed


def _read(settings: Settings, listener: str) -> _ListenerContext:
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
