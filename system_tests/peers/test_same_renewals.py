"""Kafka and minibroker accept, and reject, the same certificates while they run.

Both have the same files and receive the same sequence of requests. The test compares the error code
of each response, and whether later connections get a new certificate.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from minibroker_protocol.errors import ErrorCode
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_with_listener
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.peers.configs import BROKER, DELETE, SET, THIS, Change, alter
from system_tests.peers.conversation import prepare

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

LOCATION = "listener.name.ssl.ssl.keystore.location"
OK, BAD = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
AUTHORITY = trustme.CA()


class Peer(NamedTuple):
    broker: RunningBroker
    with_tls: tuple[str, int]
    folder: Path

    def write(self, name: str, *hosts: str, subject: str = "broker") -> None:
        """Write a new key, in the only format that Java reads, and its certificate."""
        made = AUTHORITY.issue_cert(
            *hosts or ("localhost", "127.0.0.1"), common_name=subject, organization_unit_name="T"
        )
        key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain = b"".join(one.bytes() for one in made.cert_chain_pems)
        (self.folder / name).write_bytes(key + chain)

    def shown(self) -> str:
        context = ssl.create_default_context(cadata=AUTHORITY.cert_pem.bytes().decode())
        with (
            socket.create_connection(self.with_tls, PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            certificate = connection.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    def change(self, *changes: Change, name: str = THIS, renewed: bool) -> int:
        """Return the error code, after the new certificate is in use if one is expected."""
        before = self.shown()
        with Client(self.broker.address) as client:
            [answer] = client.ask(alter(BROKER, name, *changes), 1).responses
        if renewed:  # Kafka's controller responds before its broker applies the change.
            wait_until(lambda: self.shown() != before, "a new certificate")
        return int(answer.error_code)

    def show(self, name: str, *, renewed: bool) -> int:
        return self.change((LOCATION, SET, str(self.folder / name)), renewed=renewed)


@pytest.fixture(params=["kafka", "minibroker"])
def peer(kafka_libs: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Peer]:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    files = Peer(None, ("", 0), tmp_path)  # type: ignore[arg-type]
    files.write("one.pem")
    settings = {"ssl.keystore.location": f"{tmp_path}/one.pem", "ssl.keystore.type": "PEM"}
    broker, with_tls = start_with_listener(request.param, "SSL", tmp_path, settings)
    with broker:
        prepare(broker)
        yield Peer(broker, with_tls, tmp_path)


def test_kafka_and_minibroker_accept_same_keystore_changes(peer: Peer) -> None:
    at = str(peer.folder)
    assert peer.change(("ssl.keystore.location", SET, f"{at}/one.pem"), renewed=False) == BAD
    assert peer.change((LOCATION, SET, f"{at}/one.pem"), name="", renewed=False) == BAD
    assert peer.show("one.pem", renewed=False) == OK  # unchanged
    peer.write("one.pem")
    assert peer.show("one.pem", renewed=True) == OK
    peer.write("one.pem")
    assert peer.change(("max.connections.per.ip", SET, "9"), renewed=True) == OK
    peer.write("two.pem")
    assert peer.show("two.pem", renewed=True) == OK
    (peer.folder / "bad.pem").write_text("no key")
    for name in ("bad.pem", "none.pem"):
        assert peer.show(name, renewed=False) == BAD
    peer.write("other.pem", subject="somebody")
    assert peer.show("other.pem", renewed=False) == BAD
    peer.write("other-case.pem", subject="BROKER")
    assert peer.show("other-case.pem", renewed=True) == OK
    peer.write("fewer-names.pem", "localhost")
    assert peer.show("fewer-names.pem", renewed=False) == BAD
    peer.write("more-names.pem", "localhost", "127.0.0.1", "more.test")
    assert peer.show("more-names.pem", renewed=True) == OK
    # The initial file has one name fewer than the certificate in use.
    assert peer.change((LOCATION, DELETE, None), renewed=False) == BAD
    trust = "listener.name.ssl.ssl.truststore"
    trusting = (f"{trust}.location", SET, f"{at}/authority.pem"), (f"{trust}.type", SET, "PEM")
    assert peer.change(*trusting, renewed=False) == BAD
