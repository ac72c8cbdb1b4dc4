"""What the broker uses of the operating system that another system lacks or does differently.

Owns every call, flag and path that exists on Linux only, each with a portable variant that needs
nothing but what Linux and macOS have in common. It must never import an event loop or know what a
caller is for. Invariants: no other module of the broker names a facility of the table below, so a
port to another system changes this file; both variants satisfy the same tests; all processes of a
broker use the same variants, because they are chosen before the fork.

The portable variants run on every system but Linux, and on Linux with the setting
``runtime.portable``. What they cost, and what else differs on macOS: ``docs/guides/platforms.md``.

==================================  ==============================  ================================
here                                on Linux                        portable
==================================  ==============================  ================================
`edge_triggered_poller`             epoll, edge-triggered, with     none: the task of a connection
                                    ``EPOLLRDHUP``                  reads from it
`send_more`                         ``MSG_MORE``                    no flag: two packets
`send_from_file`                    ``sendfile``                    read and send: on macOS it has
                                                                    other errors and no end of file
`packet_socket_type`                ``SOCK_SEQPACKET``              a stream; `handoff` adds lengths
                                                                    and acknowledges descriptors
`share_port`                        ``SO_REUSEPORT`` distributes    none: on macOS the last socket
                                    connections over the sockets    gets all connections
`nameless_address`                  abstract Unix socket names      a file in a private directory
`is_same_user`                      ``SO_PEERCRED``                 the permissions of that
                                                                    directory
`own_routes`                        ``/proc/net/route``             none is known
`memory_directory`                  ``/dev/shm``                    none: the default directory
`memory_file`                       memfd                           a deleted file, on a disk
`secret_path`                       memfd and ``/proc/self/fd``     a file, which is removed
`reserve_space`                     ``posix_fallocate``             zeros are written
`copy_range`                        ``copy_file_range``, which may  read and write
                                    share blocks of the disk
`free_pages`                        ``MADV_REMOVE``                 none: the pages are kept
`resident_memory`                   ``/proc/self/statm``            ``getrusage``: the largest size
                                                                    so far
`thread_count`                      ``/proc/self/task``             the threads of Python
`set_process_name`                  ``/proc/self/comm``             none
`mask_arguments`                    ``/proc/self/stat`` shows       none: arguments can be read by
                                    their address                   all users
`wait_for_process`                  pidfd                           a look every few milliseconds
`fork_watched`                      pidfd                           a pipe that ends with the child
                                                                    and those that it forked
`end_with_parent`                   ``PR_SET_PDEATHSIG``            none: the supervisor looks twice
                                                                    a second whether it has a parent
`raise_descriptors_max`             up to the hard limit            the hard limit may be unlimited,
                                                                    and more than ``OPEN_MAX`` fail
==================================  ==============================  ================================

Calls that both systems have are made where they are needed.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from types import TracebackType


VARIABLE: Final = "MINIBROKER_RUNTIME_PORTABLE"
"""The setting as an environment variable. Unlike other settings it also applies to test brokers,
and to the processes that start them."""


class _Chosen:
    """The variants that this process uses."""

    is_portable = sys.platform != "linux" or os.environ.get(VARIABLE, "").strip().lower() == "true"


def is_portable() -> bool:
    """Whether this process uses the portable variants."""
    return _Chosen.is_portable


def use_portable_variants() -> None:
    """Use the portable variants in this process and all that it will fork."""
    _Chosen.is_portable = True


# ------------------------------------------------------------------------------------ sockets


class EdgeTriggeredPoller(Protocol):
    """A set of sockets that reports each one once for what has arrived, not until it is read."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""

    def register(self, descriptor: int, events: int, /) -> None:
        """Add a socket."""

    def unregister(self, descriptor: int, /) -> None:
        """Remove a socket, which must be open."""

    def poll(self, timeout: float, events_max: int, /) -> list[tuple[int, int]]:
        """Return descriptors and their events."""

    def close(self) -> None:
        """Close it."""


RECEIVED_EVENTS = 0
"""Events of a socket in an `edge_triggered_poller`: bytes have arrived, or the stream ended."""

ENDED_EVENTS = 0
"""Events of a socket whose peer has disconnected or that has failed."""

_SEND_MORE = 0

if sys.platform == "linux" and not _Chosen.is_portable:
    RECEIVED_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
    ENDED_EVENTS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
    _SEND_MORE = int(socket.MSG_MORE)

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def edge_triggered_poller() -> EdgeTriggeredPoller | None:
    """Return a poller for `RECEIVED_EVENTS`, or None: then each connection's task reads."""
    if sys.platform == "linux" and not is_portable():
        return select.epoll()
    return None


