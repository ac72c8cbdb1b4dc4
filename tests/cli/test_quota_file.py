"""``minibroker configs --alter --quota-file``: all lines or none, and the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.errors import CliError
from minibroker.cli.quota_file import LINES_MAX
from minibroker.testing import MiniBroker

Configs = Callable[..., list[str] | str]

TEXT = """\
# what alice used, and a fifth more
--alter --entity-type users --entity-name 'a lice' --add-config producer_byte_rate=1024
--alter --user u --client-defaults --add-config request_percentage=12.5,consumer_byte_rate=5
--alter --client-defaults --add-config controller_mutation_rate=2
--alter --ip 127.0.0.9 --add-config connection_creation_rate=5
--alter --client-defaults --delete-config controller_mutation_rate
"""


@pytest.fixture(scope="module")
def own() -> Iterator[MiniBroker]:
    with MiniBroker() as broker:
        yield broker


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quotas.txt"


@pytest.fixture
def configs(own: MiniBroker) -> Configs:
    """Run the command; return its output, or the error message after asserting the exit code."""

    def run(*words: str) -> list[str] | str:
        env = {"MINIBROKER_BOOTSTRAP_SERVER": own.bootstrap_servers}
        result = CliRunner().invoke(app, ["configs", *words], env=env)
        if isinstance(result.exception, CliError):
            assert result.exception.exit_code == 1
            return str(result.exception)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    return run


def described(configs: Configs) -> list[str]:
    found: list[str] = []
    for kinds in (["users"], ["clients"], ["users", "clients"], ["ips"]):
        lines = configs("--describe", *(word for kind in kinds for word in ("--entity-type", kind)))
        assert isinstance(lines, list)
        found += lines
    return found


def test_quota_file_applies_and_prints_every_line(configs: Configs, file: Path) -> None:
    file.write_text(TEXT)
    assert configs("--alter", "--quota-file", str(file)) == [
        "user a lice: producer_byte_rate=1024",
        "user u, the default of clients: request_percentage=12.5, consumer_byte_rate=5",
        "the default of clients: controller_mutation_rate=2.0",
        "ip 127.0.0.9: connection_creation_rate=5",
        "the default of clients: no controller_mutation_rate",
        f"Applied 5 lines of {file}.",
    ]
    assert described(configs) == [
        "Quota configs for user-principal 'a lice' are producer_byte_rate=1024.0",
        (
            "Quota configs for user-principal 'u', the default client-id are "
            "request_percentage=12.5, consumer_byte_rate=5.0"
        ),
        "Quota configs for ip '127.0.0.9' are connection_creation_rate=5.0",
    ]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("--user a --add-config producer_byte_rate=1", ":2: --alter is missing"),
        ("--alter --user a --add-config producer_byte_rate=0", ":2: producer_byte_rate=0: Quota"),
        (
            "--alter --user a --delete-config producer_byte_rate",
            ":2: user a has no producer_byte_rate to delete; nothing was changed",
        ),
        (
            "--alter --ip no.such.host.invalid --add-config connection_creation_rate=1",
            ":2: ip no.such.host.invalid: INVALID_REQUEST: no.such.host.invalid is not a valid IP ",
        ),
    ],
)
def test_quota_file_with_invalid_line_changes_nothing(
    configs: Configs, file: Path, last: str, expected: str
) -> None:
    before = described(configs)
    file.write_text(f"--alter --user never --add-config producer_byte_rate=1\n{last}\n")
    found = configs("--alter", "--quota-file", str(file))
    assert isinstance(found, str)
    assert found.startswith(f"{file}{expected}")
    assert described(configs) == before


def test_quota_file_is_split_into_requests(configs: Configs, file: Path) -> None:
    count = LINES_MAX + 1
    add = [
        f"--alter --client many{n} --add-config producer_byte_rate={n + 1}" for n in range(count)
    ]
    file.write_text("\n".join(add))
    assert configs("--alter", "--quota-file", str(file))[-1] == f"Applied {count} lines of {file}."
    lines = described(configs)
    for n in range(count):
        expected = f"Quota configs for client-id 'many{n}' are producer_byte_rate={n + 1}.0"
        assert expected in lines
    file.write_text("\n".join(line.split("=")[0].replace("add", "delete") for line in add))
    assert configs("--alter", "--quota-file", str(file))[-1] == f"Applied {count} lines of {file}."
    assert not any("many" in line for line in described(configs))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--describe", "--quota-file", "f"], "combined with --alter"),
        (["--alter", "--quota-file", "f", "--user", "u"], "contain everything else"),
        (["--alter", "--quota-file", "f", "--zookeeper", "h:1"], "combined with --alter"),
        (["--alter", "--quota-file", "/nowhere/f"], "/nowhere/f: cannot be read (No such file"),
    ],
)
def test_quota_file_rejects_other_options(
    configs: Configs, words: list[str], expected: str
) -> None:
    assert expected in configs(*words)


def test_empty_quota_file_is_rejected(configs: Configs, file: Path) -> None:
    file.write_text("# nothing\n\n")
    assert "contains no --alter line" in configs("--alter", "--quota-file", str(file))
    file.write_bytes(b"\xff")
    assert "not UTF-8" in configs("--alter", "--quota-file", str(file))
