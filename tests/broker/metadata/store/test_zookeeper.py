"""The ZooKeeper store without a server; with a server, see ``system_tests/zookeeper``."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo import exceptions as zk
from kazoo.protocol.connection import AUTH_XID
from kazoo.protocol.serialization import int_struct, write_buffer, write_string

from minibroker.broker.metadata.store import zookeeper
from minibroker.broker.metadata.store.tree import (
    NODE_MAX_BYTES,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Result,
    Set,
    StoreError,
    StoreEvent,
    StoreEventKind,
    TooLargeError,
)
from minibroker.broker.metadata.store.zookeeper import (
    AddWatch,
    ConnectionAttempts,
    FoundNode,
    Tree,
    ZooKeeperAccess,
    ZooKeeperStore,
    access_from,
    acl_of,
    close_previous_session,
    explain_unavailable,
    failed_operation_error,
    find_outcome,
    load_session,
    make_client,
    receive_watch_events,
    save_session,
    to_store_error,
)
from minibroker.broker.security.handshakes import Pem
from minibroker.broker.settings import Settings
from minibroker.broker.settings.setting import parse_connect_string

# -------------------------- The set-up of kazoo: settings, readable certificates, and ACLs of nodes


CONNECT = parse_connect_string("127.0.0.1:1")


def access(*pairs: str) -> ZooKeeperAccess | None:
    return access_from(Settings.from_sources(pairs=pairs))


def test_without_servers_there_is_no_access() -> None:
    assert access("zookeeper.session.timeout.ms=5000") is None


def test_settings_become_access() -> None:
    found = access(
        "zookeeper.connect=a:1,b:2/c",
        "zookeeper.session.timeout.ms=5000",
        "zookeeper.digest.username=us",
        "zookeeper.digest.password=secret",
        "zookeeper.set.acl=true",
        "zookeeper.ssl.client.enable=true",
        "zookeeper.ssl.truststore.location=/t.pem",
        "zookeeper.ssl.endpoint.identification.algorithm=",
    )
    connect = parse_connect_string("a:1,b:2/c")
    tls = Pem(checks_host=False, truststore="/t.pem")
    assert found == ZooKeeperAccess(connect, 5.0, 5.0, ("us", "secret"), protect=True, tls=tls)


def test_patience_can_differ_from_the_session() -> None:
    found = access("zookeeper.connect=a", "zookeeper.connection.timeout.ms=200")
    assert found is not None
    assert (found.session_timeout_s, found.patience_s) == (18.0, 0.2)


def test_client_gets_hosts_and_digest_without_chroot() -> None:
    tls = Pem(checks_host=True)
    wanted = ZooKeeperAccess(parse_connect_string("a:1,b:2/c"), 5.0, 1.0, ("us", "pw:x"), tls=tls)
    client, _ = make_client(wanted, (7, b"p" * 16))
    assert client.hosts == [("a", 1), ("b", 2)]
    assert client.chroot == ""
    assert client.auth_data == {("digest", "us:pw:x")}


@pytest.mark.parametrize(
    ("tls", "named"),
    [
        (Pem(True, truststore="no such file"), "zookeeper.ssl.truststore.location"),
        (Pem(True, keystore="no such file"), "zookeeper.ssl.keystore.location"),
    ],
)
def test_certificates_that_cannot_be_read_are_named(tls: Pem, named: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no such file: {named}"):
        make_client(ZooKeeperAccess(CONNECT, 5.0, 1.0, tls=tls))
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    if tls.truststore is None:
        tls = tls._replace(keystore=str(wrong))
    else:
        tls = tls._replace(truststore=str(wrong))
    with pytest.raises(StoreError, match=named):
        make_client(ZooKeeperAccess(CONNECT, 5.0, 1.0, tls=tls))


def test_tls_problem_is_kept_until_next_connection_attempt() -> None:
    errors: list[Exception | None] = [
        _certificate_error(62, "Hostname mismatch."),
        _certificate_error(20, "unable to get local issuer certificate"),
        ssl.SSLError(1, "wrong version number"),
        ConnectionRefusedError(),
        None,
    ]

    class Handler:
        def create_connection(self, **_asked: object) -> None:
            if (error := errors.pop(0)) is not None:
                raise error

    handler, messages = Handler(), []
    attempts = ConnectionAttempts(handler, None)
    while errors:
        with suppress(OSError):
            handler.create_connection(hostname="a")
        messages.append(explain_unavailable(ZooKeeperAccess(CONNECT, 5.0, 1.0), attempts))
    named, trusted, spoken, *others = messages
    assert "Hostname mismatch. Use a host name in zookeeper.connect that its certificate" in named
    assert "is not trusted (unable to get local issuer certificate)" in trusted
    assert "the port in zookeeper.connect is that of a TLS listener" in spoken
    assert all("no ZooKeeper answered at " in text for text in others)


def test_socket_is_closed_after_failed_tls_handshake() -> None:
    client, server = socket.socketpair()
    server.sendall(b"not TLS at all")

    class Handler:
        def create_connection(self, **_asked: object) -> socket.socket:
            return client

    handler = Handler()
    attempts = ConnectionAttempts(handler, ssl.create_default_context())
    with server:
        with pytest.raises(ssl.SSLError):
            handler.create_connection(hostname="a")
        with suppress(ConnectionResetError):
            while server.recv(1000):  # the client's hello, then the end of the connection
                pass
    assert client.fileno() == -1
    assert "wrong version number" in attempts.tls_problem


def _certificate_error(code: int, text: str) -> Exception:
    error = ssl.SSLCertVerificationError(1, text)
    error.verify_code, error.verify_message = code, text
    return error


def rights(protect: bool, path: str) -> list[tuple[str, int]]:
    acl = acl_of(ZooKeeperAccess(CONNECT, 5.0, 1.0, protect=protect), path)
    return [(entry.id.scheme, entry.perms) for entry in acl]


def test_node_acls_depend_on_digest_and_path() -> None:
    everything, read = 31, 1
    assert rights(False, "/brokers/ids/1") == [("world", everything)]
    assert rights(True, "/brokers/ids/1") == [("auth", everything), ("world", read)]
    assert rights(True, "/config/users-to-be") == [("auth", everything), ("world", read)]
    for private in ("/config/users", "/config/users/x", "/config/brokers/1"):
        assert rights(True, private) == [("auth", everything)]


def test_watch_events_are_delivered_by_kind() -> None:
    heard: list[StoreEvent] = []
    client, _ = make_client(ZooKeeperAccess(CONNECT, 5.0, 1.0))
    receive_watch_events(client, heard.append)
    for number in (1, 2, 3, 4):
        messages = int_struct.pack(number) + int_struct.pack(3) + write_string(f"/a/{number}")
        client._connection._read_watch_event(messages, 0)
    assert heard == [
        StoreEvent(StoreEventKind.CREATED, "/a/1"),
        StoreEvent(StoreEventKind.DELETED, "/a/2"),
        StoreEvent(StoreEventKind.CHANGED, "/a/3"),
    ]


def test_add_watch_request_has_zookeeper_encoding() -> None:
    assert AddWatch.type == 106
    assert AddWatch("/a").serialize() == b"\0\0\0\2/a" + b"\0\0\0\1"


@pytest.mark.parametrize("digest", [None, ("us", "secret")])
def test_server_that_does_not_confirm_session_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, digest: tuple[str, str] | None
) -> None:
    monkeypatch.setattr(zookeeper, "SESSION_RESPONSE_S", 0.2)
    confirmation = int_struct.pack(0) + int_struct.pack(60_000) + bytes(8) + write_buffer(bytes(16))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        port = listener.getsockname()[1]
        connect = parse_connect_string(f"127.0.0.1:{port}")
        client, _ = make_client(ZooKeeperAccess(connect, 60.0, 60.0, digest))
        connected = client.start_async()
        sockets = [listener.accept()[0]]  # The first connection gets no response.
        while not connected.wait(0):
            sockets.append(listener.accept()[0])
            with suppress(OSError):
                sockets[-1].sendall(int_struct.pack(len(confirmation)) + confirmation)
                if digest is not None:  # Its header: the number of such requests, no error.
                    authenticated = int_struct.pack(AUTH_XID) + bytes(8) + int_struct.pack(0)
                    sockets[-1].sendall(int_struct.pack(len(authenticated)) + authenticated)
            connected.wait(1)
        client._stopped.set()  # The server would not answer a request to close.
        for each in sockets:
            each.close()
        assert client._connection.connection_stopped.wait(20)
        client.handler.stop()
        client.close()


def test_successful_transaction_yields_no_error() -> None:
    assert failed_operation_error([Create("/a")], ["/a"]) is None


def test_failing_operation_is_identified_among_rolled_back_ones() -> None:
    operations: list[Operation] = [Create("/a"), Create("/b/c"), Set("/d", b"")]
    answers = [zk.RolledBackError(), zk.NoNodeError(), zk.RuntimeInconsistency()]
    error = failed_operation_error(operations, answers)
    assert isinstance(error, NoNodeError)
    assert str(error) == "/b: does not exist"


def test_existing_node_error_names_the_node() -> None:
    error = failed_operation_error([Create("/b/c")], [zk.NodeExistsError()])
    assert isinstance(error, NodeExistsError)
    assert error.path == "/b/c"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (zk.NoAuthError(), "zookeeper.digest.username"),
        (zk.UnimplementedError(), "3.6 or newer"),
        (zk.DataInconsistency(), "ZooKeeper answered DataInconsistency"),
    ],
)
def test_other_zookeeper_errors_become_explained_store_errors(error: Exception, said: str) -> None:
    found = to_store_error(error, "/a")
    assert type(found) is StoreError
    assert said in str(found)


def test_session_file_round_trip_is_private(tmp_path: Path) -> None:
    file = tmp_path / "session"
    assert load_session(file) is None
    for number in (-5, 7):
        save_session(file, (number, b"p" * 16))
        assert load_session(file) == (number, b"p" * 16)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", ["", "7", "{}", '{"session": "x", "password": ""}', "\0"])
def test_damaged_file_is_treated_as_missing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "session"
    file.write_text(text)
    assert load_session(file) is None


def test_unreachable_server_is_retried(tmp_path: Path) -> None:
    file = tmp_path / "session"
    save_session(file, (7, b"p" * 16))
    close_previous_session(ZooKeeperAccess(parse_connect_string("127.0.0.1:1"), 5.0, 0.2), file)


NOBODY = ZooKeeperAccess(parse_connect_string("127.0.0.1:1"), 5.0, 0.2)


async def test_open_fails_at_its_timeout(tmp_path: Path) -> None:
    threads = threading.active_count()
    save_session(tmp_path / "session", (7, b"p" * 16))
    with pytest.raises(StoreError, match=r"no ZooKeeper answered at 127\.0\.0\.1:1 for"):
        await ZooKeeperStore.open(NOBODY, tmp_path / "session")
    assert threading.active_count() <= threads + 1  # trio keeps one for its next call


async def test_transaction_is_bounded_before_it_is_sent() -> None:
    store = ZooKeeperStore(NOBODY, None)
    with pytest.raises(TooLargeError, match="too large for ZooKeeper"):
        await store.multi(
            [Create("/a", bytes(NODE_MAX_BYTES)), Create("/b", bytes(NODE_MAX_BYTES))]
        )
    assert await store.multi([]) == []


async def test_closed_store_rejects_reads() -> None:
    store = ZooKeeperStore(NOBODY, None)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        await store.get("/a")


SINCE, SESSION = 100, 7
BEFORE, AFTER = 99, 101


def tree(nodes: dict[str, FoundNode]) -> Tree:
    async def look(path: str) -> FoundNode | None:
        return nodes.get(path)

    async def children(path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return [name.removeprefix(start) for name in nodes if name.startswith(start)]

    return Tree(look, children)


def node(data: bytes = b"x", *, version: int = 0, at: int = AFTER, owner: int = 0) -> FoundNode:
    return FoundNode(data, version, at, at, owner)


@pytest.mark.parametrize(
    ("operations", "nodes", "results"),
    [
        ([Create("/a", b"x")], {"/a": node()}, ["/a"]),
        ([Create("/a", b"x")], {}, None),
        ([Create("/a", b"x")], {"/a": node(at=BEFORE)}, None),
        ([Create("/a", b"x")], {"/a": node(b"another's")}, None),
        ([Create("/a", b"x", True)], {"/a": node(owner=SESSION)}, ["/a"]),
        ([Create("/a", b"x", True)], {"/a": node(owner=SESSION - 1)}, None),
        ([Set("/a", b"x", 3)], {"/a": node(version=4)}, [4]),
        ([Set("/a", b"x", 3)], {"/a": node(version=3, at=BEFORE)}, None),
        ([Set("/a", b"x"), Set("/a", b"y")], {"/a": node(b"y", version=5)}, [4, 5]),
        ([Delete("/a")], {}, [None]),
        ([Delete("/a")], {"/a": node(at=BEFORE)}, None),
        ([Delete("/a")], {"/a": node(b"made again")}, [None]),
        ([Delete("/b"), Create("/a", b"x")], {}, None),
        ([Create("/a", b"x"), Delete("/b")], {"/a": node()}, ["/a", None]),
        ([Create("/a", b"y"), Set("/a", b"x")], {"/a": node(version=1)}, ["/a", 1]),
        ([Check("/a")], {"/a": node()}, None),
        ([Create("/q/n-", b"x", False, True)], {"/q/n-0000000003": node()}, ["/q/n-0000000003"]),
        ([Create("/q/n-", b"x", False, True)], {"/q/n-0000000003": node(at=BEFORE)}, None),
        ([Create("/q/n-", b"x", False, True)], {"/q/n-other": node()}, None),
    ],
)
async def test_unknown_outcome_is_inferred_from_nodes(
    operations: Sequence[Operation], nodes: dict[str, FoundNode], results: list[Result] | None
) -> None:
    found = await find_outcome(operations, tree(nodes), since=SINCE, session=SESSION)
    assert found == results
