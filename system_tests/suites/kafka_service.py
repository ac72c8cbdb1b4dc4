"""The process of a broker as kafka-python's fixtures start it, with minibroker in it.

Owns the conversion of a `server.properties` file for Kafka, with Java keystores and a JAAS file, to
minibroker's settings. It must never know tests. Invariant: a started service has printed Kafka's
lines, which the fixtures wait for, only if the broker accepts connections.

kafka-python's source distribution lacks the module of this class, `test/service.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from system_tests.harness.brokers import RunningBroker, StartFailed, start_minibroker

FORMAT_COMMAND = 'printf \'%s\\n\' "$@" > "$LOG_DIR/format"'
"""Replaces `kafka-storage.sh`: stores its arguments, which may contain a SCRAM credential."""
UNAUTHENTICATED = ("--listener", "PLAINTEXT://127.0.0.1:0")
"""Another listener, over which the SCRAM credentials are created."""
TEMPLATES = {
    "kafka.properties": """\
node.id={broker_id}
listeners={transport}://{host}:{port}
advertised.listeners={transport}://{host}:{port}
log.dirs={tmp_dir}/data
num.partitions={partitions}
auto.create.topics.enable={auto_create_topic}
group.min.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
{sasl_config}
{ssl_config}
{acl_config}
""",
    "kafka_server_jaas.conf": "{jaas_config}",
    "sasl_command.conf": """\
security.protocol={transport}
sasl.mechanism={sasl_mechanism}
sasl.jaas.config={jaas_config}
""",
    "log4j.properties": "",
}
"""The files that kafka-python's own repository has for Kafka."""


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def stop(self) -> None:
        """Leave it running."""


class SpawnedService:
    """A broker of its own, with the names of methods that the fixtures call."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str]) -> None:
        self._file = Path(args[-1])
        self._env = env
        self._broker: RunningBroker | None = None
        self._printed = ""

    def start(self) -> None:
        """Start the broker; one that does not start prints why."""
        properties = read_properties(self._file.read_text())
        try:
            self._broker = start_minibroker(
                *(UNAUTHENTICATED if "sasl.enabled.mechanisms" in properties else ()),
                listener=properties["listeners"],
                settings=self._settings(properties),
            )
        except StartFailed as failed:
            self._printed = str(failed)
            return
        self._printed = f"[KafkaRaftServer nodeId={properties['node.id']}] Kafka Server started"
        for mechanism, user, password in self._scram_users():
            create_scram_user(
                self._broker.bootstrap_servers.split(",")[-1], mechanism, user, password
            )
            self._printed += f"\nReplayed UserScramCredentialRecord creating new entry for {user}"

    def _settings(self, properties: dict[str, str]) -> dict[str, str]:
        settings = {**properties, **pem_stores(self._file.parent, properties)}
        listener = settings.pop("listeners").partition(":")[0].lower()
        jaas = re.search(
            r"java\.security\.auth\.login\.config=(\S+)", self._env.get("KAFKA_OPTS", "")
        )
        if jaas and properties.get("sasl.enabled.mechanisms") == "PLAIN":
            line = Path(jaas[1]).read_text().strip()
            settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = line
        return settings

    def _scram_users(self) -> list[tuple[str, str, str]]:
        arguments = (Path(self._env["LOG_DIR"]) / "format").read_text()
        found = re.findall(r"^(SCRAM-\S+)=\[name=(.*),password=(.*)\]$", arguments, re.MULTILINE)
        return [(mechanism, user, password) for mechanism, user, password in found]

    def wait_for(self, pattern: str, timeout: float = 30) -> bool:
        """Whether the line was printed; it never takes time, as `start` waits."""
        return re.search(pattern, self._printed, re.IGNORECASE) is not None

    def dump_logs(self) -> None:
        """Print the broker's output."""
        print(self._printed)
        if self._broker is not None:
            print(self._broker.printed())

    def stop(self) -> None:
        """Stop the broker."""
        if self._broker is not None:
            self._broker.stop()
            self._broker.forget()
            self._broker = None


def read_properties(text: str) -> dict[str, str]:
    """Parse the properties that the templates above make."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def pem_stores(folder: Path, properties: Mapping[str, str]) -> dict[str, str]:
    """Convert the stores of the Java tool `keytool`, which are PKCS #12, to PEM."""
    stores: dict[str, str] = {}
    for kind in ("keystore", "truststore"):
        if store := properties.get(f"ssl.{kind}.location"):
            password = properties[f"ssl.{kind}.password"]
            pem = folder / f"{kind}.pem"
            pem.write_bytes(to_pem(Path(store).read_bytes(), password))
            stores |= {f"ssl.{kind}.location": str(pem), f"ssl.{kind}.type": "PEM"}
    return stores


def to_pem(store: bytes, password: str) -> bytes:
    """Convert keys and certificates of a PKCS #12 store to PEM."""
    contents = load_pkcs12(store, password.encode())
    certificates = [contents.cert, *contents.additional_certs]
    pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in certificates if each)
    if contents.key is None:
        return pem
    return contents.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem


def create_scram_user(servers: str, mechanism: str, user: str, password: str) -> None:
    """Create a credential over a listener without authentication."""
    subprocess.run(
        [
            *[sys.executable, "-m", "minibroker", "configs", "--bootstrap-server", servers],
            *["--alter", "--entity-type", "users", "--entity-name", user],
            *["--add-config", f"{mechanism}=[password={password}]"],
        ],
        check=True,
        capture_output=True,
    )
