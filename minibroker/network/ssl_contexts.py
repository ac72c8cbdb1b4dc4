"""What listeners with TLS show, and how it is renewed while the broker runs (KIP-226).

Owns the key and the certificates in force of each listener, and whether others may take their
place; it must never know a connection, which keeps what it began with.  The invariant: what can't
be used, or names somebody else, changes nothing, and a file that is as it was is not read again.
Echoes Kafka's ``SslFactory`` and ``DynamicBrokerConfig.reloadUpdatedFilesWithoutConfigChange``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.config import (
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
from minibroker.config.dynamic import BROKERS, Configs, effective
from minibroker.config.listeners import has_tls
from minibroker.network.tls import TlsContext, tls_context
from minibroker.observability.log import Log
from minibroker.security.certificates import distinguished_name

if TYPE_CHECKING:
    from ssl import SSLContext

    from minibroker.security.x509 import Identity

_FILES: Final = (SSL_KEYSTORE_LOCATION, SSL_TRUSTSTORE_LOCATION)

_NOTHING: Final[Mapping[str, str]] = {}


class _Held(NamedTuple):
    """What a listener shows, what was given for it, and how the files were when they were read."""

    tls_context: TlsContext
    given: tuple[Any, ...]
    files: Mapping[str, tuple[int, ...]]
    trusts: bool


class SslContexts:
    """The listeners of one process; ``settings`` are those that the broker was started with."""

    def __init__(self, settings: Settings) -> None:
        """Raises ``ConfigError`` for keys that can't be used."""
        self._settings = settings
        self._own = (BROKERS, str(settings[NODE_ID]))
        self._log = Log("network")
        self._config: Mapping[str, str] | None = None
        """What was set for this broker when the files were last looked at."""
        self._held = {
            listener.name: _read(settings, listener.name)
            for listener in settings.client_listeners
            if has_tls(settings.security_protocol(listener.name))
        }

    def context(self, listener: str) -> SSLContext | None:
        """What the next connection of a listener is shown; None if it speaks no TLS."""
        held = self._held.get(listener)
        return None if held is None else held.tls_context.context

    def problems(self, configs: Configs) -> list[str]:
        """Why listeners can't show what these configs want, a sentence each. Changes nothing."""
        settings = effective(self._settings, configs)
        found: list[str] = []
        for listener in self._held:
            try:
                self._renewed(settings, listener)
            except ConfigError as error:
                found += error.problems
        return found

    def follow(self, configs: Configs) -> None:
        """Takes over what was renewed; what can't be used is told to the log and passed over.

        Files are looked at when anything was set for this broker, be it what was there before.
        """
        config = configs.get(self._own, _NOTHING)
        is_first, before = self._config is None, self._config
        if config is before:
            return
        self._config = config
        settings = effective(self._settings, configs)
        for listener in self._held:
            try:
                renewed = self._renewed(settings, listener, compare=not is_first)
            except ConfigError as error:
                text = "a listener's key or certificates can't be renewed; what it had stays"
                self._log.warning(text, listener=listener, why="; ".join(error.problems))
                continue
            if renewed is not None:
                self._held[listener] = renewed
                name = distinguished_name(renewed.tls_context.identity.subject)
                self._log.info(
                    "a listener's key or certificates are renewed",
                    listener=listener,
                    certificate=name,
                )

    def _renewed(self, settings: Settings, listener: str, *, compare: bool = True) -> _Held | None:
        """What a listener shows from now on, None if that stays. Raises ``ConfigError``."""
        held = self._held[listener]
        if _given(settings, listener) == held.given and not _are_changed(held.files):
            return None
        renewed = _read(settings, listener)
        # What a start finds in the store was compared when it was set.
        if compare and (problems := list(_differences(settings, listener, held, renewed))):
            raise ConfigError(problems)
        return renewed


def _read(settings: Settings, listener: str) -> _Held:
    # Looked at before they are read, so that a change in between is seen the next time.
    locations = (settings.at_listener(listener, key) for key in _FILES)
    files = {location: _state(location) for location in locations if location is not None}
    trusted = settings.at_listener(listener, SSL_TRUSTSTORE_LOCATION)
    inline = settings.at_listener(listener, SSL_TRUSTSTORE_CERTIFICATES)
    trusts = trusted is not None or bool(inline)
    return _Held(tls_context(settings, listener), _given(settings, listener), files, trusts)


def _given(settings: Settings, listener: str) -> tuple[Any, ...]:
    return tuple(settings.at_listener(listener, key) for key in SSL_RENEWED)


def _state(location: str) -> tuple[int, ...]:
    """What differs once a file was written or replaced; nothing if there is none."""
    try:
        status = os.stat(location)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _are_changed(files: Mapping[str, tuple[int, ...]]) -> bool:
    """A file that is gone stops nobody, as what it had is in force."""
    now = {location: _state(location) for location in files}
    return any(state and state != files[location] for location, state in now.items())


def _differences(settings: Settings, listener: str, held: _Held, renewed: _Held) -> Iterator[str]:
    """Why one may not take the place of the other."""
    old, new = held.tls_context.identity, renewed.tls_context.identity
    if not settings.at_listener(listener, SSL_ALLOW_DN_CHANGES) and _name(old) != _name(new):
        text = "Keystore DistinguishedName does not match: existing="
        text += f"{distinguished_name(old.subject)}, new={distinguished_name(new.subject)}"
        yield _refused(listener, text, "the same subject", SSL_ALLOW_DN_CHANGES)
    lost = old.names - new.names
    if not settings.at_listener(listener, SSL_ALLOW_SAN_CHANGES) and lost:
        text = f"Keystore SubjectAltNames do not match: existing={_listed(old)}, new={_listed(new)}"
        yield _refused(listener, text, ", ".join(sorted(lost)), SSL_ALLOW_SAN_CHANGES)
    if renewed.trusts and not held.trusts:
        text = f"{listener}: Cannot add SSL truststore to an existing listener for which no "
        yield text + "truststore was configured; give it when the broker is started"


def _refused(listener: str, text: str, needed: str, allowing: Setting[bool]) -> str:
    return (
        f"{listener}: {text}; renew it with a certificate for {needed}, or start the broker with "
        f"{allowing.name}=true"
    )


def _name(identity: Identity) -> str:
    """A subject as it is compared: neither case nor blanks make another of it."""
    parts = (
        tuple((kind, " ".join(value.split())) for kind, value in part) for part in identity.subject
    )
    return distinguished_name(tuple(parts)).casefold()


def _listed(identity: Identity) -> str:
    return ", ".join(sorted(identity.names)) or "none"
