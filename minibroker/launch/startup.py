"""What a broker needs before its roles start: directories, listening sockets, descriptors.

Owns their creation and removal. It must never know what they are used for. Invariant: nothing is
left behind: the directory of a temporary broker is removed when it ends or, if it was killed, when
the next broker starts. Kafka leaves this to its start scripts.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from minibroker.broker.log.data_directory import (
    DIRECTORY_MODE,
    SECRET_FILE,
    DataDirectoryError,
    check_data_directory,
)
from minibroker.broker.log.errors import free_bytes
from minibroker.broker.network.authenticator import check_authentication
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    NUM_NETWORK_THREADS,
    RUNTIME_PORTABLE,
    SHARDED,
    SINGLE,
    SOCKET_LISTEN_BACKLOG_SIZE,
    SOCKET_RECEIVE_BUFFER_BYTES,
    SOCKET_SEND_BUFFER_BYTES,
    ConfigError,
    Settings,
)
from minibroker.broker.settings.listeners import Listener
from minibroker.runtime.hosts import resolver_name
from minibroker.runtime.system import (
    DirLock,
    DirLockedError,
    can_share_port,
    memory_directory,
    raise_descriptors_max,
    share_port,
)

PREFIX: Final = "minibroker-"
MEMORY_BYTES_MIN: Final = 1024 * 1024
"""Free bytes required to use `memory_directory`; a new broker writes half of that."""

MEMORY_DATA_BYTES_MIN: Final = 128 * 1024 * 1024
"""Free bytes below which data is kept in the default directory if that has more; a container has 64
MB of shared memory unless its start says otherwise.
"""

DATA: Final = "data"
MARK: Final = ".temporary"
"""Only directories with this file are removed: other directories may have such names too."""


DESCRIPTORS_MIN: Final = 64
"""Open files that a process needs to start and serve a few connections and partitions."""

_BUFFERS: Final = {
    socket.SO_SNDBUF: SOCKET_SEND_BUFFER_BYTES,
    socket.SO_RCVBUF: SOCKET_RECEIVE_BUFFER_BYTES,
}


_OTHER_PORT: Final = "choose another address or port (port 0 takes a free one)"
_BIND_ADVICE: Final = {
    errno.EADDRINUSE: "stop the program that uses the port, or choose another one (port 0 takes a "
    "free one)",
    errno.EADDRNOTAVAIL: "this host does not have that address; choose one of its own, or 0.0.0.0 "
    "for all of them",
    errno.EACCES: "ports below 1024 require root or CAP_NET_BIND_SERVICE; choose a higher one",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class StartError(Exception):
    """The broker cannot start; the message says why and how to fix it."""


class BrokerDirectories(NamedTuple):
    """Directories of a broker."""

    home: Path
    """Private to this run: sockets between processes, and the data of a temporary broker."""
    data_dir: Path
    temporary: bool
    lock: DirLock


@contextmanager
def open_directories(
    data_dir: str | None, node_id: int, *, needs_store: bool = False
) -> Iterator[BrokerDirectories]:
    """Create the directories for one run; without ``data_dir`` the data is temporary too.

    Raises ``StartError`` if ``data_dir`` is in use, cannot be written, belongs to another node or
    program, or has lost its config store and ``needs_store`` is set.
    """
    home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_temporary_base(for_data=data_dir is None)))
    try:
        home_lock = DirLock(home, "minibroker")
        (
            home / MARK
        ).touch()  # locked first: from now on, an unlocked directory may be removed by others
        if data_dir is None:
            data = home / DATA
            data.mkdir()
            lock = home_lock
        else:
            data = Path(data_dir)
            lock = _lock_named(data, node_id, needs_store)
        yield BrokerDirectories(home, data, data_dir is None, lock)
        if lock is not home_lock:
            lock.release()
        home_lock.release()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _lock_named(data: Path, node_id: int, needs_store: bool) -> DirLock:
    try:
        data.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        check_data_directory(data, node_id, needs_store=needs_store)
        return DirLock(data, "minibroker")
    except (DataDirectoryError, DirLockedError) as error:
        raise StartError(str(error)) from None
    except FileExistsError:
        raise StartError(
            f"the data directory {data} can't be used: it is a file; choose another one"
        ) from None
    except OSError as error:
        where = "" if error.filename in (None, str(data)) else f"{error.filename}: "
        raise StartError(
            f"the data directory {data} can't be used: {where}{error.strerror}; choose another one"
        ) from None


def broker_secret(directories: BrokerDirectories, size: int) -> bytes:
    """Return a secret of this broker that no client knows; a named data directory keeps it.

    Values derived from it stay the same after a restart. Raises ``StartError``.
    """
    if directories.temporary:
        return os.urandom(size)
    path = directories.data_dir / SECRET_FILE
    try:
        with open(path, "rb", opener=_owner_only) as file:
            if len(kept := file.read(size)) == size:
                return kept
        made = os.urandom(size)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb", opener=_owner_only) as file:
            file.write(made)
        os.replace(temporary, path)
    except OSError as error:
        raise StartError(f"{path} cannot be used: {error.strerror}") from None
    return made


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _temporary_base(*, for_data: bool) -> Path | None:
    """Return the place of temporary directories: in memory if there is room, None for the default.

    Directories of killed brokers are removed first.
    """
    memory = memory_directory()
    if memory is not None and memory.is_dir() and os.access(memory, os.W_OK | os.X_OK):
        remove_abandoned(memory)
        in_memory, elsewhere = map(free_bytes, (str(memory), tempfile.gettempdir()))
        if not for_data or in_memory >= min(MEMORY_DATA_BYTES_MIN, elsewhere):
            if in_memory >= MEMORY_BYTES_MIN:
                return memory
        else:
            sys.stderr.write(
                f"minibroker: {memory} has only {in_memory // 2**20} MiB free, so the "
                f"data is kept in {tempfile.gettempdir()}; --data-dir names another directory\n"
            )
    remove_abandoned(None)
    return None


def remove_abandoned(base: Path | None) -> None:
    """Remove the directories of this user's brokers that were killed with all their processes."""
    for entry in os.scandir(base or tempfile.gettempdir()):
        if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        with suppress(OSError, DirLockedError):
            mine = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if mine and Path(entry.path, MARK).is_file():
                with DirLock(entry.path, "a broker that is tidying up"):
                    shutil.rmtree(entry.path, ignore_errors=True)


