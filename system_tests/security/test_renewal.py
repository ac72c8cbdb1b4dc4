"""Certificates renewed while a broker runs: new connections get them, and open ones continue."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

NAME = "listener.name.ssl.ssl.keystore.location"
API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"
"""ApiVersions, version 0, of a client that gives no name."""

CONNECTIONS = 12
"""Enough that each of three processors gets some."""


class Site(NamedTuple):
    broker: RunningBroker
    authority: trustme.CA
    folder: Path
    plaintext: str
    with_tls: tuple[str, int]

    def write(self, name: str, *hosts: str, subject: str = "broker") -> Path:
        """A new key and its certificate."""
        made = self.authority.issue_cert(
            *hosts or ("localhost", "127.0.0.1"), common_name=subject, organization_unit_name="T"
        )
        path = self.folder / name
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def renew(self, location: Path) -> None:
        resource = ConfigResource(ResourceType.BROKER, "1")
        resource.add_incremental_config(
            ConfigEntry(
                NAME,
                str(location),
                source=ConfigSource.DYNAMIC_BROKER_CONFIG,
                incremental_operation=AlterConfigOpType.SET,
            )
        )
        admin = AdminClient({"bootstrap.servers": self.plaintext})
        admin.incremental_alter_configs([resource])[resource].result(20)

    @contextmanager
    def connection(self) -> Iterator[ssl.SSLSocket]:
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        with (
            socket.create_connection(self.with_tls, PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            yield wrapped

    def serials(self) -> set[str]:
        """What new connections are shown."""
        found = set()
        for _ in range(CONNECTIONS):
            with self.connection() as connection:
                shown = connection.getpeercert()
                assert shown is not None
                found.add(str(shown["serialNumber"]))
        return found


def start(folder: Path, mode: str) -> tuple[RunningBroker, str, tuple[str, int]]:
    """A broker, and where its listeners are."""
    settings = {
        "ssl.keystore.location": f"{folder}/one.pem",
        "num.network.threads": "3",
        "acceptor.mode": mode,
    }
    with_tls = "--listener", "SSL://127.0.0.1:0"
    running = start_minibroker(*with_tls, settings=settings, data_dir=folder / "data")
    plaintext, secured = running.bootstrap_servers.split(",")
    host, _, port = secured.partition(":")
    return running, plaintext, (host, int(port))


@pytest.fixture(params=["single", "sharded"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    partial = Site(None, authority, tmp_path, "", ("", 0))  # type: ignore[arg-type]
    partial.write("one.pem")
    running, plaintext, with_tls = start(tmp_path, request.param)
    yield partial._replace(broker=running, plaintext=plaintext, with_tls=with_tls)
    try:
        assert running.stop() == 0
        assert "Traceback" not in running.printed()
    finally:
        running.forget()


def test_renewed_certificate_serves_new_and_keeps_old_connections(site: Site) -> None:
    producer = Producer(
        {
            "bootstrap.servers": f"{site.with_tls[0]}:{site.with_tls[1]}",
            "security.protocol": "SSL",
            "ssl.ca.location": f"{site.folder}/authority.pem",
        }
    )
    producer.produce("renewed", b"before")
    assert producer.flush(20) == 0
    with site.connection() as old:
        before = site.serials()
        assert len(before) == 1
        site.renew(site.write("two.pem"))
        after = site.serials()
        assert len(after) == 1
        assert after != before
        site.renew(site.write("two.pem"))  # the same path, written again
        again = site.serials()
        assert len(again) == 1
        assert again not in (before, after)
        old.sendall(API_VERSIONS)
        answer = old.recv(8)
        assert answer[4:] == API_VERSIONS[8:12]
    producer.produce("renewed", b"after")
    assert producer.flush(20) == 0


def test_unusable_keystore_is_rejected_and_old_one_kept(site: Site) -> None:
    before = site.serials()
    empty = site.folder / "empty.pem"
    empty.touch()
    for bad, why in (
        (empty, "key and certificate can't be used"),
        (site.folder / "none.pem", "can't be read: No such file"),
        (site.write("other.pem", subject="somebody"), "DistinguishedName does not match"),
        (site.write("less.pem", "localhost"), "SubjectAltNames do not match"),
    ):
        with pytest.raises(KafkaException, match=why):
            site.renew(bad)
    assert site.serials() == before


def test_renewed_certificate_survives_restart(site: Site) -> None:
    site.renew(site.write("two.pem"))
    before = site.serials()
    assert site.broker.stop() == 0
    running, _, with_tls = start(site.folder, "single")
    try:
        assert site._replace(with_tls=with_tls).serials() == before
        assert running.stop() == 0
    finally:
        running.forget()
