"""Seed files: topics with their records, settings, users and quotas of a new broker.

Owns the format of the files, and its translation to the body of ``POST /v1/seed``. It must never
import anything of the broker, because test processes import it. Invariant: an error names the file
and the entry. The format is TOML, which is read without a library of others and has comments and
strings without traps. Kafka has no equivalent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

SeedSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""A TOML file, a folder, or what a file contains."""

RECORD_FIELDS: Final = (
    "key",
    "value",
    "headers",
    "partition",
    "timestamp_ms",
    "key_base64",
    "value_base64",
)
_PARTS: Final = ("settings", "topics", "users", "quotas")
_TOPIC: Final = ("partitions", "configs", "records")
_USER: Final = ("password", "mechanisms")
_ENTITY: Final = ("user", "client_id", "ip")
_LIMITS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)


class SeedError(ValueError):
    """A seed file can't be used; the text names the file and the entry."""


def read_seed(source: SeedSource) -> dict[str, Any]:
    """Return the body of ``POST /v1/seed`` for a file, for a folder, or for what a file contains.

    In a folder, ``*.toml`` files are read in the order of their names, and ``<topic>.jsonl`` files
    have one record a line.
    """
    if isinstance(source, Mapping):
        return _Seed().add("seed", source).body()
    path = Path(source)
    if not path.exists():
        raise SeedError(f"seed {path}: there is no such file or folder")
    seed = _Seed()
    if not path.is_dir():
        return seed.add(str(path), _toml(path)).body()
    files = sorted(path.glob("*.toml"))
    lines = sorted(path.glob("*.jsonl"))
    if not files and not lines:
        raise SeedError(f"seed {path}: the folder has neither *.toml nor *.jsonl files")
    for file in files:
        seed.add(str(file), _toml(file))
    for file in lines:
        seed.add_records(file)
    return seed.body()


def _toml(path: Path) -> Mapping[str, Any]:
    import tomllib  # Few test processes read a file.

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SeedError(f"seed {path}: {error}") from None


class _Seed:
    """What has been read so far."""

    def __init__(self) -> None:
        self._settings: dict[str, str] = {}
        self._topics: dict[str, dict[str, Any]] = {}
        self._users: dict[str, dict[str, Any]] = {}
        self._quotas: list[dict[str, Any]] = []

    def body(self) -> dict[str, Any]:
        return {
            "settings": self._settings,
            "topics": list(self._topics.values()),
            "users": list(self._users.values()),
            "quotas": self._quotas,
        }

    def add(self, where: str, content: Mapping[str, Any]) -> _Seed:
        _check_names(where, content, _PARTS)
        settings = _table(f"{where}: settings", content.get("settings", {}))
        self._settings |= {name: text_of(value) for name, value in settings.items()}
        for name, topic in _table(f"{where}: topics", content.get("topics", {})).items():
            self._add_topic(f"{where}: topics.{name}", name, topic)
        for name, user in _table(f"{where}: users", content.get("users", {})).items():
            self._add_user(f"{where}: users.{name}", name, user)
        quotas = content.get("quotas", [])
        if not isinstance(quotas, list):
            raise SeedError(f"{where}: quotas must be a list: write [[quotas]]")
        self._quotas += [
            _quota(f"{where}: quotas.{place}", quota) for place, quota in enumerate(quotas)
        ]
        return self

    def _add_topic(self, where: str, name: str, topic: Any) -> None:
        _check_names(where, _table(where, topic), _TOPIC)
        if name in self._topics:
            raise SeedError(f"{where}: another file has this topic too")
        records = topic.get("records", [])
        if not isinstance(records, list):
            raise SeedError(f"{where}.records must be a list")
        made: dict[str, Any] = {
            "name": name,
            "configs": {
                key: text_of(value)
                for key, value in _table(f"{where}.configs", topic.get("configs", {})).items()
            },
            "records": [
                _record(f"{where}.records.{place}", record) for place, record in enumerate(records)
            ],
        }
        if "partitions" in topic:
            made["partitions"] = topic["partitions"]
        self._topics[name] = made

    def add_records(self, file: Path) -> None:
        """Add the lines of a file to the topic of its name."""
        topic = self._topics.setdefault(file.stem, {"name": file.stem, "records": []})
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise SeedError(f"seed {file} line {number}: {error}") from None
            topic["records"].append(_record(f"seed {file} line {number}", record))

    def _add_user(self, where: str, name: str, user: Any) -> None:
        given = {"password": user} if isinstance(user, str) else _table(where, user)
        _check_names(where, given, _USER)
        if "password" not in given:
            raise SeedError(f'{where}: write a password: {name} = "secret"')
        self._users[name] = {"name": name, **given}


def _record(where: str, record: Any) -> dict[str, Any]:
    if isinstance(record, str):
        return {"value": record}
    given = _table(where, record)
    _check_names(where, given, RECORD_FIELDS)
    made = dict(given)
    for field in ("key", "value"):
        if field in given:
            made[field] = _json_text(f"{where}.{field}", given[field])
    if "headers" in given:
        headers = _table(f"{where}.headers", given["headers"])
        made["headers"] = [{"key": name, "value": value} for name, value in headers.items()]
    return made


def _json_text(where: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except TypeError as error:
        raise SeedError(f"{where}: {error}; write it as text") from None


def _quota(where: str, quota: Any) -> dict[str, Any]:
    _check_names(where, _table(where, quota), (*_ENTITY, *_LIMITS))
    entity = {name: quota[name] for name in _ENTITY if name in quota}
    limits = {name: quota[name] for name in _LIMITS if name in quota}
    if not entity or not limits:
        raise SeedError(
            f"{where}: needs one of {', '.join(_ENTITY)} and one of {', '.join(_LIMITS)}"
        )
    return {**entity, "limits": limits}


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SeedError(f"{where}: must be a table, not {value!r}")
    return value


def _check_names(where: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            similar = get_close_matches(name, known, 1)
            advice = f"did you mean {similar[0]!r}?" if similar else f"known are {', '.join(known)}"
            raise SeedError(f"{where}: {name!r} is unknown; {advice}")


def text_of(value: object) -> str:
    """Return the value of a setting as it is written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
