"""Features of the cluster: what their levels mean, and which ones are finalized (KIP-584).

Owns the features that have an effect here. It must never know where levels are stored or how they
change. Invariant: every process reads a level from its image through `level`, so all requests after
a change see the same one. Kafka's ``Feature`` and ``TransactionVersion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.settings.persona import Features, Persona, VersionRange


class Feature(NamedTuple):
    """A feature and its supported levels; ``default`` is finalized if nothing else is set."""

    name: str
    lowest: int
    highest: int
    default: int


_NONE: Final[Mapping[str, int]] = {}


class FinalizedLevels(NamedTuple):
    """Finalized levels by feature name, of those that were set; ``epoch`` counts the changes.

    Clients keep the levels with the largest epoch.
    """

    levels: Mapping[str, int] = _NONE
    epoch: int = 0


TRANSACTION_VERSION: Final = Feature("transaction.version", lowest=0, highest=2, default=2)
"""0: without flexible state records, 1: with them, 2: an epoch for each transaction (KIP-890)."""

FEATURES: Final = (TRANSACTION_VERSION,)

DESCRIPTIVE: Final = frozenset({"metadata.version", "kraft.version"})
"""Features of a persona that clients are shown although they have no effect here; others that are
not in `FEATURES` are of protocols that are not served.
"""


def level(finalized: FinalizedLevels, feature: Feature) -> int:
    """The finalized level of a feature, from an image's ``features``."""
    return finalized.levels.get(feature.name, feature.default)


def supported_features(persona: Persona | None) -> tuple[Feature, ...]:
    """Features that have an effect, in the levels that a persona has, too.

    Without a feature a persona works at its lowest level.
    """
    return tuple(
        feature if persona is None else _narrowed(feature, persona) for feature in FEATURES
    )


def _narrowed(feature: Feature, persona: Persona) -> Feature:
    theirs = persona.features
    if theirs is None or feature.name not in theirs.supported:
        return feature._replace(highest=feature.lowest, default=feature.lowest)
    highest = max(min(theirs.supported[feature.name].high, feature.highest), feature.lowest)
    default = min(theirs.finalized.get(feature.name, feature.lowest), highest)
    return feature._replace(highest=highest, default=default)


def with_defaults(finalized: FinalizedLevels, persona: Persona | None) -> FinalizedLevels:
    """Return stored levels as a persona has them: its own where none is set, and none above it."""
    if persona is None:
        return finalized
    levels = {
        feature.name: min(level(finalized, feature), feature.highest)
        for feature in supported_features(persona)
    }
    return finalized._replace(levels=levels)


def shown_features(persona: Persona | None, finalized: FinalizedLevels) -> Features | None:
    """Return the features for ApiVersions; None if it has none."""
    theirs = None if persona is None else persona.features
    if persona is not None and theirs is None:
        return None
    supported: dict[str, VersionRange] = {}
    levels: dict[str, int] = {}
    if theirs is not None:
        supported = {
            name: theirs.supported[name] for name in theirs.supported if name in DESCRIPTIVE
        }
        levels = {name: theirs.finalized[name] for name in theirs.finalized if name in DESCRIPTIVE}
    for feature in supported_features(persona):
        if theirs is None or feature.name in theirs.supported:
            supported[feature.name] = VersionRange(feature.lowest, feature.highest)
            levels[feature.name] = level(finalized, feature)
    return Features(supported, levels, max(finalized.epoch, theirs.epoch if theirs else 0))
