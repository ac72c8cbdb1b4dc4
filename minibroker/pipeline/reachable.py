"""Whether a live broker can be read, found out before Spark is started.

Owns the question, and the words for the answers; the question is asked by minibroker's own command
in a process of its own, as a job can't import what lies above it. It must never know Spark.
Invariant: there is an answer in ``PATIENCE_S``, whatever is or isn't at the other end; no secret is
among the process's arguments. Kafka has no counterpart.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final, NamedTuple

from minibroker.activity.schema import TOPIC
from minibroker.config.activity_definitions import ACTIVITY_ENABLE
from minibroker.pipeline.brokers import OPTION, Broker, in_words
from minibroker.pipeline.errors import BadInput

PATIENCE_S: Final = 45.0
"""The command itself gives up after ten seconds without an answer, at each address it is given."""
_SAYS: Final = "minibroker: "
"""What each line of a command's complaints begins with."""
_ITS_OPTION: Final = "--bootstrap-server"
_NO_TOPIC: Final = "UNKNOWN_TOPIC_OR_PARTITION"


class Topic(NamedTuple):
    """What a broker says of the topic."""

    id: str
    starts: dict[int, int]
    """Of each partition, the first offset that is still there."""


def look_for_activity(broker: Broker) -> Topic:
    """What is there. Raises BadInput if nobody listens, or lets us in, or tells any activity."""
    # As JSON a topic's settings are left out, for which who may read it needs one rule more.
    command = [sys.executable, "-m", "minibroker", "topics", "describe", TOPIC, "--json"]
    command += ["-b", broker.bootstrap]
    if broker.client is not None:
        command += [OPTION, str(broker.client.file)]
    try:
        asked = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInput(why_not(broker, f"no answer in {PATIENCE_S:g} s")) from None
    if asked.returncode:
        raise BadInput(why_not(broker, asked.stderr))
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    return Topic(rows[0]["topic_id"], {row["partition"]: row["start"] for row in rows})


def why_not(broker: Broker, complaint: str) -> str:
    """What a command said that could not ask, in words for who runs a job."""
    if _NO_TOPIC in complaint:
        return (
            f"{broker.bootstrap} has no topic {TOPIC}, so it tells nobody what happens: start the"
            f" broker with --set {ACTIVITY_ENABLE.name}=true"
        )
    said = complaint.strip().removeprefix(_SAYS).replace(_ITS_OPTION, "--from")
    return in_words(said, broker) or said
