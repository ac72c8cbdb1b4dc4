"""Snapshots in the control API: take them, return to them, remove them.

Owns their records, their directories, and the order of all processes' steps. It must never know
what a process saves. Invariant: a snapshot's directory has its final name only if it is complete,
so a snapshot can be used after any process was killed; and while one is taken or restored no
client's request is executed. A return that failed can be repeated. Kafka has no equivalent.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import trio

from minibroker.broker.metadata.store.tree import StoreError, UnavailableError
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER, note_state
from minibroker.broker.process.messages import PauseRequests, RestoreLogs, ResumeRequests, SaveLogs
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable
from minibroker.lab.schema import Doc, Fault, InvalidJson, Length

if TYPE_CHECKING:
    from minibroker.broker.log.replica_manager import SavedLogs
    from minibroker.lab.control.broker import ControlledBroker

SNAPSHOTS: Final = ".snapshots"
"""Directory of all snapshots, in the data directory, as files can be shared only there."""

SNAPSHOTS_MAX: Final = 100
"""Snapshots of one broker."""

SNAPSHOT_BYTES_MAX: Final = 4 * 1024**3
"""Bytes of records in all snapshots of one broker."""

SNAPSHOT_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")


_METADATA: Final = "metadata.sqlite"
_DESCRIPTION: Final = "snapshot.json"
_INCOMPLETE: Final = ".incomplete"

_log = EventLog(CONTROLLER)


class SnapshotCreation(NamedTuple):
    """A snapshot to take."""

    name: Annotated[
        str | None,
        Length(1, 64),
        Doc("Its name: letters, digits, `_` and `-`. By default a number."),
    ] = None


class SnapshotView(NamedTuple):
    """A snapshot of all topics, records, groups, transactions, configs, users, quotas and ACLs."""

    name: Annotated[str, Doc("Its name, or a number.")]
    taken_ms: Annotated[int, Doc("When it was taken: epoch milliseconds of the broker's clock.")]
    partitions: Annotated[int, Doc("Partitions with records or settings on disk.")]
    size_bytes: Annotated[int, Doc("Bytes of their records.")]


class SnapshotList(NamedTuple):
    """All snapshots, the oldest first."""

    snapshots: tuple[SnapshotView, ...]


SNAPSHOT_OPERATIONS: Final = Operations()
_NO_SNAPSHOT: Final = {404: "There is no snapshot with this name."}


@SNAPSHOT_OPERATIONS.add("GET", "/v1/snapshots")
async def list_snapshots(broker: ControlledBroker) -> SnapshotList:
    """List all snapshots, the oldest first."""
    return SnapshotList(tuple(sorted(_views(broker), key=lambda view: view.taken_ms)))


@SNAPSHOT_OPERATIONS.add("GET", "/v1/snapshots/{name}", errors=_NO_SNAPSHOT)
async def get_snapshot(broker: ControlledBroker, name: str) -> SnapshotView:
    """Return a snapshot."""
    if SNAPSHOT_NAME.fullmatch(name) is not None:
        with suppress(FileNotFoundError):
            return _read_view(_root(broker) / name)
    text = f"there is no snapshot {name!r}"
    raise NotFound("NO_SUCH_SNAPSHOT", text, "GET /v1/snapshots lists all.")


class ChangeLock:
    """Lets one snapshot at a time be taken, restored or removed, or records be appended."""

    def __init__(self, _: ControlledBroker) -> None:
        self.lock: Final = trio.Lock()


@SNAPSHOT_OPERATIONS.add(
    "POST",
    "/v1/snapshots",
    status=201,
    errors={
        409: "There is a snapshot with this name, or there are too many.",
        **UNAVAILABLE,
    },
    example={"name": "prepared"},
)
async def take_snapshot(broker: ControlledBroker, new: SnapshotCreation) -> SnapshotView:
    """Take a snapshot of everything that was acknowledged so far."""
    async with broker.state(ChangeLock).lock:
        views = {view.name: view for view in _views(broker)}
        name = _new_name(new.name, views)
        if len(views) >= SNAPSHOTS_MAX:
            raise _too_many(f"there are {SNAPSHOTS_MAX} snapshots")
        incomplete = _root(broker) / (name + _INCOMPLETE)
        try:
            with _storage_errors():
                shutil.rmtree(incomplete, ignore_errors=True)
                incomplete.mkdir(parents=True)
                saved = await _save(broker, name, incomplete)
            used_bytes = sum(view.size_bytes for view in views.values())
            size_bytes = sum(each.size_bytes for each in saved)
            if used_bytes + size_bytes > SNAPSHOT_BYTES_MAX:
                raise _too_many(f"all snapshots may have {SNAPSHOT_BYTES_MAX} bytes")
            partitions = sum(each.partitions for each in saved)
            view = SnapshotView(name, broker.env.clock.wall_ms(), partitions, size_bytes)
            with _storage_errors():
                (incomplete / _DESCRIPTION).write_text(json.dumps(view._asdict()))
                incomplete.rename(_root(broker) / name)
        finally:
            shutil.rmtree(incomplete, ignore_errors=True)
        return view


async def _save(broker: ControlledBroker, name: str, directory: Path) -> list[SavedLogs]:
    metadata = str(directory / _METADATA)
    async with _paused(broker, PauseRequests()), broker.scope.cluster.saved(metadata):
        answers = await _request(broker, broker.workers, SaveLogs(name, str(directory)))
    if problems := [answer for answer in answers if isinstance(answer, str)]:
        raise Unavailable("KAFKA_STORAGE_ERROR", "; ".join(problems))
    return answers


@SNAPSHOT_OPERATIONS.add(
    "POST", "/v1/snapshots/{name}/restore", errors={**_NO_SNAPSHOT, **UNAVAILABLE}
)
async def restore_snapshot(broker: ControlledBroker, name: str) -> SnapshotView:
    """Return the broker to a snapshot; connections with a request in flight are closed."""
    async with broker.state(ChangeLock).lock:
        view = await get_snapshot(broker, name)
        directory = _root(broker) / name
        with _storage_errors():
            async with _paused(broker, PauseRequests(disconnect=True)):
                updates = await broker.scope.cluster.restore(str(directory / _METADATA))
                await broker.scope.publish(updates)
                request = RestoreLogs(name, str(directory))
                answers = await _request(broker, broker.workers, request)
        if problems := list(filter(None, answers)):
            raise Unavailable("KAFKA_STORAGE_ERROR", "; ".join(problems), "Restore it again.")
        _log.info("a snapshot was restored", snapshot=name)
        note_state(broker.env, "snapshot", name, None, "restored")
        return view


@SNAPSHOT_OPERATIONS.add("DELETE", "/v1/snapshots/{name}", errors={**_NO_SNAPSHOT, **UNAVAILABLE})
async def remove_snapshot(broker: ControlledBroker, name: str) -> None:
    """Remove a snapshot."""
    async with broker.state(ChangeLock).lock:
        await get_snapshot(broker, name)
        removed = _root(broker) / (name + _INCOMPLETE)
        with _storage_errors():
            (_root(broker) / name).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


@asynccontextmanager
async def _paused(broker: ControlledBroker, pause: PauseRequests) -> AsyncIterator[None]:
    """Let no request of a client and no marker of a transaction be executed."""
    try:
        await _request(broker, broker.processors, pause)
        if len(broker.workers) > 1:  # A single one saves or restores all logs in one step.
            await _request(broker, broker.workers, pause)
        yield
    finally:
        with trio.CancelScope(shield=True):
            names = [*broker.processors, *broker.workers]
            await broker.publisher.request_all(ResumeRequests(), names)


async def _request(broker: ControlledBroker, names: Sequence[str], request: object) -> list[Any]:
    answers = await broker.publisher.request_all(request, names)
    if len(answers) < len(names):
        missing = ", ".join(name for name in names if name not in answers)
        raise Unavailable("BROKER_NOT_AVAILABLE", f"{missing} is being restarted")
    return list(answers.values())


def _new_name(wanted: str | None, used: dict[str, SnapshotView]) -> str:
    if wanted is None:
        numbers = (int(name) for name in used if name.isdecimal())
        return str(max(numbers, default=0) + 1)
    if SNAPSHOT_NAME.fullmatch(wanted) is None:
        raise InvalidJson([Fault("name", "may have letters, digits, `_` and `-` only")])
    if wanted in used:
        raise Conflict("DUPLICATE_SNAPSHOT", f"there is a snapshot {wanted!r}")
    return wanted


def _root(broker: ControlledBroker) -> Path:
    return broker.env.data_dir / SNAPSHOTS


def _views(broker: ControlledBroker) -> Iterator[SnapshotView]:
    root = _root(broker)
    if root.is_dir():
        for path in root.iterdir():
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


def _too_many(text: str) -> ApiError:
    return Conflict("TOO_MANY_SNAPSHOTS", text, "Remove those not needed.")
