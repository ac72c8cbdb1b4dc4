from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.faults import rule_of
from minibroker.cli.output import CliError, InvalidUsage
from minibroker.testing import MiniBroker


def test_rule_is_added_listed_awaited_released_and_removed(
    command: Any, minibroker_group: str
) -> None:
    name = minibroker_group[-20:].strip("-.") + "x"
    added = command("faults", "add", "hold", f"group={minibroker_group}", f"name={name}")
    assert added.stdout == f"{name}\n"
    lines = command("faults", "list", "--json").stdout.splitlines()
    (found,) = [each for each in map(json.loads, lines) if each["id"] == name]
    assert found["rule"] == {"action": "hold", "name": name, "group": minibroker_group}
    (row,) = [line for line in command("faults", "list").stdout.splitlines() if name in line]
    assert row.split() == [name, "0", "0", "0", "hold", f"group={minibroker_group}"]
    assert json.loads(command("faults", "wait", name, "--hits", "0").stdout)["id"] == name
    with pytest.raises(CliError, match="fired 0 of 1 times"):
        command("faults", "wait", name, "--timeout", "0")
    assert command("faults", "release", name).stdout == "released 0\n"
    command("faults", "remove", name)
    with pytest.raises(CliError, match="there is no fault rule"):
        command("faults", "remove", name)


def test_action_is_carried_out_at_once(command: Any, minibroker_topic: str) -> None:
    assert command("faults", "act", "roll", f"topic={minibroker_topic}").stdout == "affected 0\n"
    with pytest.raises(CliError, match="there is no group"):
        command("faults", "act", "assign", "group=none", 'assignment={"m": {"t": [0]}}')


def test_all_rules_are_removed(command: Any) -> None:
    with MiniBroker() as broker:
        server = ("-b", broker.bootstrap_servers)
        for _ in range(2):
            command("faults", "add", "observe", *server)
        command("faults", "remove", "--all", *server)
        command("faults", "add", "observe", "name=last", *server)
        removed = command("faults", "remove", "--all", "--json", *server).stdout
        assert json.loads(removed) == {"id": "last", "removed": True}
        result = command("faults", "list", *server)
        assert result.stdout == ""
        assert "no fault rules" in result.stderr


def test_words_become_values_of_the_types_of_fields() -> None:
    words = ("throttle", "throttle_ms=5", "mute=false", "probability=0.5", "client_id=7", "seed=1")
    assert rule_of(words) == {
        "action": "throttle",
        "throttle_ms": 5,
        "mute": False,
        "probability": 0.5,
        "client_id": "7",
        "seed": 1,
    }
    assert rule_of(("replace", 'response={"a": [1]}'))["response"] == {"a": [1]}
    assert rule_of(('{"action": "hold"}',)) == {"action": "hold"}
    assert rule_of(("observe", "nth=x", "odd=1"))["nth"] == "x"  # The broker names the field.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("observe", "api"), "'api' is not field=value"),
        (("observe", "api=a", "api=b"), "api is given twice"),
        (("{",), "is not JSON"),
        (('{"a":' * 100_000,), "is not JSON"),
        (("{}", "api=a"), "no words may follow"),
        (("replace", "response=[]"), "is not a JSON object"),
    ],
)
def test_words_that_are_no_rule_are_rejected(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidUsage, match=message):
        rule_of(words)


def test_rejected_rule_is_reported_with_its_field(command: Any) -> None:
    with pytest.raises(CliError, match="did you mean 'NOT_COORDINATOR'"):
        command("faults", "add", "error", "error=NOT_CORDINATOR", "group=g")


def test_nothing_to_remove_is_an_invalid_use(command: Any) -> None:
    with pytest.raises(InvalidUsage, match="pass --all"):
        command("faults", "remove")


def test_fields_lists_the_definition() -> None:
    lines = CliRunner().invoke(app, ["faults", "fields"]).stdout.splitlines()
    assert "ACTIONS" in lines
    assert any(line.startswith("  transactional_id") for line in lines)


def test_answers_are_printed_as_json(command: Any, minibroker_topic: str) -> None:
    rule = ("hold", f"topic={minibroker_topic}", "--json")
    added = json.loads(command("faults", "add", *rule).stdout)
    assert json.loads(command("faults", "release", added["id"], "--json").stdout)["released"] == 0
    waited = command("faults", "wait", added["id"], "--hits", "0", "--json").stdout
    assert json.loads(waited)["hits"] == 0
    removed = command("faults", "remove", added["id"], "--json").stdout
    assert json.loads(removed) == {"id": added["id"], "removed": True}
    fields = json.loads(CliRunner().invoke(app, ["faults", "fields", "--json"]).stdout)
    assert "delay" in fields["actions"]
    assert "topic" in {name for group in fields["fields"].values() for name in group}
