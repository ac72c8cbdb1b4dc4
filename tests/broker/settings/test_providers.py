"""Setting values that refer to environment variables and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.settings import ConfigError, Settings, read_pairs
from minibroker.broker.settings.providers import resolve
from minibroker.broker.settings.types import BadValueError

ENVIRONMENT = {"PASSWORD": "wonder=land", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ("${env:PASSWORD}", "wonder=land"),
        ('user_alice="${env:PASSWORD}";', 'user_alice="wonder=land";'),
        ("${env:EMPTY}", ""),
        ("${other:PASSWORD}", "${other:PASSWORD}"),
        ("$PASSWORD", "$PASSWORD"),
    ],
)
def test_resolve_replaces_variables(value: str, expected: str) -> None:
    assert resolve(value, ENVIRONMENT) == expected


def test_resolve_reads_a_key_of_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("other=1\nkey.password = s3cret\n")
    assert resolve(f"${{file:{path}:key.password}}", {}) == "s3cret"


def test_resolve_directory_reference_returns_file_content(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3crét\n", encoding="utf-8")
    assert resolve(f"<${{directory:{tmp_path}:password}}>", {}) == "<s3crét\n>"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("${env:MISSING}", "the environment has no variable MISSING"),
        ("${file:nowhere}", "must be"),
        ("${directory:nowhere}", "must be"),
        ("${directory:/tmp:../etc/passwd}", "must be"),
        ("${directory:/tmp:..}", "must be"),
        ("${directory:/tmp:}", "must be"),
        ("${directory:/no/such:key}", "/no/such/key cannot be read: No such file"),
        ("${file:/no/such/file:key}", "/no/such/file cannot be read: No such file"),
    ],
)
def test_resolve_missing_value_names_it(value: str, problem: str) -> None:
    with pytest.raises(BadValueError, match=problem):
        resolve(value, ENVIRONMENT)


def test_resolve_of_a_missing_key_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("other=s3cret\n")
    with pytest.raises(BadValueError, match=r"secrets\.properties has no key key$"):
        resolve(f"${{file:{path}:key}}", {})


def test_settings_resolve_values_and_report_missing_ones() -> None:
    pairs = read_pairs(["num.partitions=${env:COUNT}"])
    settings = Settings.from_entries(pairs, environment={"COUNT": "7"})
    assert settings.text("num.partitions") == "7"
    with pytest.raises(ConfigError, match=r"num\.partitions.*no variable COUNT"):
        Settings.from_entries(pairs, environment={})
