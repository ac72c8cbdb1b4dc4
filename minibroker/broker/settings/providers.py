"""References in setting values to the environment, a file or a directory.

Owns Kafka's three built-in config providers. It must never
know which setting is resolved. Invariant: no error repeats a value, because most are secrets.
Echoes ``EnvVarConfigProvider``, ``FileConfigProvider`` and ``DirectoryConfigProvider`` (KIP-297,
KIP-421, KIP-887), which are enabled without ``config.providers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from minibroker.broker.settings.types import BadValueError

_REFERENCE: Final = re.compile(r"\$\{(env|file|directory):([^}]*)\}")


def resolve(value: str, environment: Mapping[str, str]) -> str:
    """Replace the references in ``value``.

    References are ``${env:NAME}``, ``${file:PATH:KEY}`` (a value of a properties file) and
    ``${directory:PATH:FILE}`` (the content of a file).  Raise
    BadValueError if the variable, the file or the key does not exist.
    """
    if "${" not in value:
        return value

    def found(match: re.Match[str]) -> str:
        kind, what = match.groups()
        if kind == "env":
            return _variable(what, environment)
        return _from_file(what) if kind == "file" else _from_directory(what)

    return _REFERENCE.sub(found, value)


def _variable(name: str, environment: Mapping[str, str]) -> str:
    try:
        return environment[name]
    except KeyError:
        raise BadValueError(f"the environment has no variable {name}") from None


def _from_directory(what: str) -> str:
    directory, separator, name = what.rpartition(":")
    if not separator or "/" in name or name in {"", ".", ".."}:
        raise BadValueError(f"${{directory:{what}}} must be ${{directory:PATH:FILE}}")
    path = Path(directory, name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadValueError(f"{path} is not text in UTF-8") from None


def _from_file(what: str) -> str:
    import javaproperties  # Imported only if a value refers to a file.

    path, separator, key = what.rpartition(":")
    if not separator:
        raise BadValueError(f"${{file:{what}}} must be ${{file:PATH:KEY}}")
    try:
        with Path(path).open(encoding="latin-1") as file:
            properties: Mapping[str, str] = javaproperties.load(file)
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadValueError(f"{path} is not a properties file: {error}") from None
    if key not in properties:
        raise BadValueError(f"{path} has no key {key}")
    return properties[key]
