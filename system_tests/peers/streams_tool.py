"""kafka-streams-groups.sh on a group of two members, and after they have left."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.records import Record, build_batch
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.peers.conversation import ConversationRun, SendRequest
from system_tests.peers.groups import commit
from system_tests.peers.records import produce
from system_tests.peers.streams_groups import (
    beat,
    description,
    first,
    has_topics,
    node,
    owned,
    word_count,
)
from system_tests.peers.topics import create, topic

PROGRAM: Final = "org.apache.kafka.tools.streams.StreamsGroupCommand"

WITH_MEMBERS: Final = (
    "--list --state stable",
    "--describe --group tool",
    "--describe --group tool --offsets --verbose",
    "--describe --group tool --members --verbose",
    "--describe --group tool --state --verbose",
    "--describe --group tool --topology",
    "--describe --group tool-none",
    "--delete --group tool",
    "--reset-offsets --group tool --to-earliest --all-input-topics --dry-run",
    "--delete-offsets --group tool --input-topic tool-in",
)

WITHOUT_MEMBERS: Final = (
    "--describe --group tool --state",
    "--reset-offsets --group tool --to-latest --all-input-topics --execute",
    "--delete-offsets --group tool --input-topic tool-in",
    "--delete --group tool",
    "--list",
)

Printed = dict[str, tuple[int, list[str]]]
"""Exit codes and what was printed, by command."""


def use_tool(broker: RunningBroker, tools: KafkaTools) -> Printed:
    """Run the commands for a group that is created and left in the meantime."""
    ask = ConversationRun(broker)
    try:
        _make_group(ask)
        printed = _run(broker, tools, WITH_MEMBERS)
        for member in ("a", "b"):
            ask(f"{member} left", beat("tool", member, -1), 1)
    finally:
        ask.end()
    return printed | _run(broker, tools, WITHOUT_MEMBERS)


def _make_group(ask: SendRequest) -> None:
    ask("made", create(topic("tool-in", 2)), 7)
    records = [Record(at, 1, None, b"v") for at in range(3)]
    ask("produced", produce("tool-in", build_batch(records)), 9)
    topology = word_count("tool", "tool-in")
    ask("joined", first("tool", "a", topology), 1)
    epoch = ask.until(has_topics, "ready", beat("tool", "a", 2), 1).member_epoch
    ask("second joined", first("tool", "b", topology), 1)
    kept = ask("revokes", beat("tool", "a", epoch), 1).active_tasks
    epoch = ask("revoked", beat("tool", "a", epoch, **owned(kept)), 1).member_epoch
    ask("second gets them", beat("tool", "b", epoch), 1)
    nodes = [
        node("source", 1, source_topics=["tool-in"], successors=["count"]),
        node("count", 2, stores=["counts"], successors=["sink"]),
        node("sink", 3, sink_topic="tool-out"),
    ]
    ask("described", description("tool", "a", 0, nodes), 0)
    options: dict[str, Any] = {"member_id": "a", "generation_id_or_member_epoch": epoch}
    ask("committed", commit("tool", "tool-in", 1, **options), 9)


def _run(broker: RunningBroker, tools: KafkaTools, commands: tuple[str, ...]) -> Printed:
    printed: Printed = {}
    for command in commands:
        done = tools.run(PROGRAM, "--bootstrap-server", broker.bootstrap_servers, *command.split())
        lines = [
            line.replace(broker.bootstrap_servers, "address").split()
            for line in done.lines
            if not line.startswith(("\tat ", "Caused by: "))
        ]
        printed[command] = done.code, sorted(map(" ".join, lines))
    return printed