def send_more() -> int:
    """Return a flag of ``send``: further bytes follow at once, so do not send a small packet."""
    return 0 if is_portable() else _SEND_MORE


def send_from_file(sock: socket.socket, descriptor: int, position: int, size: int) -> int:
    """Send up to ``size`` bytes of a file from a position on; return the number, 0 at its end.

    Raises ``OSError`` of the file or the socket.
    """
    if sys.platform == "linux" and not is_portable():
        return os.sendfile(sock.fileno(), descriptor, position, size)
    data = os.pread(descriptor, min(size, _COPY_BYTES), position)
    return sock.send(data) if data else 0


def packet_socket_type() -> int:
    """Return the type of a Unix socket with a connection, an order and boundaries of messages.

    The portable variant is a stream, which has no boundaries.
    """
    if sys.platform == "linux" and not is_portable():
        return socket.SOCK_SEQPACKET
    return socket.SOCK_STREAM


def can_share_port() -> bool:
    """Whether the system distributes connections over the sockets that listen on a port."""
    return not is_portable()


def share_port(sock: socket.socket) -> None:
    """Let other sockets of this user listen on the port, each for its share of the connections."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def is_same_user(connection: socket.socket) -> bool:
    """Whether the user of this process also runs the one at the other end of a Unix socket.

    The portable variant relies on `nameless_address`, which no other user can connect to.
    """
    if sys.platform == "linux" and not is_portable():
        size = _CREDENTIALS.size
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, user, _ = _CREDENTIALS.unpack(raw)
        return bool(user == os.getuid())
    return True


def nameless_address(name: str) -> str:
    """Return an address of a Unix socket that has no file that users see.

    Only `listen_nameless` can listen on it. In the portable variant, it is a path in a directory
    of this user's, and short enough for every system, whatever the name. Raises
    ``PermissionError`` if another user has made that directory.
    """
    if sys.platform == "linux" and not is_portable():
        return f"\0{name}"
    import hashlib
    import tempfile

    directory = Path(tempfile.gettempdir(), f"minibroker.{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{directory} must belong to this user alone (mode 0700)")
    return str(directory / hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGITS])


def listen_nameless(listener: socket.socket, address: str, backlog: int) -> bool:
    """Listen on a `nameless_address`; return False if another process does."""
    if sys.platform == "linux" and not is_portable():
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        listener.listen(backlog)
        return True
    with _alone_at(address):
        if _is_listened_on(address):
            return False
        with suppress(FileNotFoundError):  # That of a process that was killed.
            os.unlink(address)
        listener.bind(address)
        listener.listen(backlog)
        return True


def close_nameless(listener: socket.socket) -> None:
    """Close this process's copy of a listener; remove its address if it was the last one."""
    address = listener.getsockname()
    listener.close()
    if isinstance(address, str) and address:
        with _alone_at(address):
            if not _is_listened_on(address):
                with suppress(FileNotFoundError):
                    os.unlink(address)


@contextmanager
def _alone_at(address: str) -> Iterator[None]:
    """Exclude other processes that begin or cease to listen on addresses in this directory."""
    import fcntl

    lock = os.open(os.path.dirname(address), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_listened_on(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:  # Many wait to be accepted.
            return True
    return True


_LOOPBACK_INTERFACE: Final = "lo"


def own_routes() -> list[tuple[str, str | None]]:
    """Return the routes of this host: network in CIDR notation, and gateway if there is one.

    Empty if they cannot be read.
    """
    routes: list[tuple[str, str | None]] = []
    if is_portable():
        return routes
    with suppress(OSError):
        for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]:
            interface, network, gateway, _, _, _, _, mask, *_ = line.split()
            if interface != _LOOPBACK_INTERFACE:
                via = _ipv4(gateway) if int(gateway, 16) else None
                routes.append((f"{_ipv4(network)}/{_ipv4(mask)}", via))
    with suppress(OSError):
        for line in Path("/proc/net/ipv6_route").read_text(encoding="ascii").splitlines():
            network, prefix, _, _, gateway, *_, interface = line.split()
            if interface != _LOOPBACK_INTERFACE:
                via = _ipv6(gateway) if int(gateway, 16) else None
                routes.append((f"{_ipv6(network)}/{int(prefix, 16)}", via))
    return routes


def _ipv4(digits: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(digits, 16)))


