"""Effective quotas: those of the latest image on top of the defaults of the settings.

Owns when the table of quotas is rebuilt, which takes long if there are many. It must never know its
readers. Invariant: an image that changes no quotas keeps the table. Kafka's
``ClientQuotaMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.metadata.image import CLIENT, EMPTY, USER, Image
from minibroker.broker.quotas.entity import QuotaTable
from minibroker.broker.quotas.manager import AnyLedger, ClientQuotaManager
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType
from minibroker.broker.settings import Settings
from minibroker.broker.settings.types import LONG_MAX


class EffectiveQuotas:
    """Quotas of one process; call `follow` with every new image."""

    def __init__(self, settings: Settings, ledger: AnyLedger) -> None:
        self._configs: Mapping[tuple[str, str], Mapping[str, str]] = {}
        self.quotas = ClientQuotaManager(ledger)
        self.quotas.set_table(QuotaTable(defaults=defaults(settings)))

    def follow(self, image: Image) -> None:
        """Apply the quotas of a new image."""
        before, self._configs = self._configs, image.configs
        if before is self._configs:
            return
        # An unchanged config is the same object in the next image.
        changed = {
            key: config
            for key, config in image.configs.items()
            if key[0] in (USER, CLIENT) and before.get(key) is not config
        }
        changed.update(
            {key: EMPTY for key in before if key[0] in (USER, CLIENT) and key not in image.configs}
        )
        if changed:
            self.quotas.set_table(self.quotas.table.with_configs(changed))


def defaults(settings: Settings) -> dict[QuotaType, float]:
    """Return the default quotas from the settings."""
    settings_given = {
        kind: settings.value_at(kind.row.default_setting, LONG_MAX)
        for kind in CLIENT_QUOTA_TYPES
        if kind.row.default_setting
    }
    return {kind: float(value) for kind, value in settings_given.items() if value < LONG_MAX}
