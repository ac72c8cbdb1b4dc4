"""The I/O worker's part of snapshots of the broker: logs, groups and transactions.

Owns the order of a return: close everything, restore the files, load everything from them. It must
never know other processes, nor metadata. Invariant: a return that failed can be repeated, because
the saved files stay as they are. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.log.errors import LogError
from minibroker.broker.process.messages import PauseRequests, RestoreLogs, ResumeRequests, SaveLogs

if TYPE_CHECKING:
    from minibroker.broker.groups.service import GroupService
    from minibroker.broker.log.manager import LogManager, SavedLogs
    from minibroker.broker.log.replica_manager import ReplicaManager
    from minibroker.broker.transactions.service import TransactionService

SNAPSHOT_REQUESTS: Final = (PauseRequests, ResumeRequests, SaveLogs, RestoreLogs)


class WorkerSnapshots:
    """Saves and restores the state of one worker."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        groups: GroupService,
        transactions: TransactionService,
        *,
        without_cleaning: Callable[[], AbstractAsyncContextManager[object]],
        load: Callable[[], None],
    ) -> None:
        """In the context of ``without_cleaning`` no log is cleaned; ``load`` opens all logs, and
        loads groups and transactions from them.
        """
        self._logs = logs
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._without_cleaning = without_cleaning
        self._load = load

    async def handle(self, request: object) -> Any:
        """Handle a request of the controller."""
        if isinstance(request, PauseRequests):
            return await self._transactions.hold_markers()
        if isinstance(request, ResumeRequests):
            return self._transactions.release_markers()
        if isinstance(request, SaveLogs):
            return self._save(request)
        if isinstance(request, RestoreLogs):
            return await self._restore(request)
        raise TypeError(f"a worker cannot handle {type(request).__name__}")

    def _save(self, request: SaveLogs) -> SavedLogs | str:
        try:
            return self._logs.save(Path(request.directory), request.snapshot)
        except LogError as error:
            return error.text
        except OSError as error:
            return f"{error}"

    async def _restore(self, request: RestoreLogs) -> str:
        async with self._without_cleaning():
            self._groups.reset(keep_logs=True)
            self._transactions.reset(keep_logs=True)
            try:
                self._logs.restore(Path(request.directory), request.snapshot)
            except OSError as error:
                return f"{error}"
            finally:
                self._replicas.forget_all()
                self._load()
            self._logs.note_saved(request.snapshot)
        return ""
