"""Checks whether a live broker can be read, before Spark starts.

Owns this check and its error messages; it runs minibroker's own command in a separate process,
because a job can't import the layers above it. It must never know Spark. Invariant: the check ends
within ``PATIENCE_S``, whatever the peer does; no secret is among the process's arguments. Kafka has
no counterpart.
"""

from __future__ import annotations

import json
import subprocess
from typing import Final, NamedTuple

from minibroker.broker.settings.definitions import ACTIVITY_ENABLE
from minibroker.lab.activity.schema import TOPIC
from minibroker.pipeline.cluster_access import OPTION, ClusterAccess, explain
from minibroker.pipeline.errors import BadInput
from minibroker.python_command import python_command

PATIENCE_S: Final = 45.0
"""The command itself gives up after ten seconds without an answer from an address."""
_ERROR_PREFIX: Final = "minibroker: "
"""The prefix of each line of the command's errors."""
_COMMAND_OPTION: Final = "--bootstrap-server"
_NO_TOPIC: Final = "UNKNOWN_TOPIC_OR_PARTITION"


class ReachableTopic(NamedTuple):
    """The broker's description of the topic."""

    id: str
    starts: dict[int, int]
    """The first available offset of each partition."""


def find_activity_topic(broker: ClusterAccess) -> ReachableTopic:
    """Describe the activity topic. Raises BadInput if it can't be reached, read or found."""
    # JSON output omits the topic's configs, which need an additional permission.
    program = "from minibroker.cli import main; main()"
    command = python_command(program, "topics", "describe", TOPIC, "--json")
    command += ["-b", broker.bootstrap]
    if broker.client is not None:
        command += [OPTION, str(broker.client.file)]
    try:
        asked = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInput(failure_reason(broker, f"no answer in {PATIENCE_S:g} s")) from None
    if asked.returncode:
        raise BadInput(failure_reason(broker, asked.stderr))
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    return ReachableTopic(rows[0]["topic_id"], {row["partition"]: row["start"] for row in rows})


def failure_reason(broker: ClusterAccess, complaint: str) -> str:
    """Explain the command's error in terms of the job's options."""
    if _NO_TOPIC in complaint:
        return (
            f"{broker.bootstrap} has no topic {TOPIC}, because it records no activity: start the"
            f" broker with --set {ACTIVITY_ENABLE.name}=true"
        )
    message = complaint.strip().removeprefix(_ERROR_PREFIX).replace(_COMMAND_OPTION, "--from")
    return explain(message, broker) or message
