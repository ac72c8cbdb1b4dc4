"""A persona: the APIs, features and answers of one broker version, which narrow what is served.

Owns the form of the facts. It must never know a particular persona, nor what this broker serves:
the layers above serve the intersection. Invariant: a persona is complete and consistent, so its
readers check nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

ALL, OWN, NONE = "all", "own", "none"
LISTED_WITH_ERROR: Final = (ALL, OWN, NONE)
"""What a response to an unknown version of ApiVersions lists: all APIs, ApiVersions, nothing."""

DELAYED, MUTED = "delayed", "muted"
THROTTLED: Final = (DELAYED, MUTED)
"""Whether a throttled response comes late, or at once from a connection that is muted then."""


class VersionRange(NamedTuple):
    """Lowest and highest version, or level of a feature."""

    low: int
    high: int


class Features(NamedTuple):
    """Supported ranges, and finalized levels with their epoch."""

    supported: Mapping[str, VersionRange]
    finalized: Mapping[str, int]
    epoch: int


class Behaviour(NamedTuple):
    """Answers that do not follow from version numbers; an error code of 0 is none."""

    unknown_api_versions_lists: str
    """One of ``LISTED_WITH_ERROR``."""
    throttled: str
    """One of ``THROTTLED``."""
    new_topic_error: int
    """Error of a topic in the Metadata response to the request that creates it."""
    unknown_producer_error: int
    """Error of a batch of an unknown producer whose sequence number is not 0."""
    cluster_id_prefix: str
    """Start of a generated cluster id."""


class Persona(NamedTuple):
    """The facts about one broker."""

    name: str
    source: str
    """The broker that was started, or the source text that was read."""
    versions: Mapping[int, VersionRange]
    """Versions that ApiVersions lists, by API key."""
    features: Features | None
    """None if ApiVersions has no features in any version."""
    behaviour: Behaviour
    defaults: Mapping[str, str]
    """Defaults of settings that differ from those of the newest Kafka."""

    def __str__(self) -> str:
        return self.name
