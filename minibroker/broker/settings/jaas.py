"""JAAS configurations: login modules with their options and, for PLAIN, users.

Owns parsing and rendering of ``module required name="value" …;``; it must never know the meaning of
an option.  The invariant: no error repeats a value, because most values are secrets.  Echoes
Kafka's ``JaasConfig``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from minibroker.broker.settings.types import BadValueError, Kind, SettingType

EXAMPLE: Final = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
)
FLAGS: Final = ("required", "requisite", "sufficient", "optional")

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>[^\s="';]+)|(?P<mark>[=;]))""", re.DOTALL
)


class JaasEntry(NamedTuple):
    """One login module with its options."""

    module: str
    flag: str
    options: tuple[tuple[str, str], ...]

    @property
    def module_name(self) -> str:
        """The class without its package."""
        return self.module.rpartition(".")[2]

    @property
    def users(self) -> dict[str, str]:
        """Passwords by user name, from options such as ``user_alice="secret"``."""
        return {
            name.removeprefix("user_"): value
            for name, value in self.options
            if name.startswith("user_")
        }


def parse_jaas(text: str) -> JaasEntry:
    """Parse a text with exactly one login module; raise `BadValueError`."""
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in FLAGS:
        raise BadValueError(f"must be a JAAS line with one login module, e.g. {EXAMPLE}")
    module, flag, *rest = tokens[:-1]
    if ";" in rest:
        raise BadValueError("must have one login module; use a separate setting for each mechanism")
    options: dict[str, str] = {}
    for at in range(0, len(rest), 3):
        name, *pair = rest[at : at + 3]
        if len(pair) != 2 or pair[0] != "=" or "=" in (name, pair[1]):
            raise BadValueError(f'must have options as name="value"; the {at // 3 + 1}. has none')
        options[_unquoted(name)] = _unquoted(pair[1])
    return JaasEntry(_unquoted(module), flag.lower(), tuple(options.items()))


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadValueError(f"must be a JAAS line, e.g. {EXAMPLE}; a quote is not closed")
        found.append(match.group().strip())
        at = match.end()
    return found


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL) if token[0] == '"' else token


def _quoted(value: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def render_jaas(entry: JaasEntry) -> str:
    """Render a login module as text."""
    options = "".join(f" {name}={_quoted(value)}" for name, value in entry.options)
    return f"{entry.module} {entry.flag}{options};"


JAAS: SettingType[JaasEntry] = SettingType(Kind.PASSWORD, "JAAS line", parse_jaas, render_jaas)
