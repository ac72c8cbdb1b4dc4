"""Builds the principal of a connection: from SASL, a certificate, or a custom class.

Owns the choice, and the loading of ``principal.builder.class``. It must never let an error of
custom code escape, or accept a client without a principal. Invariant: every connection has exactly
one principal, ANONYMOUS without authentication. Kafka's ``DefaultKafkaPrincipalBuilder``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from minibroker.config import (
    PRINCIPAL_BUILDER_CLASS,
    SSL_PRINCIPAL_MAPPING_RULES,
    ConfigError,
    Settings,
)
from minibroker.config.listeners import has_tls
from minibroker.security.certificates import (
    BadRules,
    NoName,
    Subject,
    distinguished_name,
    parse_rules,
    user_name,
)
from minibroker.security.principal import (
    ANONYMOUS,
    USER,
    BadPrincipal,
    Introduction,
    Principal,
    parse,
)

KAFKA_DEFAULT_BUILDER: Final = (
    "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
)

Builder = Callable[[Introduction], object]


class PrincipalNotBuilt(Exception):
    """The principal cannot be built; the text is logged."""


class PrincipalBuilder:
    """Builds principals of one broker. Raises ``ConfigError`` for invalid rules or classes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._builder = _load(settings)
        self._rules = {}
        for listener in settings.client_listeners:
            text = settings.at_listener(listener.name, SSL_PRINCIPAL_MAPPING_RULES)
            if has_tls(settings.security_protocol(listener.name)):
                try:
                    self._rules[listener.name] = parse_rules(text)
                except BadRules as bad:
                    name = SSL_PRINCIPAL_MAPPING_RULES.name
                    raise ConfigError([f"{name} ({listener.name}): {bad}"]) from None

    def principal(
        self, listener: str, client_host: str, sasl_user: str | None, subject: Subject | None
    ) -> Principal:
        """Return the principal of a client. Raises ``PrincipalNotBuilt``."""
        shown = None if subject is None else distinguished_name(subject)
        if self._builder is None:
            return self._default(listener, sasl_user, shown)
        protocol = self._settings.security_protocol(listener)
        introduction = Introduction(listener, protocol, client_host, sasl_user, shown)
        name = PRINCIPAL_BUILDER_CLASS.name
        try:
            made = self._builder(introduction)
        except Exception as error:
            raise PrincipalNotBuilt(f"{name} failed: {type(error).__name__}: {error}") from error
        if isinstance(made, Principal):
            return made
        try:
            return parse(str(made))
        except BadPrincipal as bad:
            raise PrincipalNotBuilt(f"{name} gave no principal: {bad}") from None

    def _default(self, listener: str, sasl_user: str | None, subject: str | None) -> Principal:
        if sasl_user is not None:
            return Principal(USER, sasl_user)
        if subject is None:
            return ANONYMOUS
        try:
            return Principal(USER, user_name(subject, self._rules[listener]))
        except NoName as none:
            raise PrincipalNotBuilt(str(none)) from None


def _load(settings: Settings) -> Builder | None:
    wanted = settings[PRINCIPAL_BUILDER_CLASS]
    if wanted is None or wanted == KAFKA_DEFAULT_BUILDER:
        return None
    name = PRINCIPAL_BUILDER_CLASS.name
    module, _, attribute = wanted.partition(":")
    if not (module and attribute):
        raise ConfigError([f"{name}={wanted}: must be package.module:callable, of Python"])
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        text = f"{name}={wanted}: can't be loaded: {type(error).__name__}: {error}"
        raise ConfigError([text]) from error
    if not callable(found):
        raise ConfigError([f"{name}={wanted}: can't be called"])
    builder: Builder = found
    return builder
