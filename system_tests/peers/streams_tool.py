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

GROUP: Final = "tool"
MEMBERS: Final = ("a", "b")

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
        epoch = _make_group(ask)
        printed: Printed = {}
        for command in WITH_MEMBERS:
            for member in MEMBERS:  # On a busy machine, the commands take longer than a session.
                ask(f"{member} stays for {command}", beat(GROUP, member, epoch), 1)
            printed[command] = _run(broker, tools, command)
        for member in MEMBERS:
            ask(f"{member} left", beat(GROUP, member, -1), 1)
    finally:
        ask.end()
    return printed | {command: _run(broker, tools, command) for command in WITHOUT_MEMBERS}


def _make_group(ask: SendRequest) -> int:
    """Return the epoch of the group's members."""
    ask("made", create(topic("tool-in", 2)), 7)
    records = [Record(at, 1, None, b"v") for at in range(3)]
    ask("produced", produce("tool-in", build_batch(records)), 9)
    topology = word_count(GROUP, "tool-in")
    ask("joined", first(GROUP, "a", topology), 1)
    epoch = ask.until(has_topics, "ready", beat(GROUP, "a", 2), 1).member_epoch
    ask("second joined", first(GROUP, "b", topology), 1)
    kept = ask("revokes", beat(GROUP, "a", epoch), 1).active_tasks
    epoch = ask("revoked", beat(GROUP, "a", epoch, **owned(kept)), 1).member_epoch
    ask("second gets them", beat(GROUP, "b", epoch), 1)
    nodes = [
        node("source", 1, source_topics=["tool-in"], successors=["count"]),
        node("count", 2, stores=["counts"], successors=["sink"]),
        node("sink", 3, sink_topic="tool-out"),
    ]
    ask("described", description(GROUP, "a", 0, nodes), 0)
    options: dict[str, Any] = {"member_id": "a", "generation_id_or_member_epoch": epoch}
    ask("committed", commit(GROUP, "tool-in", 1, **options), 9)
    return int(epoch)


def _run(broker: RunningBroker, tools: KafkaTools, command: str) -> tuple[int, list[str]]:
    done = tools.run(PROGRAM, "--bootstrap-server", broker.bootstrap_servers, *command.split())
    lines = [
        line.replace(broker.bootstrap_servers, "address").split()
        for line in done.lines
        if not line.startswith(("\tat ", "Caused by: "))
    ]
    return done.code, sorted(map(" ".join, lines))
