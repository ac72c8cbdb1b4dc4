"""Facilities of the operating system: memory, descriptors, processes and their arguments.

One suite for both variants: what they promise is the same, except where a test says otherwise.
"""

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
    HOLDER_BYTES_MAX,
    LOCK_FILE,
    RECEIVED_EVENTS,
    DirLock,
    DirLockedError,
    can_share_port,
    close_nameless,
    copy_range,
    descriptors_max,
    edge_triggered_poller,
    end_with_parent,
    fork_watched,
    free_pages,
    has_descriptor,
    is_same_user,
    listen_nameless,
    memory_directory,
    memory_file,
    nameless_address,
    own_routes,
    packet_socket_type,
    raise_descriptors_max,
    reserve_space,
    resident_memory,
    secret_path,
    send_from_file,
    send_more,
    share_port,
    thread_count,
    wait_for_process,
)

pytestmark = pytest.mark.usefixtures("variant")

PROGRAM = """
import sys
from pathlib import Path
from minibroker.runtime.system import mask_arguments, use_portable_variants
if {is_portable}:
    use_portable_variants()
mask_arguments(sys.argv[1:3])
print(Path("/proc/self/cmdline").read_bytes().decode().split("\\0")[-6:-1])
print(sys.argv[1:])
"""


def test_memory_that_is_used_is_counted() -> None:
    child = os.fork()  # The largest size so far is a new one there.
    if not child:
        resident_bytes = resident_memory()
        before = resident_bytes()
        taken = bytearray(b"x" * 50_000_000)
        is_counted = 40_000_000 < resident_bytes() - before < 400_000_000
        os._exit(0 if is_counted and taken else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
        [sys.executable, "-c", PROGRAM.format(is_portable=system.is_portable()), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    shown, kept = done.stdout.splitlines()
    if system.is_portable():
        assert shown == str(arguments)
        return
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
def test_memory_file_has_no_name_and_secret_can_be_read_by_its_path(
    has_memfd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    descriptor = memory_file("counters")
    try:
        assert not os.get_inheritable(descriptor)
        assert list(tmp_path.iterdir()) == []
        os.write(descriptor, b"counters")
        assert os.pread(descriptor, 100, 0) == b"counters"
    finally:
        os.close(descriptor)
    with secret_path(b"key") as path:
        assert Path(path).read_bytes() == b"key"
        files = list(tmp_path.iterdir())
        assert [str(file) for file in files] == (
            [path] if system.is_portable() or not has_memfd else []
        )
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert list(tmp_path.iterdir()) == []
    assert not Path(path).exists()


def test_reserved_space_is_the_size_of_the_file_and_on_the_disk(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        reserve_space(file.fileno(), 100_000)
        status = os.fstat(file.fileno())
    assert status.st_size == 100_000
    assert status.st_blocks * 512 >= 100_000


def test_reserved_space_keeps_what_the_file_contains(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"records")
    with open(tmp_path / "file", "r+b") as file:
        reserve_space(file.fileno(), 600_000)
        reserve_space(file.fileno(), 10)
        assert file.tell() == 0
    assert (tmp_path / "file").read_bytes() == b"records" + bytes(600_000 - 7)


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
        is_free = free_pages(mapping, mmap.PAGESIZE, mmap.PAGESIZE)
        pages = [mapping[at : at + mmap.PAGESIZE] for at in range(0, len(mapping), mmap.PAGESIZE)]
    assert is_free is not system.is_portable()
    freed = b"\0" if is_free else b"x"
    assert pages == [byte * mmap.PAGESIZE for byte in (b"x", freed, b"x")]


def test_process_that_is_no_child_is_waited_for() -> None:
    lifeline, pipe_end = os.pipe()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(pipe_end)
        grandchild = os.fork()
        if grandchild:
            os.write(writing, grandchild.to_bytes(4, "big"))
            os._exit(0)
        os.read(lifeline, 1)
        os._exit(0)
    os.waitpid(child, 0)
    pid = int.from_bytes(os.read(reading, 4), "big")
    assert not wait_for_process(pid, 0)
    assert not wait_for_process(pid, 0.02)
    os.close(pipe_end)
    assert wait_for_process(pid, 120)
    assert wait_for_process(pid, 0)
    for descriptor in (lifeline, reading, writing):
        os.close(descriptor)


def test_process_that_has_ended_before_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not wait_for_process(child.pid, 0)
        child.communicate(b"\n")
    assert wait_for_process(child.pid, 0)
    assert wait_for_process(child.pid, -1)


def test_descriptor_of_a_forked_child_is_readable_once_it_has_ended() -> None:
    lifeline, pipe_end = os.pipe()
    pid, watch = fork_watched()
    if not pid:
        assert watch == 0
        os.close(pipe_end)
        os.read(lifeline, 1)
        os._exit(7)
    assert not select.select([watch], [], [], 0)[0]
    os.close(pipe_end)
    assert select.select([watch], [], [], 120)[0]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    for descriptor in (watch, lifeline):
        os.close(descriptor)


def test_child_gets_the_signal_when_its_parent_ends() -> None:
    request_signal = end_with_parent()
    if request_signal is None:
        assert system.is_portable()
        return
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


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory of this process, with a short path."""
    with tempfile.TemporaryDirectory() as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


@pytest.fixture
def address(directory: Path) -> str:
    assert directory.is_dir()
    return nameless_address(f"minibroker-test-{os.getpid()}")


def listening_at(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, packet_socket_type())
    assert listen_nameless(listener, address, 5)
    return listener


def connects_to(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, packet_socket_type()) as client:
        try:
            client.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def test_nameless_address_is_free_again_after_its_last_socket(
    address: str, directory: Path
) -> None:
    for _ in range(2):
        assert not connects_to(address)
        with listening_at(address) as listener:
            assert connects_to(address)
            close_nameless(listener)
    assert [path for path in directory.rglob("*") if not path.is_dir()] == []


def test_only_one_process_listens_on_a_nameless_address(address: str) -> None:
    with listening_at(address) as first:
        with socket.socket(socket.AF_UNIX, packet_socket_type()) as second:
            assert not listen_nameless(second, address, 5)
        assert connects_to(address)
        copy = first.dup()
        close_nameless(first)
        assert connects_to(address)  # As another process has the listener.
        close_nameless(copy)
        assert not connects_to(address)


def test_nameless_address_of_a_killed_process_is_taken_over(address: str) -> None:
    listening_at(address).close()  # As the system does.
    assert not connects_to(address)
    with listening_at(address) as listener:
        assert connects_to(address)
        close_nameless(listener)


def test_nameless_address_is_short_and_reachable_by_one_user_only(tmp_path: Path) -> None:
    address = nameless_address("minibroker-" + "x" * 60)
    assert len(address) < 104
    if system.is_portable():
        assert Path(address).parent.stat().st_mode & 0o777 == 0o700
        (tmp_path / f"minibroker.{os.getuid()}").mkdir(mode=0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path))
            with pytest.raises(PermissionError, match="must belong to this user alone"):
                nameless_address("any")


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


def test_peer_process_of_another_user_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert is_same_user(one)
        monkeypatch.setattr(os, "getuid", lambda: -2)
        assert is_same_user(one) is system.is_portable()  # There, the directory keeps others away.


def test_part_of_a_file_is_sent_up_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    one, other = socket.socketpair()
    with one, other, open(tmp_path / "file", "rb") as file:
        assert send_from_file(one, file.fileno(), 2, 3) == 3
        assert send_from_file(one, file.fileno(), 8, 100) == 2
        assert send_from_file(one, file.fileno(), 10, 100) == 0
        assert other.recv(100) == b"23489"
        assert file.tell() == 0
        one.setblocking(False)

        def fill() -> None:
            while send_from_file(one, file.fileno(), 0, 10):
                pass

        with pytest.raises(BlockingIOError):
            fill()


def test_facilities_that_macos_lacks_are_those_of_linux_only() -> None:
    poller = edge_triggered_poller()
    absent = {
        "poller": poller is None,
        "flag": send_more() == 0,
        "packets": packet_socket_type() == socket.SOCK_STREAM,
        "shared port": not can_share_port(),
        "routes": own_routes() == [],
        "memory": memory_directory() is None,
    }
    if poller is not None:
        assert RECEIVED_EVENTS
        poller.close()
        absent["routes"] = False  # A container may have none.
    assert set(absent.values()) == {system.is_portable()}, absent


@pytest.mark.parametrize("value", ["true", "TRUE", "false", "", None])
def test_variable_chooses_the_portable_variants(value: str | None) -> None:
    environment = {name: text for name, text in os.environ.items() if name != system.VARIABLE}
    if value is not None:
        environment[system.VARIABLE] = value
    program = "from minibroker.runtime import system; print(system.is_portable())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{value in ('true', 'TRUE')}\n"


LINUX_ONLY = re.compile(
    r"""\bos\.(memfd_create|pidfd_open|copy_file_range|posix_fallocate|eventfd\w*|splice|pipe2|waitid"""
    r"""|sched_\w+|fdatasync|preadv2?|posix_fadvise|setns|unshare|sendfile|timerfd_\w+|getrandom"""
    r"""|\w+xattr|O_(DIRECT|PATH|TMPFILE|NOATIME))\b"""
    r"""|\bselect\.(epoll|EPOLL\w+|kqueue|POLLRDHUP)\b|\bmmap\.(MADV_|MAP_)\w+"""
    r"""|\bresource\.\w+imit\b|\bresource\.RUSAGE_THREAD\b|\bfcntl\.F_(OFD_|FULLFSYNC|\w*PIPE_SZ)\w*"""
    r"""|\btime\.CLOCK_(BOOTTIME|TAI|\w+_COARSE)\b|\bsys\.platform\b"""
    r"""|\bsocket\.(SO_REUSEPORT|SO_PEERCRED|SOCK_SEQPACKET|SOCK_CLOEXEC|SOCK_NONBLOCK|MSG_MORE"""
    r"""|MSG_ZEROCOPY|MSG_CMSG_CLOEXEC|TCP_QUICKACK|TCP_CORK|TCP_USER_TIMEOUT|TCP_INFO|AF_NETLINK"""
    r"""|SO_INCOMING_CPU|IP_TRANSPARENT)\b"""
    r"""|\bctypes\.CDLL\b|\bsignal\.(sigtimedwait|sigwaitinfo|SIGRT\w+|pidfd_\w+)"""
    r"""|["'/](proc|sys|dev/(shm|fd))/|"/(proc|sys|dev/shm|dev/fd)\b|\b(bind|connect)\(f?["']\\0"""
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
    assert named.pop("platforms.py") == ["sys.platform"] * 2
    assert set(named) == {"runtime/system.py"}, named


@pytest.mark.parametrize(
    "line",
    [
        "os.memfd_create(",
        "os.sched_getaffinity(0)",
        "select.epoll()",
        "signal.pidfd_send_signal(",
        "socket.TCP_INFO",
        "fcntl.F_OFD_SETLK",
        'open("/proc/self/stat")',
        'Path("/dev/shm")',
        'sock.bind("\\0",',
        "if sys.platform ==",
    ],
)
def test_facility_of_linux_is_found(line: str) -> None:
    assert LINUX_ONLY.search(line)


# --------------------------- The lock of a data directory, between open files and between processes


def test_second_lock_is_rejected_with_its_holder(tmp_path: Path) -> None:
    with DirLock(tmp_path, "starting") as lock:
        lock.describe("minibroker on 127.0.0.1:9092")
        with pytest.raises(DirLockedError) as refused:
            DirLock(tmp_path, "another")
    text = str(refused.value)
    assert str(tmp_path) in text
    assert f"pid {os.getpid()}, minibroker on 127.0.0.1:9092" in text
    assert "give another directory" in text
    DirLock(tmp_path, "next").release()


def test_lock_file_of_dead_process_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("pid 1, long gone, with a rather long description\n")
    with DirLock(tmp_path, "new"):
        assert (tmp_path / LOCK_FILE).read_text() == f"pid {os.getpid()}, new\n"


@pytest.mark.linux
def test_lock_of_killed_holder_is_released_by_its_last_child(tmp_path: Path) -> None:
    end_read, end_write = os.pipe()
    pid_read, pid_write = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            DirLock(tmp_path, "holder")
            if os.fork() == 0:
                os.close(end_write)
                os.write(pid_write, str(os.getpid()).encode())
                os.read(end_read, 1)
        finally:
            os._exit(0)
    os.waitpid(holder, 0)
    last_child = os.pidfd_open(int(os.read(pid_read, 100)))
    with pytest.raises(DirLockedError, match=f"pid {holder}, holder"):
        DirLock(tmp_path, "too early")
    os.close(end_write)
    assert select.select([last_child], [], [], 120)[0]
    DirLock(tmp_path, "next").release()
    for fd in (end_read, pid_read, pid_write, last_child):
        os.close(fd)


def test_long_description_is_cut(tmp_path: Path) -> None:
    with DirLock(tmp_path, "x" * 5000):
        assert (tmp_path / LOCK_FILE).stat().st_size == HOLDER_BYTES_MAX


def test_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirLock(tmp_path / "missing", "x")


def test_lock_file_that_is_a_link_is_rejected_and_its_target_unchanged(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "notes")
    with pytest.raises(OSError, match="symbolic links"):
        DirLock(tmp_path, "x")
    assert (tmp_path / "notes").read_text() == "mine"