def _ipv6(digits: str) -> str:
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


# --------------------------------------------------------------------------- files and memory

_MEMORY_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - mkdtemp makes what is used of it
_STATM: Final = "/proc/self/statm"
_STATM_MAX_BYTES: Final = 256

_COPY_BYTES: Final = 256 * 1024
"""The most bytes that a portable variant reads and writes at once."""

_NAME_DIGITS: Final = 24
"""A path may have 103 bytes on macOS, and the temporary directory of a user there has about 50."""


def memory_directory() -> Path | None:
    """Return the directory of a file system in memory, which may be missing or full, if any."""
    return None if is_portable() else _MEMORY_DIRECTORY


def memory_file(name: str) -> int:
    """Return a descriptor of a file without a path, in memory if the system has such files."""
    if sys.platform == "linux" and not is_portable() and hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@contextmanager
def secret_path(text: bytes) -> Iterator[str]:
    """Yield a path by which this process can read a secret, for libraries that take only paths.

    The text is never on a disk, except in the portable variant, where a file of mode 0600 contains
    it for the moment: on macOS, a path of a descriptor shares its position, so what was written
    cannot be read.
    """
    if sys.platform == "linux" and not is_portable() and hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("minibroker-key")
        try:
            os.write(descriptor, text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="minibroker-key-", buffering=0) as file:
        file.write(text)
        yield file.name


def reserve_space(descriptor: int, size: int) -> None:
    """Allocate the first ``size`` bytes of a file. Raises ``OSError`` if the disk is full."""
    if sys.platform == "linux" and not is_portable():
        os.posix_fallocate(descriptor, 0, size)
        return
    position = os.fstat(descriptor).st_size
    while position < size:
        position += os.pwrite(descriptor, bytes(min(size - position, _COPY_BYTES)), position)


def copy_range(source: int, target: int, size: int) -> int:
    """Copy up to ``size`` bytes from file to file, from their positions on; return the number."""
    if sys.platform == "linux" and not is_portable():
        return os.copy_file_range(source, target, size)
    copied = memoryview(os.read(source, min(size, _COPY_BYTES)))
    written = 0
    while written < len(copied):
        written += os.write(target, copied[written:])
    return written


def free_pages(mapping: mmap.mmap, start: int, size: int) -> bool:
    """Return pages of a shared mapping to the system, which contain zeros afterwards, if possible.

    Otherwise return False and change nothing.
    """
    if sys.platform == "linux" and not is_portable():
        # Only MADV_REMOVE frees pages of a shared mapping; MADV_DONTNEED only unmaps them here.
        mapping.madvise(mmap.MADV_REMOVE, start, size)
        return True
    return False


def resident_memory() -> Callable[[], int]:
    """Return a function that returns how many bytes of this process are in RAM, shared or not.

    A call takes microseconds. It keeps a descriptor, so that it can be called when none is free. A
    forked process needs its own. The portable variant returns the largest number so far. Replaces
    the JVM's ``java.lang:type=Memory``.
    """
    if is_portable():
        unit = 1 if sys.platform == "darwin" else 1024
        return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def resident_bytes() -> int:
        return int(os.pread(statm, _STATM_MAX_BYTES, 0).split()[1]) * mmap.PAGESIZE

    return resident_bytes


# -------------------------------------------------------------------------------- descriptors

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Of this process, or of the whole system."""

_OPEN_MAX: Final = 10240
"""The most that macOS allows if the hard limit is unlimited."""


def descriptors_max() -> int:
    """Files and sockets that this process may have open; the largest number if unlimited.

    Kafka relies on a limit that is never reached.
    """
    return _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptors_max(least: int) -> int:
    """Raise the limit to the hard limit, unless that is below ``least``; return the hard limit.

    If the system does not allow that, raise it to `_OPEN_MAX`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and _count(hard) >= least:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            if _count(soft) < _OPEN_MAX:
                resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_MAX, hard))
    return _count(hard)


