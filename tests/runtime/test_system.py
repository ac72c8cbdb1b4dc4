"""Facilities of the operating system: memory, descriptors, processes and their arguments."""

from __future__ import annotations

import mmap
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from minibroker.runtime import system
from minibroker.runtime.system import (
    PACKET_SOCKET,
    copy_range,
    descriptors_max,
    end_with_parent,
    free_pages,
    has_descriptor,
    memory_file,
    nameless_address,
    open_process,
    path_of,
    peer_user,
    raise_descriptors_max,
    reserve_space,
    resident_memory,
    share_port,
    thread_count,
)

PROGRAM = """
import sys
from pathlib import Path
from minibroker.runtime.system import mask_arguments
mask_arguments(sys.argv[1:3])
print(Path("/proc/self/cmdline").read_bytes().decode().split("\\0")[-6:-1])
print(sys.argv[1:])
"""


def test_memory_that_is_used_is_counted() -> None:
    resident_bytes = resident_memory()
    before = resident_bytes()
    taken = bytearray(b"x" * 50_000_000)
    assert 40_000_000 < resident_bytes() - before < 400_000_000
    assert taken


def test_resident_memory_without_a_free_descriptor_is_read() -> None:
    resident_bytes = resident_memory()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    # Above the highest one in use, so that the test itself can fill the rest.
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        assert resident_bytes() > 0
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Lower this process's limit to the descriptors that are open now."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_descriptors_max_is_the_soft_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert descriptors_max() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert descriptors_max() == sys.maxsize


def test_has_descriptor_is_false_only_at_the_limit() -> None:
    assert has_descriptor()
    with no_descriptor_left():
        assert not has_descriptor()
    assert has_descriptor()


def test_masked_arguments_are_hidden_only_from_the_process_list() -> None:
    arguments = ["pass=wonderländ", "a=p", "--set=pass=wonderländ", "--set=a=p", "kept, open"]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    shown, kept = done.stdout.splitlines()
    mask = "*" * len("wonderländ".encode())
    assert shown == str([f"pass={mask}", "a=*", f"--set=pass={mask}", "--set=a=*", "kept, open"])
    assert kept == str(arguments)


def test_descriptors_max_is_raised_to_the_hard_limit_unless_that_is_too_low() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = (min(before[0], 512), before[1])
    hard = sys.maxsize if before[1] == resource.RLIM_INFINITY else before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, lowered)
    try:
        if before[1] != resource.RLIM_INFINITY:
            assert raise_descriptors_max(before[1] + 1) == hard
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == lowered
        assert raise_descriptors_max(before[0]) == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("has_memfd", [True, False])
def test_memory_file_has_no_name_and_can_be_opened_by_its_path(
    has_memfd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    descriptor = memory_file("secrets")
    try:
        assert not os.get_inheritable(descriptor)
        assert list(tmp_path.iterdir()) == []
        os.write(descriptor, b"key")
        assert Path(path_of(descriptor)).read_bytes() == b"key"
    finally:
        os.close(descriptor)


def test_reserved_space_is_the_size_of_the_file_and_on_the_disk(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        reserve_space(file.fileno(), 100_000)
        status = os.fstat(file.fileno())
    assert status.st_size == 100_000
    assert status.st_blocks * 512 >= 100_000


def test_copy_range_copies_from_the_positions_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    with open(tmp_path / "source", "rb") as source, open(tmp_path / "target", "wb") as target:
        assert copy_range(source.fileno(), target.fileno(), 4) == 4
        assert copy_range(source.fileno(), target.fileno(), 100) == 6
        assert copy_range(source.fileno(), target.fileno(), 100) == 0
    assert (tmp_path / "target").read_bytes() == b"0123456789"


def test_freed_pages_are_zero_and_their_neighbors_stay() -> None:
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as mapping:
        mapping[:] = b"x" * len(mapping)
        free_pages(mapping, mmap.PAGESIZE, mmap.PAGESIZE)
        pages = [mapping[at : at + mmap.PAGESIZE] for at in range(0, len(mapping), mmap.PAGESIZE)]
    assert pages == [byte * mmap.PAGESIZE for byte in (b"x", b"\0", b"x")]


def test_process_descriptor_is_readable_once_the_process_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        descriptor = open_process(child.pid)
        try:
            assert not select.select([descriptor], [], [], 0)[0]
            child.communicate(b"\n")
            assert select.select([descriptor], [], [], 120)[0]
        finally:
            os.close(descriptor)
    with pytest.raises(ProcessLookupError):
        open_process(child.pid)


def test_child_gets_the_signal_when_its_parent_ends() -> None:
    request_signal = end_with_parent()
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        ready, report = os.pipe()
        if not os.fork():
            request_signal(signal.SIGKILL)
            os.write(report, b"x")
            signal.pause()
        os.read(ready, 1)
        os._exit(0)
    os.close(writing)
    os.waitpid(parent, 0)
    readable, _, _ = select.select([reading], [], [], 120)
    assert readable  # The grandchild held the other end until it was killed.
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_threads_of_this_process_are_counted() -> None:
    before, end = thread_count(), threading.Event()
    thread = threading.Thread(target=end.wait)  # noqa: TID251 - a thread to be counted
    thread.start()
    assert thread_count() == before + 1
    end.set()
    thread.join()


def test_nameless_address_is_free_again_after_its_last_socket() -> None:
    address = nameless_address(f"minibroker-test-{os.getpid()}")
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, PACKET_SOCKET) as listener:
            listener.bind(address)
            listener.listen()
            with socket.socket(socket.AF_UNIX, PACKET_SOCKET) as client:
                client.connect(address)


def test_shared_port_can_be_listened_on_twice() -> None:
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        for sock in (first, second):
            share_port(sock)
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.bind(first.getsockname())
        second.listen()
        with pytest.raises(OSError, match="in use"):
            third.bind(first.getsockname())


def test_peer_process_of_another_user_is_rejected() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_user(one) == os.getuid()


LINUX_ONLY = re.compile(
    r"""\bos\.(memfd_create|pidfd_open|copy_file_range|posix_fallocate|eventfd|splice|pipe2|waitid"""
    r"""|sched_\w+|fdatasync|preadv2?|posix_fadvise|setns|unshare)\b"""
    r"""|\bselect\.(epoll|EPOLL\w+|kqueue)\b|\bmmap\.(MADV_|MAP_)\w+|\bresource\.\w+imit\b"""
    r"""|\bsocket\.(SO_REUSEPORT|SO_PEERCRED|SOCK_SEQPACKET|SOCK_CLOEXEC|SOCK_NONBLOCK|MSG_MORE"""
    r"""|MSG_ZEROCOPY|TCP_QUICKACK|TCP_CORK|TCP_USER_TIMEOUT|AF_NETLINK)\b"""
    r"""|\bctypes\.CDLL\b|\bsignal\.(sigtimedwait|sigwaitinfo|SIGRT\w+)|"/(proc|sys|dev/shm)\b"""
)
"""Names that Python has not, or whose effect differs, on macOS."""


def test_no_other_module_names_a_facility_of_linux() -> None:
    product = Path(system.__file__).parents[1]
    modules = set(product.rglob("*.py")) - set((product / "pipeline").rglob("*.py"))
    named = {
        path.relative_to(product).as_posix(): names
        for path in modules
        if (names := [found[0] for found in LINUX_ONLY.finditer(path.read_text("utf-8"))])
    }
    assert set(named) == {"runtime/system.py"}, named
