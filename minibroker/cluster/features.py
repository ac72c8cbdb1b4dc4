"""Features of the cluster: what their levels mean, and which ones are finalized (KIP-584).

Owns the features that have an effect here. It must never know where levels are stored or how they
change. Invariant: every process reads a level from its image through `level`, so all requests after
a change see the same one. Kafka's ``Feature`` and ``TransactionVersion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


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


def level(finalized: FinalizedLevels, feature: Feature) -> int:
    """The finalized level of a feature, from an image's ``features``."""
    return finalized.levels.get(feature.name, feature.default)
