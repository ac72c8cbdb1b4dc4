"""What one broker serves: the APIs with their versions, and what ApiVersions lists.

Owns how a persona narrows the registry. It must never know how a request is answered. Invariant:
without a persona the registry is served as it is; with one, a version is served only if both the
registry and the persona have it. In Kafka: ``ApiVersionManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from minibroker.broker.apis.registry import APIS, advertised
from minibroker.broker.settings.persona_definitions import PERSONA

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ServedApi, ServedVersions
    from minibroker.broker.settings import Settings
    from minibroker.broker.settings.persona import Persona


class Serving(NamedTuple):
    """The served APIs by key, and the versions that ApiVersions lists."""

    apis: Mapping[int, ServedApi]
    advertised: ServedVersions


def serving(settings: Settings) -> Serving:
    """Return what a broker with these settings serves."""
    persona = settings[PERSONA]
    if persona is None:
        return Serving(APIS, advertised(settings))
    apis = narrowed(APIS, persona)
    return Serving(apis, {api.key: api.versions for api in apis.values()})


def served_versions(apis: Mapping[int, ServedApi]) -> dict[int, tuple[int, int]]:
    """The lowest and the highest version of each API that requests may have."""
    return {
        key: (api.versions[0] if api.served_from is None else api.served_from, api.versions[1])
        for key, api in apis.items()
    }


def narrowed(apis: Mapping[int, ServedApi], persona: Persona) -> dict[int, ServedApi]:
    """Return the APIs that a persona has, each in the versions of both."""
    found = {}
    for key, api in apis.items():
        if key not in persona.versions:
            continue
        low, high = api.versions
        listed = max(low, persona.versions[key].low), min(high, persona.versions[key].high)
        served_from = max(listed[0], low if api.served_from is None else api.served_from)
        if served_from <= listed[1]:
            # Versions that are listed but not served have no schema; there may be none of them.
            starts_later = served_from if served_from > listed[0] else None
            found[key] = replace(api, versions=listed, served_from=starts_later)
    return found
