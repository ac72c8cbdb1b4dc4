"""The settings of the broker that a fork server keeps ready in advance.

Pure: requests in, settings out. It must never know processes. Invariant: two brokers with such
settings can run at the same time, and one that was started earlier differs in nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.settings.definitions import PERSONA
from minibroker.broker.settings.setting import BROKER_SETTINGS
from minibroker.broker.settings.types import Kind

NUMBERS: Final = frozenset({Kind.BOOLEAN, Kind.INT, Kind.SHORT, Kind.LONG, Kind.DOUBLE})


class SpareRule:
    """Decides by the requests for brokers of one test each; shared brokers do not count."""

    def __init__(self) -> None:
        self.settings: Mapping[str, str] | None = None
        """Those of the broker to keep ready, or None for no broker."""
        self._last: Mapping[str, str] | None = None

    def requested(self, settings: Mapping[str, str]) -> None:
        """Note a request: the second one in a row with the same settings makes a third likely."""
        if settings == self._last and are_repeatable(settings):
            self.settings = settings
        self._last = settings

    def failed(self) -> None:
        """Note that the broker that was kept ready ended: the next request gets its own."""
        self.settings = self._last = None


def are_repeatable(settings: Mapping[str, str]) -> bool:
    """Whether no setting names a file, an address or a server, which may change or be in use."""
    return all(
        name == PERSONA.name
        or ((known := BROKER_SETTINGS.get(name)) is not None and known.type.kind in NUMBERS)
        for name in settings
    )
