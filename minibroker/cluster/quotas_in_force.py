"""The quotas that hold now: those of the newest image, over the defaults of the settings.

Owns when the table of quotas is made anew, which takes long if there are many; it must never know
who asks.  The invariant: an image that changes nothing about quotas leaves the table as it is.
Echoes ``ClientQuotaMetadataManager``.
"""

from __future__ import annotations

from typing import Any

from minibroker.cluster.image import CLIENT, USER, Image
from minibroker.config import QUOTA_CONSUMER_DEFAULT, QUOTA_PRODUCER_DEFAULT, Settings
from minibroker.config.types import LONG_MAX
from minibroker.quotas.entity import QuotaType, read_table
from minibroker.quotas.manager import AnyLedger, Quotas


class QuotasInForce:
    """One process's quotas; `follow` every image."""

    def __init__(self, settings: Settings, ledger: AnyLedger) -> None:
        self._defaults = defaults(settings)
        self._configs: Any = None
        self._seen: dict[tuple[str, str], Any] | None = None
        self.quotas = Quotas(ledger)

    def follow(self, image: Image) -> None:
        """From now on the quotas of an image hold."""
        if image.configs is self._configs:
            return
        self._configs = image.configs
        seen = {key: config for key, config in image.configs.items() if key[0] in (USER, CLIENT)}
        if seen != self._seen:
            self._seen = seen
            self.quotas.set_table(read_table(seen, self._defaults))


def defaults(settings: Settings) -> dict[QuotaType, float]:
    """The defaults among the settings."""
    given = {
        QuotaType.PRODUCE: settings[QUOTA_PRODUCER_DEFAULT],
        QuotaType.FETCH: settings[QUOTA_CONSUMER_DEFAULT],
    }
    return {kind: float(value) for kind, value in given.items() if value < LONG_MAX}
