from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS
from minibroker.broker.settings.setting import KNOWN_UNSERVED
from minibroker.cli.app import app
from minibroker.cli.output import InvalidUsage


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["settings", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_every_setting_is_listed_with_its_default() -> None:
    lines = run("list").splitlines()
    assert len(lines) == 1 + len(BROKER_SETTINGS)
    assert any(line.split() == ["num.io.threads", "int", "1"] for line in lines)


def test_settings_list_filters_by_part_of_name() -> None:
    names = [line.split()[0] for line in run("list", "retention").splitlines()[1:]]
    assert "log.retention.ms" in names
    assert all("retention" in name for name in names)


def test_settings_list_prints_topic_settings() -> None:
    names = [line.split()[0] for line in run("list", "--topic").splitlines()[1:]]
    assert names == list(TOPIC_SETTINGS)


def test_setting_is_explained_with_both_profiles_and_its_bounds() -> None:
    text = run("explain", "num.io.threads")
    assert "profile kafka   8" in text
    assert "must be         between 1 and 64" in text


@pytest.mark.parametrize("name", [*BROKER_SETTINGS, *TOPIC_SETTINGS])
def test_every_setting_can_be_explained(name: str) -> None:
    assert run("explain", name).startswith(name)


def test_misspelt_setting_suggests_the_nearest() -> None:
    with pytest.raises(InvalidUsage, match=r"did you mean num\.io\.threads\?"):
        run("explain", "num.io.thread")


def test_unknown_setting_refers_to_the_list() -> None:
    with pytest.raises(InvalidUsage, match="settings list"):
        run("explain", "zzz")


def test_settings_list_without_match_raises() -> None:
    with pytest.raises(InvalidUsage, match="no setting has 'zzz' in its name"):
        run("list", "zzz")


@pytest.mark.parametrize("name", ["retention.bytez.max.of.all", "log.x", "num.partition.count"])
def test_setting_with_equal_prefix_is_not_suggested(name: str) -> None:
    with pytest.raises(InvalidUsage, match="settings list"):
        run("explain", name)


def test_setting_that_only_kafka_has_is_reported_as_ignored() -> None:
    name = min(KNOWN_UNSERVED)
    with pytest.raises(InvalidUsage, match=re.escape(f"{name} is a setting of Kafka")):
        run("explain", name)


def test_settings_as_json_have_all_that_explain_shows() -> None:
    lines = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert [line["setting"] for line in lines] == list(BROKER_SETTINGS)
    explained = json.loads(run("explain", "num.io.threads", "--json"))
    assert explained in lines
    assert (explained["default"], explained["profile_kafka"]) == ("1", "8")
