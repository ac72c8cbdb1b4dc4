"""The reset of offsets: its rules, and the command with a group that is empty or active."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from minibroker.cli.output import CliError, InvalidUsage
from minibroker.cli.reset_offsets import PartitionOffsets, ResetTarget, read_partitions, read_reset
from minibroker.testing import MiniBroker

NOWHERE = dict.fromkeys(("to_offset", "to_datetime", "by_duration", "shift_by")) | dict.fromkeys(
    ("to_earliest", "to_latest"), False
)
OFFSETS = PartitionOffsets(committed=15, start=10, end=20)


@pytest.mark.parametrize(
    ("reset", "new"),
    [
        (ResetTarget(to_earliest=True), 10),
        (ResetTarget(to_latest=True), 20),
        (ResetTarget(to_offset=12), 12),
        (ResetTarget(to_offset=9), 10),
        (ResetTarget(to_offset=99), 20),
        (ResetTarget(shift_by=-3), 12),
        (ResetTarget(shift_by=-9), 10),
        (ResetTarget(shift_by=9), 20),
        (ResetTarget(to_time_ms=0), 20),
    ],
)
def test_new_offset_is_within_the_log(reset: ResetTarget, new: int) -> None:
    assert reset.new_offset(OFFSETS) == new


def test_new_offset_at_a_time_is_that_of_the_first_record() -> None:
    assert ResetTarget(to_time_ms=5).new_offset(OFFSETS, at_time=17) == 17


def test_duration_is_subtracted_from_now() -> None:
    assert read_reset({**NOWHERE, "by_duration": "2s"}, lambda: 5000).to_time_ms == 3000


@pytest.mark.parametrize("given", [{}, {"to_earliest": True, "shift_by": 0}])
def test_position_must_be_given_once(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidUsage, match="say where to, once: --to-offset"):
        read_reset({**NOWHERE, **given}, lambda: 0)


def test_partitions_are_read_after_a_colon() -> None:
    assert read_partitions("cats") == ("cats", None)
    assert read_partitions("cats:2,0,2") == ("cats", [0, 2])
    with pytest.raises(InvalidUsage, match="--topic cats:x"):
        read_partitions("cats:x")


@pytest.fixture
def group(command: Any, minibroker_topic: str, minibroker_group: str) -> str:
    """A group that has read two of three records."""
    command("produce", minibroker_topic, "a", "b", "c")
    consume(command, minibroker_topic, minibroker_group, 2)
    return minibroker_group


def consume(command: Any, topic: str, group: str, count: int) -> list[str]:
    options = ("--group", group, "--from-beginning", "--max-messages", str(count), "--timeout", "5")
    lines: list[str] = command("consume", topic, *options).stdout.splitlines()
    return lines


def test_reset_without_execute_changes_nothing(
    command: Any, minibroker_topic: str, group: str
) -> None:
    shown = command("groups", "reset-offsets", group, "--topic", minibroker_topic, "--to-earliest")
    assert shown.stdout.splitlines()[1].split() == [minibroker_topic, "0", "2", "0"]
    assert "nothing was changed" in shown.stderr
    assert consume(command, minibroker_topic, group, 1) == ["c"]


def test_executed_reset_lets_the_group_read_again(
    command: Any, minibroker_topic: str, group: str
) -> None:
    options = ("--all-topics", "--shift-by", "-1", "--execute", "--json")
    (line,) = command("groups", "reset-offsets", group, *options).stdout.splitlines()
    assert json.loads(line) == {
        "group": group,
        "topic": minibroker_topic,
        "partition": 0,
        "committed": 2,
        "new": 1,
        "executed": True,
    }
    assert consume(command, minibroker_topic, group, 2) == ["b", "c"]


def test_offset_beyond_the_log_becomes_its_end(
    command: Any, minibroker_topic: str, group: str
) -> None:
    chosen = ("--topic", f"{minibroker_topic}:0", "--to-offset", "42")
    shown = command("groups", "reset-offsets", group, *chosen)
    assert shown.stdout.splitlines()[1].split()[-1] == "3"
    assert f"{minibroker_topic}-0: offset 42 is out of range, 3 is nearest" in shown.stderr


def test_topic_that_was_deleted_is_left_out(
    command: Any, minibroker: MiniBroker, minibroker_group: str
) -> None:
    topic = minibroker.create_topic(f"{minibroker_group}-topic")
    command("produce", topic, "a")
    consume(command, topic, minibroker_group, 1)
    command("topics", "delete", topic)
    # The broker forgets the offsets of deleted topics, so there is nothing to reset.
    with pytest.raises(CliError, match="has no committed offsets; name the topics"):
        command("groups", "reset-offsets", minibroker_group, "--all-topics", "--to-latest")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to-latest"], "say which partitions"),
        (["--all-topics", "--topic", "x", "--to-latest"], "say which partitions"),
        (["--topic", "TOPIC:7", "--to-latest"], "the topic has partitions 0 to 0"),
    ],
)
def test_invalid_choice_of_partitions_is_rejected(
    command: Any, minibroker_topic: str, group: str, options: list[str], message: str
) -> None:
    words = [word.replace("TOPIC", minibroker_topic) for word in options]
    with pytest.raises(InvalidUsage, match=message):
        command("groups", "reset-offsets", group, *words)


def test_shift_without_a_committed_offset_is_rejected(
    command: Any, minibroker_topic: str, minibroker_group: str
) -> None:
    options = ("--topic", minibroker_topic, "--shift-by", "1")
    with pytest.raises(CliError, match=f"no committed offset for {minibroker_topic}-0"):
        command("groups", "reset-offsets", minibroker_group, *options)


def test_group_with_members_is_not_reset(
    command: Any, minibroker: MiniBroker, minibroker_topic: str, minibroker_group: str
) -> None:
    words = ["consume", minibroker_topic, "--group", minibroker_group]
    member = subprocess.Popen(
        [sys.executable, "-m", "minibroker", *words, "-b", minibroker.bootstrap_servers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert member.stderr is not None
        assert "partitions 0" in member.stderr.readline()
        options = ("--topic", minibroker_topic, "--to-earliest", "--execute")
        with pytest.raises(CliError, match="if the group has no members, but it is Stable; stop"):
            command("groups", "reset-offsets", minibroker_group, *options)
    finally:
        member.send_signal(2)
        member.communicate()
