"""The setting that makes the broker answer as one of another version or maker.

Owns the declaration, how a name becomes a persona, and the settings that follow from it. It must
never know what this broker serves. Invariant: a value that was given takes precedence over one that
follows from the persona. Not a Kafka setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.settings.persona import DELAYED, Persona
from minibroker.broker.settings.quota_definitions import DELAY, MUTE, QUOTA_THROTTLE_MODE
from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.similar_names import similar_names
from minibroker.broker.settings.types import BadValueError, Kind, SettingType, optional
from minibroker.lab.personas.persona import NAMES, load

_SIMILARITY_MIN: Final = 0.6
_SIMILAR_MAX: Final = 3


def _parse_persona(name: str) -> Persona:
    if name in NAMES:
        return load(name)
    nearest = similar_names(name, NAMES, count_max=_SIMILAR_MAX, similarity_min=_SIMILARITY_MIN)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    raise BadValueError(f"must be one of {', '.join(NAMES)}{hint}")


PERSONA = setting(
    "persona",
    optional(SettingType(Kind.STRING, "persona", _parse_persona, str)),
    default=None,
    default_text="none: everything that this broker serves",
    doc="The broker whose versions, features and answers clients get, e.g. `kafka-2.8`; see "
    "[personas](personas.md). A persona only narrows what this broker serves. Not a Kafka setting.",
)


def implied_settings(persona: Persona) -> Mapping[str, str]:
    """Return the values of settings that follow from a persona, by name."""
    mode = DELAY if persona.behaviour.throttled == DELAYED else MUTE
    return {**persona.defaults, QUOTA_THROTTLE_MODE.name: mode}
