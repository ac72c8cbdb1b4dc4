"""The snapshots of a broker: taken, restored and removed by the control API.

Owns the directories of snapshots and the order of all processes' steps. It must never know what a
process saves. Invariant: a snapshot's directory has its final name only if it is complete, so a
snapshot can be used after any process was killed; and while one is taken or restored no client's
request is executed. A return that failed can be repeated. Kafka has no equivalent.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from minibroker.broker.metadata.store.tree import StoreError, UnavailableError
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER, PROCESSOR, WORKER, role_name
from minibroker.broker.process.messages import PauseRequests, RestoreLogs, ResumeRequests, SaveLogs
from minibroker.broker.process.notes import note_state
from minibroker.lab.control.backend import BackendError, Conflict, NotFound, Unavailable
from minibroker.lab.control.schema import Fault, InvalidJson
from minibroker.lab.control.snapshot_shapes import (
    SNAPSHOT_BYTES_MAX,
    SNAPSHOT_NAME,
    SNAPSHOTS_MAX,
    SnapshotCreation,
    SnapshotList,
    SnapshotView,
)

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.log.manager import SavedLogs
    from minibroker.broker.process.environment import Environment

SNAPSHOTS: Final = ".snapshots"
"""Directory of all snapshots, in the data directory, as files can be shared only there."""

_METADATA: Final = "metadata.sqlite"
_DESCRIPTION: Final = "snapshot.json"
_INCOMPLETE: Final = ".incomplete"

_log = EventLog(CONTROLLER)


class Snapshots:
    """Implements ``control.snapshot_shapes.SnapshotsBackend``."""

    def __init__(
        self, env: Environment, scope: ControllerScope, subscribers: MetadataPublisher
    ) -> None:
        self._env = env
        self._scope = scope
        self._subscribers = subscribers
        self._root = env.data_dir / SNAPSHOTS
        self._lock = trio.Lock()
        self._processors = [role_name(PROCESSOR, index) for index in range(env.processors)]
        self._workers = [role_name(WORKER, index) for index in range(env.workers)]

    async def snapshots(self) -> SnapshotList:
        """All snapshots."""
        return SnapshotList(tuple(sorted(self._views(), key=lambda view: view.taken_ms)))

    async def snapshot(self, name: str) -> SnapshotView:
        """One snapshot."""
        return self._view(name)

    async def take_snapshot(self, new: SnapshotCreation) -> SnapshotView:
        """Take a snapshot of everything that was acknowledged so far."""
        async with self._lock:
            views = {view.name: view for view in self._views()}
            name = self._new_name(new.name, views)
            if len(views) >= SNAPSHOTS_MAX:
                raise _too_many(f"there are {SNAPSHOTS_MAX} snapshots")
            incomplete = self._root / (name + _INCOMPLETE)
            try:
                with _storage_errors():
                    shutil.rmtree(incomplete, ignore_errors=True)
                    incomplete.mkdir(parents=True)
                    saved = await self._save(name, incomplete)
                used_bytes = sum(view.size_bytes for view in views.values())
                size_bytes = sum(each.size_bytes for each in saved)
                if used_bytes + size_bytes > SNAPSHOT_BYTES_MAX:
                    raise _too_many(f"all snapshots may have {SNAPSHOT_BYTES_MAX} bytes")
                partitions = sum(each.partitions for each in saved)
                view = SnapshotView(name, self._env.clock.wall_ms(), partitions, size_bytes)
                with _storage_errors():
                    (incomplete / _DESCRIPTION).write_text(json.dumps(view._asdict()))
                    incomplete.rename(self._root / name)
            finally:
                shutil.rmtree(incomplete, ignore_errors=True)
            return view

    async def _save(self, name: str, directory: Path) -> list[SavedLogs]:
        metadata = str(directory / _METADATA)
        async with self._pause(PauseRequests()), self._scope.cluster.saved(metadata):
            answers = await self._ask(self._workers, SaveLogs(name, str(directory)))
        if problems := [answer for answer in answers if isinstance(answer, str)]:
            raise Unavailable("KAFKA_STORAGE_ERROR", "; ".join(problems))
        return answers

    async def restore_snapshot(self, name: str) -> SnapshotView:
        """Return to a snapshot."""
        async with self._lock:
            view = self._view(name)
            directory = self._root / name
            with _storage_errors():
                async with self._pause(PauseRequests(disconnect=True)):
                    updates = await self._scope.cluster.restore(str(directory / _METADATA))
                    await self._scope.publish(updates)
                    answers = await self._ask(self._workers, RestoreLogs(name, str(directory)))
            if problems := list(filter(None, answers)):
                raise Unavailable("KAFKA_STORAGE_ERROR", "; ".join(problems), "Restore it again.")
            _log.info("a snapshot was restored", snapshot=name)
            note_state(self._env, "snapshot", name, None, "restored")
            return view

    async def remove_snapshot(self, name: str) -> None:
        """Remove a snapshot."""
        async with self._lock:
            self._view(name)
            removed = self._root / (name + _INCOMPLETE)
            with _storage_errors():
                (self._root / name).rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    @asynccontextmanager
    async def _pause(self, pause: PauseRequests) -> AsyncIterator[None]:
        """Let no request of a client and no marker of a transaction be executed."""
        try:
            await self._ask(self._processors, pause)
            if len(self._workers) > 1:  # A single one saves or restores all logs in one step.
                await self._ask(self._workers, pause)
            yield
        finally:
            with trio.CancelScope(shield=True):
                names = [*self._processors, *self._workers]
                await self._subscribers.request_all(ResumeRequests(), names)

    async def _ask(self, names: Sequence[str], request: object) -> list[Any]:
        answers = await self._subscribers.request_all(request, names)
        if len(answers) < len(names):
            missing = ", ".join(name for name in names if name not in answers)
            raise Unavailable("BROKER_NOT_AVAILABLE", f"{missing} is being restarted")
        return list(answers.values())

    def _new_name(self, wanted: str | None, used: dict[str, SnapshotView]) -> str:
        if wanted is None:
            numbers = (int(name) for name in used if name.isdecimal())
            return str(max(numbers, default=0) + 1)
        if SNAPSHOT_NAME.fullmatch(wanted) is None:
            raise InvalidJson([Fault("name", "may have letters, digits, `_` and `-` only")])
        if wanted in used:
            raise Conflict("DUPLICATE_SNAPSHOT", f"there is a snapshot {wanted!r}")
        return wanted

    def _view(self, name: str) -> SnapshotView:
        if SNAPSHOT_NAME.fullmatch(name) is not None:
            with suppress(FileNotFoundError):
                return _read_view(self._root / name)
        text = f"there is no snapshot {name!r}"
        raise NotFound("NO_SUCH_SNAPSHOT", text, "GET /v1/snapshots lists all.")

    def _views(self) -> Iterator[SnapshotView]:
        if self._root.is_dir():
            for path in self._root.iterdir():
                if SNAPSHOT_NAME.fullmatch(path.name) is not None:
                    yield _read_view(path)


def _read_view(directory: Path) -> SnapshotView:
    return SnapshotView(**json.loads((directory / _DESCRIPTION).read_bytes()))


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, UnavailableError) as error:
        raise Unavailable("KAFKA_STORAGE_ERROR", str(error)) from None
    except StoreError as error:
        raise Conflict("UNSUPPORTED_STORE", str(error)) from None


def _too_many(text: str) -> BackendError:
    return Conflict("TOO_MANY_SNAPSHOTS", text, "Remove those not needed.")
