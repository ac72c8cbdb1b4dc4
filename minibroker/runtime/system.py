"""What the broker uses of the operating system that another system lacks or does differently.

Owns every call, flag and path that exists on Linux only. It must never import an event loop or know
what a caller is for. Invariant: no other module of the broker names a facility of the table below,
so a port to another system changes this file. Only Linux is supported and tested.

==================================  ==============================  ================================
here                                on Linux                        on macOS
==================================  ==============================  ================================
`edge_triggered_poller`             epoll, edge-triggered, with     no epoll: kqueue, with
                                    ``EPOLLRDHUP``                  ``EV_CLEAR`` and ``EV_EOF``
`SEND_MORE`                         ``MSG_MORE``                    no flag: ``TCP_NOPUSH`` on the
                                                                    socket, or two packets
`PACKET_SOCKET`                     ``SOCK_SEQPACKET``              not for Unix sockets: a stream
                                                                    with lengths, as in `channel`
`share_port`                        ``SO_REUSEPORT`` distributes    the option exists and does not
                                    connections over the sockets    distribute
`peer_user`                         ``SO_PEERCRED``                 ``LOCAL_PEERCRED``
`nameless_address`                  abstract Unix socket names      none: a file, to be removed
`own_routes`                        ``/proc/net/route``             a routing socket; until then, no
                                                                    route is known
`MEMORY_DIRECTORY`                  ``/dev/shm``                    none: the default directory
`memory_file`                       memfd                           none: a deleted file, on a disk
`path_of`                           ``/proc/self/fd``               ``/dev/fd``
`reserve_space`                     ``posix_fallocate``             none: ``F_PREALLOCATE``
`copy_range`                        ``copy_file_range``, which may  none: ``clonefile``, or read and
                                    share blocks of the disk        write
`free_pages`                        ``MADV_REMOVE``                 none for shared mappings: keep
                                                                    them
`resident_memory`                   ``/proc/self/statm``            ``task_info``
`thread_count`                      ``/proc/self/task``             ``task_threads``
`set_process_name`                  ``/proc/self/comm``             none for ``ps``
`mask_arguments`                    ``/proc/self/stat`` shows       ``KERN_PROCARGS2`` shows the
                                    their address                   arguments, not their address
`open_process`                      pidfd                           kqueue, ``EVFILT_PROC``
`end_with_parent`                   ``PR_SET_PDEATHSIG``            none: watch a pipe
`raise_descriptors_max`             up to the hard limit            the hard limit is unlimited, and
                                                                    more than ``OPEN_MAX`` fails
==================================  ==============================  ================================

Calls that both systems have are made where they are needed. A port has to know of these:

- ``sendfile``, ``FIONREAD``, ``SO_RCVLOWAT``, ``flock``, ``lockf``, ``pwritev``: called alike.
- ``fsync`` writes to the drive on Linux; on macOS only ``F_FULLFSYNC`` empties the drive's cache.
- ``SCM_RIGHTS`` (`handoff`): on macOS a descriptor that its sender closes before it was received
  may be lost, so the receiver has to acknowledge it.
- A process forks without ``exec`` (`supervisor`, the fork server for tests): on macOS, system
  libraries such as those of name resolution may fail in the child.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

# ------------------------------------------------------------------------------------ sockets

RECEIVED_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
"""Events of a socket in an `edge_triggered_poller`: bytes have arrived, or the stream ended."""

ENDED_EVENTS: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""Events of a socket whose peer has disconnected or that has failed."""

edge_triggered_poller = select.epoll
"""A set of sockets that reports each one once for what has arrived, not until it is read."""

SEND_MORE: Final = socket.MSG_MORE
"""Flag of ``send``: further bytes follow at once, so do not send a small packet."""

PACKET_SOCKET: Final = socket.SOCK_SEQPACKET
"""Type of a Unix socket with a connection, an order and the boundaries of messages."""

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def share_port(sock: socket.socket) -> None:
    """Let other sockets of this user listen on the port, each for its share of the connections."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return int(user)


def nameless_address(name: str) -> str:
    """Return an address of a Unix socket without a file, which ends with its last socket."""
    return f"\0{name}"


_LOOPBACK_INTERFACE: Final = "lo"


def own_routes() -> list[tuple[str, str | None]]:
    """Return the routes of this host: network in CIDR notation, and gateway if there is one.

    Empty if they cannot be read.
    """
    routes: list[tuple[str, str | None]] = []
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

MEMORY_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - mkdtemp makes what is used of it
"""A file system in memory, which may be missing or full."""

_STATM: Final = "/proc/self/statm"
_STATM_MAX_BYTES: Final = 256


def memory_file(name: str) -> int:
    """Return a descriptor of a file in memory, or of a deleted file if the system has no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def path_of(descriptor: int) -> str:
    """Return a path by which this process can open the file of a descriptor."""
    return f"/proc/self/fd/{descriptor}"


def reserve_space(descriptor: int, size: int) -> None:
    """Allocate the first ``size`` bytes of a file. Raises ``OSError`` if the disk is full."""
    os.posix_fallocate(descriptor, 0, size)


def copy_range(source: int, target: int, size: int) -> int:
    """Copy up to ``size`` bytes from file to file, from their positions on; return the number."""
    return os.copy_file_range(source, target, size)


def free_pages(mapping: mmap.mmap, start: int, size: int) -> None:
    """Return pages of a shared mapping to the system; they contain zeros afterwards."""
    # Only MADV_REMOVE frees pages of a shared mapping; MADV_DONTNEED only unmaps them here.
    mapping.madvise(mmap.MADV_REMOVE, start, size)


def resident_memory() -> Callable[[], int]:
    """Return a function that returns how many bytes of this process are in RAM, shared or not.

    A call takes microseconds. It keeps a descriptor, so that it can be called when none is free. A
    forked process needs its own. Replaces the JVM's ``java.lang:type=Memory``.
    """
    statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)

    def resident_bytes() -> int:
        return int(os.pread(statm, _STATM_MAX_BYTES, 0).split()[1]) * mmap.PAGESIZE

    return resident_bytes


# -------------------------------------------------------------------------------- descriptors

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Of this process, or of the whole system."""


def descriptors_max() -> int:
    """Files and sockets that this process may have open; the largest number if unlimited.

    Kafka relies on a limit that is never reached.
    """
    return _count(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptors_max(least: int) -> int:
    """Raise the limit to the hard limit, unless that is below ``least``; return the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and _count(hard) >= least:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
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


def open_process(pid: int) -> int:
    """Return a descriptor that is readable once the process, a child or not, has ended.

    Raises ``ProcessLookupError``.
    """
    return os.pidfd_open(pid)


def thread_count() -> int:
    """Return the number of threads of this process, including those of libraries."""
    return len(os.listdir("/proc/self/task"))


def set_process_name(name: str) -> None:
    """Set the name of this process for `ps -e` and `top`, if possible."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(name[:_PROCESS_NAME_MAX])


def end_with_parent() -> Callable[[int], None]:
    """Return a function by which a child requests a signal for the end of this process.

    Call this before the fork, so that the child imports nothing.
    """
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
