"""What a test can do with a broker or a proxy once it is ready: addresses, rules, journal.

Owns the handles of the control API, which are created at their first use, because their modules
take milliseconds to import. It must never start or stop anything. Invariant: a handle belongs to
the process that is ready now; after its end there is none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from minibroker.testing.control import Control
    from minibroker.testing.faults import Faults
    from minibroker.testing.journal import RecordedJournal


class Controlled(ABC):
    """The base class of `MiniBroker` and `MiniProxy`, as a context manager."""

    _what: ClassVar[str]

    def __init__(self, *, guarded: bool = False) -> None:
        self._guarded = guarded
        """Whether other processes use it, so that calls which affect them are errors."""
        self._ready: dict[str, Any] = {}
        self._control: Control | None = None
        self._faults: Faults | None = None
        self._journal: RecordedJournal | None = None

    @abstractmethod
    def start(self) -> Self:
        """Start, and wait until clients can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and wait until nothing is left; a second call does nothing."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for any Kafka client."""
        return str(self._ready_value("bootstrap_servers"))

    @property
    def control_url(self) -> str:
        """The HTTP control API."""
        return str(self._ready_value("control_url"))

    @property
    def control(self) -> Control:
        """Calls to the control API that have no method here."""
        if self._control is None:
            from minibroker.testing.control import Control

            self._control = Control(self.control_url)
        return self._control

    @property
    def faults(self) -> Faults:
        """Rules that make it misbehave, e.g. ``broker.faults.add("disconnect")``."""
        if self._faults is None:
            from minibroker.testing.faults import Faults

            self._faults = Faults(self.control_url, self.control, guarded=self._guarded)
        return self._faults

    @property
    def journal(self) -> RecordedJournal:
        """What happened: ``with broker.journal as journal: ...; journal.assert_happened(...)``."""
        if self._journal is None:
            from minibroker.testing.journal import RecordedJournal

            self._journal = RecordedJournal(self.control_url, self.control, guarded=self._guarded)
        return self._journal

    def _ready_value(self, key: str) -> object:
        if not self._ready:
            raise RuntimeError(
                f"the {self._what} is not running: use it as a context manager, or start()"
            )
        return self._ready[key]

    def _forget_ready(self) -> None:
        """Drop the addresses and handles of a process that ends."""
        if self._control is not None:
            self._control.close()
        self._control = self._faults = self._journal = None
        self._ready = {}