def bind(listeners: Sequence[Listener], settings: Settings) -> dict[str, list[socket.socket]]:
    """Bind the sockets of each listener: one, or one for each processor in the sharded mode.

    Accepted connections inherit their buffer sizes. Raises ``StartError``.
    """
    sharded = settings[ACCEPTOR_MODE] == SHARDED
    if sharded and not can_share_port():
        raise StartError(
            f"{ACCEPTOR_MODE.name}={SHARDED} requires Linux, where the kernel distributes "
            f"connections, without {RUNTIME_PORTABLE.name}; use {ACCEPTOR_MODE.name}={SINGLE}"
        )
    count = settings[NUM_NETWORK_THREADS] if sharded else 1
    return {listener.name: _bind_all(listener, settings, count) for listener in listeners}


def _bind_all(listener: Listener, settings: Settings, count: int) -> list[socket.socket]:
    first = _bind(listener, settings)
    bound = [first]
    if count > 1:
        # All sockets of the same user may share such a port, so it is shared after the first one
        # listens: otherwise a second broker would get half of the connections.
        share_port(first)
        shared = listener._replace(port=first.getsockname()[1])
        bound += [_bind(shared, settings, share=True) for _ in range(count - 1)]
    return bound


def _bind(listener: Listener, settings: Settings, *, share: bool = False) -> socket.socket:
    host = resolver_name(listener.host) if listener.host else None
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(f"{listener} can't be used: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            share_port(sock)
        for option, setting in _BUFFERS.items():
            if settings[setting] > 0:
                sock.setsockopt(socket.SOL_SOCKET, option, settings[setting])
        sock.bind(address)
        sock.listen(settings[SOCKET_LISTEN_BACKLOG_SIZE])
    except OSError as error:
        sock.close()
        advice = _BIND_ADVICE.get(error.errno or 0, _OTHER_PORT)
        raise StartError(f"{listener} cannot be bound: {error.strerror}; {advice}") from None
    return sock


def check_identities(settings: Settings) -> None:
    """Check what listeners need for authentication, above all keys. Raises ``StartError``."""
    try:
        check_authentication(settings)
    except ConfigError as error:
        problems = "\n  ".join(error.problems)
        raise StartError(f"these settings cannot be used:\n  {problems}") from None


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the hard limit, which shells set much lower.

    Raises ``StartError`` if the hard limit is too low for a broker.
    """
    limit = raise_descriptors_max(DESCRIPTORS_MIN)
    if limit < DESCRIPTORS_MIN:
        raise StartError(
            f"the limit of open files is {limit}, and a process of the broker needs at least "
            f"{DESCRIPTORS_MIN}: raise it (ulimit -n)"
        )
