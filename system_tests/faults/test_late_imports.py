"""Roles that start without an import, and brokers that serve without free descriptors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from system_tests.faults.conftest import Starter
from system_tests.harness.control import ask
from system_tests.harness.jars import PROJECT, import_path
from system_tests.harness.processes import tree
from system_tests.harness.waiting import wait_until
from system_tests.peers.conversation import prepare, run_conversation
from system_tests.peers.test_same_answers import CONVERSATIONS, WITH_DESCRIPTIONS
from system_tests.security.conftest import PASSWORDS, secured_settings

pytestmark = pytest.mark.minibroker

BLOCKER = """
import errno, os, sys

HERE = os.path.dirname(__file__)

class Blocker:
    def find_spec(self, name, path=None, target=None):
        blocked = os.path.exists(os.path.join(HERE, "blocked"))
        file = "imports" if blocked else f"imports-{os.getpid()}"
        with open(os.path.join(HERE, file), "a") as imports:
            print(name, file=imports)
        if blocked:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

sys.meta_path.insert(0, Blocker())
"""


class Imports(NamedTuple):
    """The imports of all processes of a broker that was started with ``environment``."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{self.folder}:{import_path(PROJECT)}"}

    def block(self) -> None:
        """Let imports fail from now on."""
        (self.folder / "blocked").touch()

    def tried(self) -> list[str]:
        """Return the modules that were imported, or would have been, since then."""
        return self._read("imports")

    def made_by(self, pid: int) -> list[str]:
        """Return the modules that a process imported before imports were blocked."""
        return self._read(f"imports-{pid}")

    def _read(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    folder = tmp_path / "imports"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return Imports(folder)


def test_roles_start_without_an_import(start: Starter, imports: Imports) -> None:
    broker = start(environment=imports.environment)
    made = {pid: imports.made_by(pid) for pid in tree(broker.pid)}
    assert "trio" in made.pop(broker.pid)
    assert made
    assert not any(made.values()), made


def test_every_api_is_served_without_an_import(start: Starter, imports: Imports) -> None:
    broker = start(settings=WITH_DESCRIPTIONS, environment=imports.environment)
    for page in ("/v1/health", "/v1/connections"):  # The control API is imported at its first use.
        ask(broker, "GET", page)
    imports.block()
    prepare(broker)
    for conversation in CONVERSATIONS:
        run_conversation(broker, conversation)
    assert imports.tried() == []
    assert "Traceback" not in broker.printed()


@pytest.mark.parametrize("mode", ["single", "sharded"])
def test_connections_with_tls_and_sasl_are_served_without_an_import(
    start: Starter, imports: Imports, tmp_path: Path, mode: str
) -> None:
    settings = {
        **secured_settings(tmp_path),
        "acceptor.mode": mode,
        "activity.enable": "true",
    }
    listeners = ("--listener", "SASL_SSL://127.0.0.1:0", "--listener", "SSL://127.0.0.1:0")
    broker = start(*listeners, settings=settings, environment=imports.environment)
    ask(broker, "GET", "/v1/health")  # This, or a sample of lag some seconds later, imports it.
    imports.block()
    plaintext, sasl_ssl, ssl = broker.bootstrap_servers.split(",")
    admin = AdminClient({"bootstrap.servers": plaintext})
    admin.create_topics([NewTopic("cats", 1, 1)])["cats"].result()
    add_scram_user(admin)
    trusting: dict[str, Any] = {"ssl.ca.location": str(tmp_path / "authority.pem"), "log_level": 0}
    carol = str(tmp_path / "carol.pem")
    certificate = {"ssl.key.location": carol, "ssl.certificate.location": carol}
    produce_and_read({**trusting, **certificate, "security.protocol": "SSL"}, ssl)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"):
        sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **CREDENTIALS}
        if mechanism == "OAUTHBEARER":
            sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **TOKEN}
        produce_and_read({**trusting, **sasl}, sasl_ssl)
    assert imports.tried() == []
    assert "Traceback" not in broker.printed()


CREDENTIALS = {"sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
TOKEN = {
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": "principal=alice lifeSeconds=60",
}


def add_scram_user(admin: AdminClient) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    added = UserScramCredentialUpsertion("alice", info, PASSWORDS["alice"].encode())
    admin.alter_user_scram_credentials([added])["alice"].result(10)


def produce_and_read(client: dict[str, Any], servers: str) -> None:
    """Send a compressed record, and read it in a group."""
    client = {**client, "bootstrap.servers": servers}
    delivered: list[object] = []
    producer = Producer({**client, "compression.type": "lz4"})
    producer.produce("cats", b"tom", on_delivery=lambda error, _: delivered.append(error))
    wait_until(lambda: producer.poll(0.1) or delivered, "the record to be delivered")
    assert delivered == [None]
    reader = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    reader.subscribe(["cats"])
    wait_until(lambda: reader.poll(0.1) is not None, "the record to be read")
    reader.close()