def _count(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def has_descriptor() -> bool:
    """Whether this process can open one more file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in OUT_OF_DESCRIPTORS
    return True


# ---------------------------------------------------------------------------------- processes

_PROCESS_NAME_MAX: Final = 15  # The kernel truncates a name there.
_PR_SET_PDEATHSIG: Final = 1

_ARG_START: Final = 48 - 3
"""Index of ``arg_start`` after the command's name in ``/proc/self/stat`` (proc(5))."""

_MASK: Final = b"*"

_LOOK_S: Final = 0.005
"""How often the portable variant looks whether a process has ended."""


def wait_for_process(pid: int, seconds: float) -> bool:
    """Wait for the end of a process, a child or not; return whether it ended in time.

    In the portable variant a child has ended only once its parent has waited for it.
    """
    if sys.platform == "linux" and not is_portable():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([descriptor], [], [], max(seconds, 0))[0])
        finally:
            os.close(descriptor)
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # The process of another user has its number now.
            return True
        if seconds <= 0:
            return False
        select.select([], [], [], _LOOK_S)
        seconds -= _LOOK_S


def fork_watched() -> tuple[int, int]:
    """Fork; return the child's id and a descriptor that is readable once it has ended.

    In the child, both are 0. In the portable variant the descriptor is readable once the processes
    that the child forked have ended too.
    """
    if sys.platform == "linux" and not is_portable():
        pid = os.fork()
        return (pid, os.pidfd_open(pid)) if pid else (0, 0)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)  # The other end is closed when the process ends.
        return 0, 0
    os.close(writing)
    return pid, reading


def thread_count() -> int:
    """Return the number of threads of this process, including those of libraries.

    The portable variant counts only those that Python knows.
    """
    if is_portable():
        return len(sys._current_frames())  # noqa: SLF001 - documented, in spite of its underscore
    return len(os.listdir("/proc/self/task"))


def set_process_name(name: str) -> None:
    """Set the name of this process for `ps -e` and `top`, if possible."""
    if is_portable():
        return
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(name[:_PROCESS_NAME_MAX])


def end_with_parent() -> Callable[[int], None] | None:
    """Return a function by which a child requests a signal for the end of this process, if any.

    Call this before the fork, so that the child imports nothing.
    """
    if is_portable():
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def request_signal(number: int) -> None:
        prctl(_PR_SET_PDEATHSIG, number)

    return request_signal


def mask_arguments(pairs: Iterable[str]) -> None:
    """Overwrite the value of each ``NAME=VALUE`` in this process's arguments, before any fork.

    Every user of the machine can read them. A masked argument keeps its length, and Python's copy
    does not change. Do nothing if the system does not report the address of the arguments. Kafka
    reads secrets from files or from a ``ConfigProvider``.
    """
    if is_portable():
        return
    import ctypes

    try:
        shown = Path("/proc/self/cmdline").read_bytes()
        status = Path("/proc/self/stat").read_text(encoding="utf-8")
        start = int(status.rpartition(")")[2].split()[_ARG_START])
    except (OSError, ValueError, IndexError):
        return
    if not start:
        return
    for pair in map(os.fsencode, pairs):
        name_bytes = pair.find(b"=") + 1
        at = shown.find(pair)
        while at >= 0:
            ctypes.memset(start + at + name_bytes, _MASK[0], len(pair) - name_bytes)
            at = shown.find(pair, at + len(pair))


# ----------------------- Locks a data directory for one broker, with a file that the kernel unlocks
# It must never know the content of the directory. Invariant: while any process of a broker lives,
# no other broker gets the lock, and the lock file of a dead broker is no obstacle. Kafka's
# `FileLock` on `.lock` in each log directory.
#
# The lock belongs to the open file, which forked children share: a broker whose supervisor was
# killed holds it until its last process has ended.


LOCK_FILE: Final = ".lock"
HOLDER_BYTES_MAX: Final = 1000


class DirLockedError(Exception):
    """Another broker holds the directory; the text names it and says how to continue."""


class DirLock:
    """A lock on directory `path`, acquired at once: `with DirLock(path, "minibroker …"):`.

    `holder` is shown to other brokers, after the process id. Raises `DirLockedError`, or `OSError`
    if the directory cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], holder: str) -> None:
        self._path = Path(path) / LOCK_FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = os.pread(self._fd, HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise DirLockedError(
                f"{path} is in use by {found or 'another process'}: stop it or give another "
                f"directory"
            ) from None
        self.describe(holder)

    def describe(self, holder: str) -> None:
        """Change the text for other brokers, for instance when the address is known."""
        text = f"pid {os.getpid()}, {holder}".encode()[: HOLDER_BYTES_MAX - 1]
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text + b"\n", 0)

    def release(self) -> None:
        """Release the lock. The file stays: removing it would race with a process that opens it."""
        os.ftruncate(self._fd, 0)
        # Explicitly, not only by closing: children may still have the file open.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)

    def __enter__(self) -> DirLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
