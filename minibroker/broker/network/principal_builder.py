"""Builds the principal of a connection: from SASL, a certificate, or a custom class.

Owns the choice, and the loading of ``principal.builder.class``. It must never let an error of
custom code escape, or accept a client without a principal. Invariant: every connection has exactly
one principal, ANONYMOUS without authentication. Kafka's ``DefaultKafkaPrincipalBuilder``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from minibroker.broker.security.certificates import (
    BadRules,
    NoName,
    Subject,
    distinguished_name,
    parse_rules,
    user_name,
)
from minibroker.broker.security.principal import (
    ANONYMOUS,
    USER,
    BadPrincipal,
    Introduction,
    Principal,
    parse,
)
from minibroker.broker.settings import (
    PRINCIPAL_BUILDER_CLASS,
    SSL_PRINCIPAL_MAPPING_RULES,
    ConfigError,
    Settings,
)
from minibroker.broker.settings.listeners import has_tls

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
                except BadRules as error:
                    name = SSL_PRINCIPAL_MAPPING_RULES.name
                    raise ConfigError([f"{name} ({listener.name}): {error}"]) from None

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
            result = self._builder(introduction)
        except Exception as error:
            raise PrincipalNotBuilt(f"{name} failed: {type(error).__name__}: {error}") from error
        if isinstance(result, Principal):
            return result
        try:
            return parse(str(result))
        except BadPrincipal as error:
            raise PrincipalNotBuilt(f"{name} returned no principal: {error}") from None

    def _default(self, listener: str, sasl_user: str | None, subject: str | None) -> Principal:
        if sasl_user is not None:
            return Principal(USER, sasl_user)
        if subject is None:
            return ANONYMOUS
        try:
            return Principal(USER, user_name(subject, self._rules[listener]))
        except NoName as error:
            raise PrincipalNotBuilt(str(error)) from None


def _load(settings: Settings) -> Builder | None:
    class_name = settings[PRINCIPAL_BUILDER_CLASS]
    if class_name is None or class_name == KAFKA_DEFAULT_BUILDER:
        return None
    name = PRINCIPAL_BUILDER_CLASS.name
    module, _, attribute = class_name.partition(":")
    if not (module and attribute):
        raise ConfigError([f"{name}={class_name}: must be a Python package.module:callable"])
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        text = f"{name}={class_name}: can't be loaded: {type(error).__name__}: {error}"
        raise ConfigError([text]) from error
    if not callable(found):
        raise ConfigError([f"{name}={class_name}: is not callable"])
    builder: Builder = found
    return builder
