from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from minibroker.cli.consume import ConsumeLimits, IntervalTimer, read_format, read_offset
from minibroker.cli.output import ExitCode, InvalidUsage, TooFewMessages
from minibroker.client.consumer import EARLIEST, LATEST, ConsumerRecord
from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.producer import RecordProducer
from minibroker.testing import MiniBroker
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record


@pytest.fixture
def cats(command: Any, minibroker_topic: str) -> str:
    """A topic with one partition and three messages."""
    lines = b"tom:black\ntim:white\nkit:red\n"
    command("produce", minibroker_topic, "--key-separator", ":", stdin=lines)
    return minibroker_topic


def test_messages_are_printed_in_order(command: Any, cats: str) -> None:
    printed = command("consume", cats, "--from-beginning", "--max-messages", "3")
    assert printed.stdout == "black\nwhite\nred\n"


def test_consume_starts_at_the_given_offset(command: Any, cats: str) -> None:
    printed = command("consume", cats, "--partition", "0", "--offset", "1", "--timeout", "0.01")
    assert printed.stdout == "white\nred\n"


def test_consume_starts_after_the_last_message_by_default(command: Any, cats: str) -> None:
    assert command("consume", cats, "--timeout", "0.01").stdout == ""


def test_keys_are_printed_with_format_key_value(command: Any, cats: str) -> None:
    options = ("--from-beginning", "--max-messages", "1", "--format", "key-value")
    assert command("consume", cats, *options).stdout == "tom\tblack\n"


def test_format_json_prints_one_object_per_message(command: Any, minibroker_topic: str) -> None:
    command("produce", minibroker_topic, "v", "--key", "k", "--header", "a=b")
    options = ("--from-beginning", "--max-messages", "1", "--format", "json")
    (line,) = command("consume", minibroker_topic, *options).stdout.splitlines()
    found = json.loads(line)
    assert found.pop("timestamp") > 0
    assert found == {
        "topic": minibroker_topic,
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": "v",
        "headers": [["a", "b"]],
    }


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_of_every_codec_are_consumed(
    command: Any, minibroker_topic: str, codec: str
) -> None:
    command("produce", minibroker_topic, "purr", "--compression", codec)
    options = ("--from-beginning", "--max-messages", "1")
    assert command("consume", minibroker_topic, *options).stdout == "purr\n"


@pytest.mark.parametrize("grouped", [False, True])
def test_timeout_0_prints_available_messages(
    command: Any, cats: str, minibroker_group: str, grouped: bool
) -> None:
    options = ("--group", minibroker_group) if grouped else ()
    printed = command("consume", cats, "--from-beginning", "--timeout", "0", *options)
    assert sorted(printed.stdout.split()) == ["black", "red", "white"]


def test_too_few_messages_exit_with_their_own_code(command: Any, cats: str) -> None:
    with pytest.raises(TooFewMessages, match="only 3 of 4 messages"):
        command("consume", cats, "--from-beginning", "--max-messages", "4", "--timeout", "0.01")


def test_messages_with_acks_0_are_consumed(command: Any, minibroker_topic: str) -> None:
    command("produce", minibroker_topic, "a", "--acks", "0")
    options = ("--from-beginning", "--max-messages", "1")
    assert command("consume", minibroker_topic, *options).stdout == "a\n"


def test_produce_creates_the_topic(
    command: Any, minibroker: MiniBroker, minibroker_group: str
) -> None:
    sent = command("produce", minibroker_group, "a")
    assert sent.stderr == f"sent 1 message to {minibroker_group}\n"
    minibroker.delete_topic(minibroker_group)


def test_missing_topic_is_reported(command: Any, minibroker_group: str) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        command("consume", minibroker_group)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--format", "xml"), "must be one of value, key-value, json"),
        (("--group", "g", "--partition", "0"), "the group decides partitions"),
        (("--from-beginning", "--offset", "1"), "choose one"),
        (("--since", "1m", "--last", "2"), "--since and --last both say where to start"),
        (("--since", "yesterday"), "--since yesterday: must be a time.*; or a duration, e.g. 10m"),
        (("--format", "%x"), "or a template with %s %k"),
        (("--offset", "first"), "a number, earliest or latest"),
        (("--partition", "7"), "has partitions 0 to 0"),
    ],
)
def test_conflicting_options_are_rejected(
    command: Any, minibroker_topic: str, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidUsage, match=words):
        command("consume", minibroker_topic, *options)


def test_read_offset_accepts_names() -> None:
    assert [read_offset(text) for text in (None, "latest", "earliest", "42")] == [
        LATEST,
        LATEST,
        EARLIEST,
        42,
    ]


def test_since_starts_at_the_first_record_of_that_time_or_later(
    command: Any, minibroker_topic: str, minibroker: MiniBroker
) -> None:
    with KafkaClient(minibroker.bootstrap_servers) as client:
        producer = RecordProducer(client, minibroker_topic, acks=-1, compression=Compression.NONE)
        for second in range(1, 4):
            producer.send(Record(timestamp=second * 1000, value=b"%d" % second))
            producer.flush()
    read = ("--max-messages", "2", "--timeout")
    since = command("consume", minibroker_topic, "--since", "1970-01-01T00:00:01.5", *read, "5")
    assert since.stdout.splitlines() == ["2", "3"]
    with pytest.raises(TooFewMessages, match="only 0 of 2"):
        command("consume", minibroker_topic, "--since", "1h", *read, "0.01")


def test_last_starts_before_the_end(command: Any, cats: str) -> None:
    read = ("--max-messages", "1", "--timeout", "5")
    assert command("consume", cats, "--last", "1", *read).stdout == "red\n"
    first = command("consume", cats, "--last", "99", *read, "--json").stdout
    assert json.loads(first)["value"] == "black"


def test_template_shows_parts_of_a_record() -> None:
    headers = (("colour", b"black"), ("none", None))
    record = Record(offset=7, timestamp=9, key=b"tom", value=b"mia\xffow", headers=headers)
    message = ConsumerRecord("cats", 3, record)
    as_text = read_format(r"%t/%p@%o\t%T %k=%s %h 100%% \d\\n")
    assert as_text(message) == "cats/3@7\t9 tom=mia\\xffow colour=black,none= 100% \\d\\n"


def test_limits_count_messages() -> None:
    limits = ConsumeLimits(2, None)
    assert [limits.counted(), limits.counted()] == [False, True]
    assert limits.too_few is None


def test_interval_expires_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("minibroker.cli.consume.time.monotonic", lambda: now)
    every = IntervalTimer(3)
    assert not every.is_due()
    now = 103.0
    assert [every.is_due(), every.is_due()] == [True, False]


def test_sigterm_commits_and_leaves_the_group(
    command: Any, minibroker: MiniBroker, cats: str, minibroker_group: str
) -> None:
    """A message may be printed again if the signal arrives right after its line was written."""
    arguments = ["consume", cats, "--group", minibroker_group, "--from-beginning"]
    process = subprocess.Popen(
        [sys.executable, "-m", "minibroker", *arguments, "-b", minibroker.bootstrap_servers],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["black\n", "white\n", "red\n"]
        command("produce", cats, stdin=b"grey\n")
        assert process.stdout.readline() == "grey\n"
        process.terminate()
        assert process.wait(30) == ExitCode.TERMINATED
    group = minibroker.control.get("v1", "groups", minibroker_group)
    assert (group["state"], group["members"]) == ("Empty", [])
    assert [each["offset"] in {3, 4} for each in group["offsets"]] == [True]
