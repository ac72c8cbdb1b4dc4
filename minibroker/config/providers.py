"""Values that a setting takes from elsewhere: the environment, a file or a directory.

Owns the three forms of Kafka's ``ConfigProvider`` that need no class of the user's. It must never
know which setting is resolved. Invariant: no error repeats a value, because most are secrets.
Echoes ``EnvVarConfigProvider``, ``FileConfigProvider`` and ``DirectoryConfigProvider`` (KIP-297,
KIP-421, KIP-887), which here need no ``config.providers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from minibroker.config.types import BadValueError

_REFERENCE: Final = re.compile(r"\$\{(env|file|directory):([^}]*)\}")


def resolve(value: str, environment: Mapping[str, str]) -> str:
    """``value`` with each ``${env:NAME}``, ``${file:PATH:KEY}`` (of a properties file) and
    ``${directory:PATH:FILE}`` (a file's whole content) replaced.

    Raises BadValueError if the variable, the file or the key does not exist.
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
    import javaproperties  # Most brokers take no value from a file.

    path, separator, key = what.rpartition(":")
    if not separator:
        raise BadValueError(f"${{file:{what}}} must be ${{file:PATH:KEY}}")
    try:
        with Path(path).open(encoding="latin-1") as file:
            properties: Mapping[str, str] = javaproperties.load(file)
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadValueError(f"{path} is no properties file: {error}") from None
    if key not in properties:
        raise BadValueError(f"{path} has no key {key}")
    return properties[key]
