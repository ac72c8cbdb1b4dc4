"""Directories that are not left behind, and sockets that say why they can't be had."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from minibroker.broker.log.data_directory import MetaProperties, write_meta_properties
from minibroker.broker.settings import Settings
from minibroker.launch import startup
from minibroker.launch.startup import (
    MARK,
    PREFIX,
    StartError,
    bind,
    broker_secret,
    open_directories,
    raise_descriptor_limit,
    remove_abandoned,
)
from minibroker.runtime.system import DirLock

NODE_ID = 1


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where homes are made in these tests."""
    found = tmp_path / "memory"
    found.mkdir()
    monkeypatch.setattr(startup, "memory_directory", lambda: found)
    return found


def left_in(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def test_temporary_broker_leaves_no_files(base: Path) -> None:
    with open_directories(None, NODE_ID) as made:
        assert made.temporary
        assert made.data_dir.is_dir()
        assert made.home.parent == base
        assert made.home.stat().st_mode & 0o077 == 0
        (made.data_dir / "file").write_text("x")
    assert left_in(base) == []


def test_failed_start_leaves_no_files(base: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_directories(None, NODE_ID):
        raise ZeroDivisionError
    assert left_in(base) == []


def test_named_data_directory_is_kept_and_reusable(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    for _ in range(2):
        with open_directories(str(data), NODE_ID) as made:
            assert (made.data_dir, made.temporary) == (data, False)
            assert data.stat().st_mode & 0o077 == 0
            write_meta_properties(data, MetaProperties("cluster", NODE_ID))
            (data / "kept").write_text("x")
    assert (data / "kept").exists()
    assert left_in(base) == []


def test_open_directories_does_not_change_foreign_directory(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "photos-2024").mkdir(parents=True)
    with pytest.raises(StartError, match="was not created"), open_directories(str(data), NODE_ID):
        pass
    assert left_in(data) == ["photos-2024"]
    assert left_in(base) == []


def test_open_directories_rejects_lost_store_if_needed(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_meta_properties(data, MetaProperties("cluster", NODE_ID))
    with (
        pytest.raises(StartError, match="--recover-topics-from-logs"),
        open_directories(str(data), NODE_ID, needs_store=True),
    ):
        pass
    assert left_in(data) == ["meta.properties"]
    with open_directories(str(data), NODE_ID):
        pass


def test_open_directories_with_link_as_lock_file_leaves_its_target_unchanged(
    base: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_meta_properties(data, MetaProperties("cluster", NODE_ID))
    (tmp_path / "notes").write_text("mine")
    (data / ".lock").symlink_to(tmp_path / "notes")
    with (
        pytest.raises(StartError, match=r"can't be used: .*data/\.lock: .*links"),
        open_directories(str(data), NODE_ID),
    ):
        pass
    assert (tmp_path / "notes").read_text() == "mine"


def test_data_directory_in_use_is_refused_and_its_holder_named(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with open_directories(str(data), NODE_ID) as made:
        made.lock.describe("minibroker on 127.0.0.1:9092")
        with (
            pytest.raises(StartError, match=rf"in use by pid {os.getpid()}, minibroker on 127"),
            open_directories(str(data), NODE_ID),
        ):
            pass
        assert len(left_in(base)) == 1
    assert left_in(base) == []


@pytest.mark.parametrize(
    ("name", "why"), [("file", "it is a file"), ("file/data", "Not a directory")]
)
def test_unusable_data_directory_is_an_error(
    base: Path, tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(StartError, match=f"can't be used: {why}; choose another one"),
        open_directories(str(tmp_path / name), NODE_ID),
    ):
        pass
    assert left_in(base) == []


def left_by(base: Path, name: str) -> Path:
    """A broker's home as a kill leaves it."""
    home = base / f"{PREFIX}{name}"
    (home / "data").mkdir(parents=True)
    (home / MARK).touch()
    return home


def test_directories_of_killed_brokers_are_removed_and_others_stay(base: Path) -> None:
    left_by(base, "dead")
    living, starting, other = left_by(base, "living"), base / f"{PREFIX}starting", base / "other"
    for path in (starting, other):
        path.mkdir()
        (path / "file").write_text("x")
    (base / f"{PREFIX}file").write_text("not a directory")
    (base / f"{PREFIX}link").symlink_to(left_by(base / "other", "of somebody else"))
    with DirLock(living, "alive"):
        remove_abandoned(base)
    names = [living.name, starting.name, other.name, f"{PREFIX}file", f"{PREFIX}link"]
    assert left_in(base) == sorted(names)
    assert (base / f"{PREFIX}link" / MARK).exists()


def test_start_keeps_directories_of_running_brokers(base: Path) -> None:
    left_by(base, "dead")
    with open_directories(None, NODE_ID) as first, open_directories(None, NODE_ID) as second:
        assert left_in(base) == sorted([first.home.name, second.home.name])


def test_default_directory_is_used_without_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "memory_directory", lambda: tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_directories(None, NODE_ID) as made:
        assert made.home.parent == tmp_path


@pytest.mark.parametrize(
    ("in_memory", "elsewhere", "is_in_memory"),
    [(64, 9000, False), (64, 63, True), (128, 9000, True), (0, 9000, False)],
)
def test_data_is_in_shared_memory_unless_the_default_directory_has_more_room(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    in_memory: int,
    elsewhere: int,
    is_in_memory: bool,
) -> None:
    free = {str(base): in_memory, str(tmp_path): elsewhere}
    monkeypatch.setattr(startup, "free_bytes", lambda path: free[path] * 1024 * 1024)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_directories(None, NODE_ID) as made:
        assert made.home.parent == (base if is_in_memory else tmp_path)
    printed = capsys.readouterr().err
    assert printed == "" if is_in_memory else f"{base} has only {in_memory} MiB free" in printed
    with open_directories(str(tmp_path / "named"), NODE_ID) as made:
        assert (made.home.parent == base) == bool(in_memory)


@pytest.fixture
def bound() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def bind_all(text: str, *pairs: str) -> dict[str, list[socket.socket]]:
    settings = Settings.from_sources(pairs=[f"listeners={text}", *pairs])
    return bind(settings.client_listeners, settings)


def bind_one(text: str, *pairs: str) -> socket.socket:
    ((made,),) = bind_all(text, *pairs).values()
    return made


def test_each_listener_gets_a_socket(bound: list[socket.socket]) -> None:
    made = bind_all(
        "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
        "listener.security.protocol.map=OTHER:PLAINTEXT",
    )
    bound.extend(sock for (sock,) in made.values())
    assert list(made) == ["PLAINTEXT", "OTHER"]
    for (sock,) in made.values():
        socket.create_connection(sock.getsockname()).close()


def test_burst_of_connections_waits_in_the_backlog(
    bound: list[socket.socket],
) -> None:
    listener = bind_one("PLAINTEXT://127.0.0.1:0")
    bound.append(listener)
    address = listener.getsockname()
    # No connection is accepted; beyond Kafka's backlog of 50 the system would answer a second
    # later.
    bound.extend(socket.create_connection(address, timeout=0.9) for _ in range(100))


def test_port_in_use_is_an_error_with_advice(bound: list[socket.socket]) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    bound.append(taken)
    port = taken.getsockname()[1]
    with pytest.raises(
        StartError, match=rf"127\.0\.0\.1:{port} cannot be bound: .*choose another one"
    ):
        bind_all(f"PLAINTEXT://127.0.0.1:{port}")


SHARED = ("acceptor.mode=sharded", "num.network.threads=3")


def test_each_processor_that_accepts_has_a_socket_of_its_own_at_one_port(
    bound: list[socket.socket],
) -> None:
    (made,) = bind_all("PLAINTEXT://127.0.0.1:0", *SHARED).values()
    bound.extend(made)
    (address,) = {sock.getsockname() for sock in made}
    bound.extend(socket.create_connection(address) for _ in range(60))
    for sock in made:
        sock.settimeout(60)
        bound.append(sock.accept()[0])  # The kernel deals them out to all.


def test_shared_port_is_not_shared_with_another_broker(bound: list[socket.socket]) -> None:
    (made,) = bind_all("PLAINTEXT://127.0.0.1:0", *SHARED).values()
    bound.extend(made)
    port = made[0].getsockname()[1]
    for pairs in (SHARED, ()):
        with pytest.raises(StartError, match=rf"127\.0\.0\.1:{port} cannot be bound: "):
            bind_all(f"PLAINTEXT://127.0.0.1:{port}", *pairs)
    assert {sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for sock in made} == {1}


def test_port_whose_connections_are_closing_can_be_shared_at_once(
    bound: list[socket.socket],
) -> None:
    first = bind_one("PLAINTEXT://127.0.0.1:0")
    address = first.getsockname()
    client = socket.create_connection(address)
    served, _ = first.accept()
    for each in (served, client, first):  # The side that closes first keeps the port for a while.
        each.close()
    (made,) = bind_all(f"PLAINTEXT://127.0.0.1:{address[1]}", *SHARED).values()
    bound.extend(made)
    assert len(made) == 3


def test_unbindable_host_is_an_error(
    bound: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(StartError, match=r"nowhere.*can't be used: Name or service"):
        bind_all("PLAINTEXT://nowhere:0")


def test_connections_have_the_configured_buffers(bound: list[socket.socket]) -> None:
    made = bind_one(
        "PLAINTEXT://127.0.0.1:0",
        "socket.send.buffer.bytes=50000",
        "socket.receive.buffer.bytes=60000",
    )
    client = socket.create_connection(made.getsockname())
    accepted, _ = made.accept()
    bound += [made, client, accepted]
    # Linux doubles the requested size, for its own bookkeeping.
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000


def test_descriptor_limit_is_raised_to_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = min(before[0], 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_memory_with_too_little_space_is_swept_and_not_used(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by(base, "dead")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(startup, "free_bytes", lambda path: 65536 if path == str(base) else 2**40)
    with open_directories(None, NODE_ID) as made:
        assert made.home.parent == tmp_path
    assert left_in(base) == []


def test_raise_descriptor_limit_that_is_too_low_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (30, 30))
    with pytest.raises(StartError, match=r"limit of open files is 30.*at least 64.*ulimit -n"):
        raise_descriptor_limit()


def test_bind_to_an_address_of_another_host_names_the_cause() -> None:
    settings = Settings.from_sources(pairs=["listeners=PLAINTEXT://192.0.2.1:0"])
    with pytest.raises(StartError, match=r"this host does not have that address; choose one"):
        bind(settings.client_listeners, settings)


def test_secret_of_a_named_directory_stays_the_same_and_is_private(
    base: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with open_directories(str(data), NODE_ID) as made:
        first = broker_secret(made, 32)
    with open_directories(str(data), NODE_ID) as made:
        assert broker_secret(made, 32) == first
    (secret,) = (path for path in data.iterdir() if path.name == ".secret")
    assert secret.stat().st_mode & 0o777 == 0o600


def test_secret_of_a_temporary_broker_is_not_stored(base: Path) -> None:
    with open_directories(None, NODE_ID) as made:
        assert broker_secret(made, 32) != broker_secret(made, 32)
        assert [path.name for path in made.data_dir.iterdir()] == []
