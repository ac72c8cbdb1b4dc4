"""Facts about Redpanda from its public source: the versions in the headers of its handlers.

Owns which text is searched, and the behaviour that was read in the source by a person, with the
place of each. Invariant: versions come from the text alone. The binary is not started.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any, Final

from minibroker.broker.settings.persona import ALL, MUTED
from minibroker_protocol.registry import ApiKey

HANDLERS: Final = "src/v/kafka/server/handlers"
_HANDLER: Final = re.compile(r"(?:single_stage|two_phase)_handler<\s*(\w+)_api,\s*(\d+),\s*(\d+)")

BEHAVIOUR: Final = {
    "cluster_id_prefix": "redpanda.",  # handlers/metadata.cc
    "new_topic_error": 0,  # handlers/metadata.cc waits for the topic
    "throttled": MUTED,  # connection_context.cc delays the reading of the next request
    "unknown_api_versions_lists": ALL,  # handlers/api_versions.cc
    "unknown_producer_error": 0,  # cluster/producer_state.cc
}


def read_source(repository: str, tag: str) -> dict[str, Any]:
    """Return the facts of a tag of Redpanda's repository."""
    command = ["git", "-C", repository, "grep", "-h", "-A1", "_handler", tag, "--", HANDLERS]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    versions = {
        int(ApiKey[name.upper()]): [int(low), int(high)]
        for name, low, high in _HANDLER.findall(text)
    }
    return {
        "source": f"Redpanda {tag.removeprefix('v')}, read in its source; not started",
        "versions": {str(key): versions[key] for key in sorted(versions)},
        "features": None,
        "behaviour": BEHAVIOUR,
        "defaults": {},
    }
