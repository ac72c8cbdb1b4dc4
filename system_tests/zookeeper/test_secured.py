"""ZooKeeper with authentication: digest credentials, protected nodes, mutual TLS."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from minibroker.broker.metadata.store.tree import StoreError, StoreEvent, StoreEventKind
from minibroker.broker.metadata.store.zookeeper import ZooKeeperAccess, ZooKeeperStore, access_from
from minibroker.broker.settings import Settings
from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import free_port
from system_tests.harness.jars import ToolchainMissing
from system_tests.harness.waiting import PATIENCE_S
from system_tests.harness.zookeeper import ZooKeeper, start_zookeeper

pytestmark = pytest.mark.minibroker

PASSWORD = "for-this-test"


def access(connect: str, **settings: object) -> ZooKeeperAccess:
    pairs = [f"zookeeper.{name.replace('_', '.')}={value}" for name, value in settings.items()]
    found = access_from(Settings.from_sources(pairs=[f"zookeeper.connect={connect}", *pairs]))
    assert found is not None
    return found


async def test_protected_nodes_are_changed_by_their_owner_only(
    zookeeper_server: ZooKeeper, tmp_path: Path
) -> None:
    connect = f"{zookeeper_server.address}/{tmp_path.name}"
    user = {"digest_username": "us", "digest_password": PASSWORD}
    store = await ZooKeeperStore.open(access(connect, set_acl="true", **user))
    await store.ensure("/config/users/someone")
    await store.ensure("/brokers")
    await store.set("/brokers", b"ours")
    await store.close()

    unauthenticated = KazooClient(connect)
    unauthenticated.start()
    assert unauthenticated.get("/brokers")[0] == b"ours"
    for path in ("/config/users", "/config/users/someone"):
        with pytest.raises(NoAuthError):
            unauthenticated.get(path)
    with pytest.raises(NoAuthError):
        unauthenticated.set("/brokers", b"theirs")
    unauthenticated.stop()
    unauthenticated.close()

    wrong = {"digest_username": "us", "digest_password": "wrong"}
    other = await ZooKeeperStore.open(access(connect, **wrong))
    with pytest.raises(StoreError, match=r"/brokers: .* zookeeper\.digest\.username"):
        await other.set("/brokers", b"theirs")
    await other.close()

    owner = await ZooKeeperStore.open(access(connect, **user))
    assert await owner.set("/brokers", b"still ours") == 2
    await owner.close()


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority, and PEM files of a server and a client that it vouches for."""
    if shutil.which("openssl") is None:
        without_toolchain(ToolchainMissing("`openssl` is not on the path: install OpenSSL"))
    folder = tmp_path / "certificates"
    folder.mkdir()
    authority = ["-CA", f"{folder}/authority.pem", "-CAkey", f"{folder}/authority.key"]
    new = ["req", "-x509", "-newkey", "rsa:2048", "-days", "2"]
    openssl(
        *[*new, "-nodes", "-subj", "/CN=authority"],
        *["-keyout", f"{folder}/authority.key", "-out", f"{folder}/authority.pem"],
    )
    for name in ("server", "client"):
        secret = ["-passout", f"pass:{PASSWORD}"] if name == "client" else ["-nodes"]
        openssl(
            *[*new, *authority, *secret, "-subj", f"/CN={name}"],
            *["-addext", "subjectAltName=DNS:localhost"],
            *["-addext", "basicConstraints=critical,CA:FALSE"],
            *["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt"],
        )
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text()
        (folder / f"{name}.pem").write_text(both)
    return folder


@pytest.fixture
def tls_server(zookeeper_libs: Path, certificates: Path, tmp_path: Path) -> Iterator[ZooKeeper]:
    server = start_zookeeper(
        tmp_path / "zookeeper",
        {
            "secureClientPort": str(free_port()),
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": f"{certificates}/server.pem",
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": f"{certificates}/authority.pem",
            "ssl.trustStore.type": "PEM",
        },
    )
    yield server
    server.kill()


async def test_both_sides_show_certificates(tls_server: ZooKeeper, certificates: Path) -> None:
    connect = f"localhost:{tls_server.settings['secureClientPort']}"
    ours = {
        "ssl_client_enable": "true",
        "ssl_truststore_location": certificates / "authority.pem",
        "ssl_keystore_location": certificates / "client.pem",
        "ssl_keystore_password": PASSWORD,
        "set_acl": "true",
    }
    store = await ZooKeeperStore.open(access(connect, **ours))
    with store.watch("/a") as events:
        await store.create("/a", b"x" * 500_000)
        assert await anext(events) == StoreEvent(StoreEventKind.CREATED, "/a")
    assert len((await store.get("/a")).data) == 500_000
    await store.close()

    # The server's certificate does not contain this name.
    port = tls_server.settings["secureClientPort"]
    short_timeout = {**ours, "connection_timeout_ms": 1000}
    with pytest.raises(StoreError, match=r"not valid for '127\.0\.0\.1'\. Use a host name in "):
        await ZooKeeperStore.open(access(f"127.0.0.1:{port}", **short_timeout))
    result = {**short_timeout, "ssl_endpoint_identification_algorithm": ""}
    store = await ZooKeeperStore.open(access(f"127.0.0.1:{port}", **result))
    await store.close()
    unauthenticated = {**short_timeout, "ssl_truststore_location": certificates / "client.crt"}
    with pytest.raises(StoreError, match=r"check zookeeper\.ssl\.truststore\.location"):
        await ZooKeeperStore.open(access(connect, **unauthenticated))
    with pytest.raises(StoreError, match=r"the port in zookeeper\.connect is that of a TLS"):
        await ZooKeeperStore.open(access(tls_server.address, **short_timeout))
    with pytest.raises(StoreError, match=r"check zookeeper\.ssl\.keystore\.password"):
        await ZooKeeperStore.open(access(connect, **{**ours, "ssl_keystore_password": "wrong"}))
    gc.collect()  # a leaked socket is reported here, and not in another test
