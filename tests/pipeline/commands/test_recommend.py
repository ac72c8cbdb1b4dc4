"""``minibroker pipeline recommend``: the quota file and the summary."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from minibroker.cli.configs import configs
from minibroker.pipeline.commands import recommend as command
from minibroker.pipeline.commands.recommend import of_broker, recommend
from minibroker.pipeline.quota_amounts import MUTATION, PRODUCE
from minibroker.pipeline.recommend import Policy
from minibroker.pipeline.whatif.proposal import settings_of
from minibroker.testing import MiniBroker
from tests.pipeline.sample_events import connection, dropped, produced, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in the session that the tests share."""
    monkeypatch.setattr(command, "running", lambda *_: nullcontext(spark))

    def invoke(*arguments: str | Path) -> Result:
        return CliRunner().invoke(recommend, [str(each) for each in arguments])

    return invoke


def test_recommended_quota_file_is_applied_by_broker(run: Any, tmp_path: Path) -> None:
    events = [
        *(produced(at, "a lice", "etl", 1_000_000, sample=0.5) for at in range(70)),
        connection(2, "127.0.0.9"),
        dropped(3, 2),
    ]
    activity, into = table(tmp_path / "activity", events), tmp_path / "quotas.txt"
    result = run("--table", activity, "--into", into, "--at-least", "request_percentage=0.01")
    assert result.exit_code == 0, result.output
    text = into.read_text("utf-8")
    for expected in (
        "2 more events could not be written",
        "only 50 % of connections were recorded",
    ):
        assert f"# Warning: {expected}" in text
        assert expected in result.stdout
    assert "at most 2 MB/s in 99 % of 70 busy seconds (maximum 2 MB/s), plus 25 % headroom" in text
    assert "QUOTA" in result.stdout
    again = run("--table", activity, "--into", tmp_path / "again.txt", "--json")
    (produce,) = [
        quota
        for quota in map(json.loads, again.stdout.splitlines())
        if (quota["quota"], quota["user"]) == (PRODUCE, "a lice")
    ]
    assert (produce["value"], produce["default"]) == (2_500_000, False)
    assert "plus 25 % headroom" in produce["reason"]
    assert "2 more events could not be written" in again.stderr
    with MiniBroker() as broker:

        def ask(*words: str) -> list[str]:
            given = ["-b", broker.bootstrap_servers, *words]
            done = CliRunner().invoke(configs, given)
            assert done.exit_code == 0, done.output
            return done.stdout.splitlines()

        ask("--alter", "--quota-file", str(into))
        [theirs] = ask("--describe", "--entity-type", "users")
        assert theirs.endswith("'a lice' are producer_byte_rate=2500000.0, request_percentage=0.25")
        assert ask("--describe", "--entity-type", "ips") == []


def test_default_from_one_busy_second_is_not_recommended(run: Any, tmp_path: Path) -> None:
    events = [
        produced(1, "once", "c", 50_000_000),
        *(produced(at, "u", "c", 1_000_000) for at in range(70)),
    ]
    activity, into = table(tmp_path / "activity", events), tmp_path / "quotas.txt"
    short = ["--busy-min", "71", "--default-busy-min", "72"]
    result = run("--table", activity, "--into", into, *short)
    assert result.exit_code == 1
    assert "contains no usage" in result.output
    result = run("--table", activity, "--into", into, "--busy-min", "70")
    assert result.exit_code == 0, result.output
    reason = (
        "No default producer_byte_rate: it would apply to every other client, and none of the 1"
        " seen was busy for 10 seconds."
    )
    assert reason in result.stdout
    assert f"# {reason}" in into.read_text("utf-8")
    assert "--entity-default --add-config producer_byte_rate" not in into.read_text("utf-8")


def test_policy_reflects_broker_settings() -> None:
    pairs = ["quota.window.num=5", "quota.window.size.seconds=2", "num.io.threads=3"]
    pairs += ["controller.quota.window.num=3", "controller.quota.window.size.seconds=4"]
    policy = Policy(**of_broker(settings_of([*pairs, "num.network.threads=4"])))
    assert (policy.windows_s(PRODUCE), policy.windows_s(MUTATION)) == ((8, 10), (8, 12))
    assert policy.workers == 7
    assert Policy(**of_broker(settings_of([]))) == Policy()


def test_invalid_setting_is_rejected_before_reading() -> None:
    words = ["--table", "x", "--into", "y", "--set", "quota.window.num=0"]
    result = CliRunner().invoke(recommend, words)
    assert result.exit_code == 1
    assert "quota.window.num" in result.output


def test_table_without_usage_is_rejected(run: Any, tmp_path: Path) -> None:
    activity = table(tmp_path / "activity", [dropped(0, 1)])
    result = run("--table", activity, "--into", tmp_path / "quotas.txt")
    assert result.exit_code == 1
    assert "contains no usage that a quota could limit" in result.output
    assert not (tmp_path / "quotas.txt").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--at-least", "speed=1"], "a number above 0 and one of producer_byte_rate, consumer"),
        (["--at-most", "producer_byte_rate=0"], "a number above 0 and one of"),
        (["--at-most", "producer_byte_rate"], "is not QUOTA=NUMBER"),
        (["--for", "topics"], "'topics' is not one of 'users', 'clients', 'users+clients'"),
        (["--headroom", "0.5"], "0.5 is not in the range x>=1"),
        (["--into", "/nowhere/to/be/quotas"], "there is no directory /nowhere/to/be"),
    ],
)
def test_bad_options_are_rejected_before_reading(words: list[str], expected: str) -> None:
    result = CliRunner().invoke(recommend, ["--table", "x", "--into", "y", *words])
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())
