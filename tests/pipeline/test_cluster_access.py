"""A broker's options for Spark, and explanations of Spark's errors."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from minibroker.pipeline import cluster_access
from minibroker.pipeline.cluster_access import (
    ClusterAccess,
    cluster_access_of,
    failure_reason,
    find_activity_topic,
    why,
)
from minibroker.pipeline.errors import BadInput
from minibroker.python_command import python_command

# Access ------------------------------------------------------------------------------------------

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
LET_IN = (
    "sasl.mechanism=scram-sha-512",
    f'sasl.jaas.config={SCRAM} username="alice" password="hush";',
)

Read = Callable[..., ClusterAccess]


@pytest.fixture
def read(properties: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """A broker with such a file, which is named as seen from its folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *lines: cluster_access_of("there:9093", Path(properties(*lines)).name)


def let_in(broker: ClusterAccess) -> dict[str, str]:
    """A broker's options but for those that every broker has."""
    common = ClusterAccess("").read_options()
    return {
        name: value for name, value in broker.read_options().items() if common.get(name) != value
    }


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, and with a key in three forms, each with its certificate."""
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    carol = authority.issue_cert("carol.example")
    carol.private_key_and_cert_chain_pem.write_to_path(folder / "sec1.pem")
    key = serialization.load_pem_private_key(carol.private_key_pem.bytes(), None)
    chain = b"".join(each.bytes() for each in carol.cert_chain_pems)
    for name, encryption in (
        ("pkcs8.pem", serialization.NoEncryption()),
        ("encrypted.pem", serialization.BestAvailableEncryption(b"hush")),
    ):
        written = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
        (folder / name).write_bytes(written + chain)
    return folder


def test_missing_client_config_is_accepted() -> None:
    assert let_in(cluster_access_of("a:1,b:2", None)) == {"kafka.bootstrap.servers": "a:1,b:2"}


def test_unresponsive_broker_fails_after_a_minute_of_retries() -> None:
    """A request is not given up before the longest throttle of a quota."""
    broker = cluster_access_of("a:1", None)
    read, written = broker.read_options(), broker.write_options()
    for each in (read, written):
        assert 12_000 < int(each["kafka.request.timeout.ms"]) <= 20_000
    asked_ms = int(read["kafka.default.api.timeout.ms"])
    assert int(read["fetchOffset.numRetries"]) * asked_ms == 60_000
    assert asked_ms == int(read["kafkaConsumer.pollTimeoutMs"]) == 60_000
    assert int(written["kafka.delivery.timeout.ms"]) <= 60_000
    assert int(written["kafka.max.block.ms"]) <= 60_000


def test_secrets_are_not_sent_to_other_roles(read: Read, pem: Path, tmp_path: Path) -> None:
    broker = read(
        "security.protocol=sasl_ssl",
        *LET_IN,
        f"ssl.truststore.location={pem}/authority.pem",
        f"ssl.keystore.location={pem}/encrypted.pem",
        "ssl.key.password=hush",
        "ssl.endpoint.identification.algorithm=",
        "client.id=not ours",
    )
    place = f"${{file:{tmp_path}/client.properties:"
    assert let_in(broker) == {
        "kafka.bootstrap.servers": "there:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f"{place}sasl.jaas.config}}",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": f"{pem}/authority.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": f"{pem}/encrypted.pem",
        "kafka.ssl.key.password": f"{place}ssl.key.password}}",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": "org.apache.kafka.common.config.provider."
        "FileConfigProvider",
    }
    assert "hush" not in repr(broker)


def test_options_of_unused_protocol_are_omitted(read: Read, pem: Path) -> None:
    """Kafka's client would mind the half of it."""
    trust = f"ssl.truststore.location={pem}/authority.pem"
    assert let_in(read("security.protocol=SASL_PLAINTEXT", *LET_IN, trust)).keys() == {
        "kafka.bootstrap.servers", "kafka.security.protocol", "kafka.sasl.mechanism",
        "kafka.sasl.jaas.config", "kafka.config.providers", "kafka.config.providers.file.class",
    }  # fmt: skip
    assert let_in(read("security.protocol=SSL", *LET_IN, trust)).keys() == {
        "kafka.bootstrap.servers", "kafka.security.protocol",
        "kafka.ssl.truststore.type", "kafka.ssl.truststore.location",
    }  # fmt: skip


def test_inline_truststore_certificates_are_unchanged(read: Read, pem: Path) -> None:
    text = (pem / "authority.pem").read_text()
    lines = ("security.protocol=SSL", "ssl.truststore.certificates=" + text.replace("\n", "\\n"))
    assert read(*lines).read_options()["kafka.ssl.truststore.certificates"] == text


def test_token_file_sets_login_callback_handler(read: Read) -> None:
    options = read(
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=OAUTHBEARER",
        f"sasl.jaas.config={BEARER} ;",
        "sasl.oauthbearer.token.endpoint.url=file:/a%20token",
    ).read_options()
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "file:///a%20token"
    assert options["kafka.sasl.login.callback.handler.class"].endswith("LoginCallbackHandler")


def test_token_endpoint_sets_login_callback_handler(read: Read) -> None:
    options = read(
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=OAUTHBEARER",
        f'sasl.jaas.config={BEARER} clientId="a" clientSecret="b";',
        "sasl.oauthbearer.token.endpoint.url=http://issuer/token",
    ).read_options()
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "http://issuer/token"
    assert options["kafka.sasl.login.callback.handler.class"].endswith("LoginCallbackHandler")


def test_sec1_key_is_rejected_with_pkcs8_conversion_command(
    read: Read, pem: Path, tmp_path: Path
) -> None:
    lines = ("security.protocol=SSL", f"ssl.truststore.location={pem}/authority.pem")
    with pytest.raises(BadInput, match=r"properties:3: .* PKCS #8 .*`openssl pkcs8") as raised:
        read(*lines, f"ssl.keystore.location={pem}/sec1.pem")
    command = str(raised.value).partition("`openssl ")[2].partition("`")[0]
    made = subprocess.run(["openssl", *command.split()], capture_output=True, check=True).stdout
    certificates = (pem / "sec1.pem").read_bytes().partition(b"-----END EC PRIVATE KEY-----")[2]
    (tmp_path / "made.pem").write_bytes(made + certificates)
    options = read(*lines, "ssl.keystore.location=made.pem").read_options()
    assert options["kafka.ssl.keystore.location"] == str(tmp_path / "made.pem")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["security.protocol=TLS"], "properties:1: security.protocol=TLS must be one of"),
        (["security.protocol=SSL", "ssl.truststore.location=x"], "properties:2: .* read as PEM"),
    ],
)
def test_bad_client_config_reports_line(read: Read, lines: list[str], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read(*lines)


def test_config_path_with_colon_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "a:b.properties"
    file.write_text("\n".join(["security.protocol=SASL_PLAINTEXT", *LET_IN]))
    with pytest.raises(BadInput, match=r"a:b.properties: .* path contains ':' or '}': move"):
        cluster_access_of("there:9093", str(file))


class Conf(dict[str, str]):
    """A session's settings, which include whether errors contain Java's stack trace."""

    def set(self, key: str, value: str) -> None:
        self[key] = value


class Failed(Exception):
    """Like Spark's exception: the text contains the cause only if configured."""

    def __init__(self, conf: Conf, causes: str) -> None:
        super().__init__()
        self._conf, self._causes = conf, causes

    def __str__(self) -> str:
        (wanted,) = self._conf.values()
        return f"STREAM_FAILED {self._causes if wanted == 'true' else ''}".strip()


def reason_of(broker: ClusterAccess, causes: str) -> str:
    conf = Conf({"spark.sql.pyspark.jvmStacktrace.enabled": "false"})
    spark = type("Session", (), {"conf": conf})
    said = why(cast("Any", spark), cast("Any", Failed(conf, causes)), broker)
    assert [*conf.values()] == ["false"]
    return said


@pytest.mark.parametrize(
    ("causes", "line", "seen", "remedy"),
    [
        (
            "SSLHandshakeException: PKIX path building failed: sun", ":4",
            "PKIX path building failed", "not trusted; check ssl.truststore.location",
        ),
        (
            "X: No subject alternative names matching IP address 127.0.0.1 found\n at", "",
            "No subject alternative names matching IP address 127.0.0.1 found",
            "or set ssl.endpoint.identification.algorithm to an empty value",
        ),
        (
            "x.SaslAuthenticationException: Authentication failed: Invalid SQLSTATE: X\n===", ":3",
            "Authentication failed: Invalid", "check sasl.jaas.config",
        ),
        (
            "X: Client SASL mechanism 'A' not enabled in the server", ":2",
            "Client SASL mechanism 'A' not enabled in the server", "a different sasl.mechanism",
        ),
        (
            "Received fatal alert: certificate_required", "",
            "Received fatal alert: certificate_required", "check ssl.keystore.location",
        ),
        (
            "Failed to load PEM SSL keystore /x\nPBES2 SecretKeyFactory not available", "",
            "PBES2 SecretKeyFactory not available", "openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES",
        ),
        (
            "Failed to load PEM SSL keystore /x", "",
            "Failed to load PEM SSL keystore", "a PKCS #8 key, then its certificates",
        ),
        (
            "Not authorized to access topics: [alerts]", ":3",
            "Not authorized to access topics: [alerts]", "needs ACLs",
        ),
        (
            "TimeoutException: Timed out waiting for a node assignment.", ":1",
            "Timed out waiting for a node assignment.", "security.protocol matches the port",
        ),
        (
            "TimeoutException: Call(callName=listNodes) timed out at 2 after 3 attempt(s)", ":1",
            "timed out", "security.protocol matches the port",
        ),
    ],
)  # fmt: skip
def test_connection_failure_reports_config_line_to_fix(
    read: Read, pem: Path, causes: str, line: str, *, seen: str, remedy: str
) -> None:
    lines = ("security.protocol=SASL_SSL", *LET_IN, f"ssl.truststore.location={pem}/authority.pem")
    found = reason_of(read(*lines), f"Caused by: {causes}")
    assert f"client.properties{line}: request to there:9093 failed ({seen}): " in found
    assert remedy in found


def test_unknown_failure_is_reported_unchanged(read: Read) -> None:
    assert reason_of(read("security.protocol=SSL"), "/ by zero").startswith("STREAM_FAILED")


def test_failure_without_config_file_suggests_option() -> None:
    said = reason_of(ClusterAccess("there:9093"), "TimeoutException: Timed out")
    assert "(Timed out): it may not be running, or an address that it advertises cannot" in said
    assert said.endswith(
        "if it requires TLS or SASL, pass the client's security settings with --command-config FILE"
    )


# The topic ---------------------------------------------------------------------------------------

CLIENT = """\
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" \\
    password="hush";
"""


def test_closed_port_is_reported_at_once() -> None:
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        closed_port = f"127.0.0.1:{bound_socket.getsockname()[1]}"
        with pytest.raises(
            BadInput, match=rf"nothing listens on {closed_port}; .* --from HOST:PORT"
        ):
            find_activity_topic(ClusterAccess(closed_port))


IMPATIENT = """\
import socket

def connect(address, timeout_s, connect=socket.create_connection):
    return connect(address, timeout_s / 100)

socket.create_connection = connect
"""
"""Lets connections to brokers time out after a hundredth of the time."""


def test_silent_broker_reports_unanswered_api_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is by the command that asks."""

    def impatient_command(program: str, *arguments: str) -> list[str]:
        return python_command(IMPATIENT + program, *arguments)

    monkeypatch.setattr(cluster_access, "python_command", impatient_command)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        asked = (
            rf"^request to {address} failed \(no answer to API_VERSIONS in time\): it may not be"
        )
        with pytest.raises(BadInput, match=asked):
            find_activity_topic(ClusterAccess(address))


def test_lookup_exceeding_timeout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            BadInput, match=rf"^request to {address} failed \(no answer in 1 s\): it"
        ):
            find_activity_topic(ClusterAccess(address))


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (
            "minibroker: topic __minibroker_activity: UNKNOWN_TOPIC_OR_PARTITION (see …)\n",
            (
                "there:9092 has no topic __minibroker_activity, because it records no activity:"
                " start the broker with --set activity.enable=true"
            ),
        ),
        (
            "minibroker: there:9092: cannot be reached (timed out)\n",
            (
                "FILE:1: request to there:9092 failed (cannot be reached (timed out)): check that"
                " the broker is running, that all its advertised addresses can be reached from"
                " here, and that security.protocol matches the port in --from"
            ),
        ),
        (
            "minibroker: nothing listens; name another with --bootstrap-server HOST:PORT\n",
            "nothing listens; name another with --from HOST:PORT",
        ),
        (
            "minibroker: x rejected authentication: SASL_AUTHENTICATION_FAILED: Wrong!\n",
            "FILE:3: request to there:9092 failed (Wrong!): check sasl.jaas.config",
        ),
        (
            "minibroker: topic t: TOPIC_AUTHORIZATION_FAILED\n",
            (
                "FILE:3: request to there:9092 failed (TOPIC_AUTHORIZATION_FAILED): its principal"
                " needs ACLs: to read __minibroker_activity, and to write to the topic of"
                " --alerts-to"
            ),
        ),
        (
            "minibroker: x broke off: [SSL: A] tlsv13 alert certificate required (_ssl.c:2580)\n",
            (
                "FILE: request to there:9092 failed (alert certificate required): the broker"
                " requires a client certificate that it trusts; check ssl.keystore.location"
            ),
        ),
    ],
)
def test_lookup_failure_reports_fix(tmp_path: Path, complaint: str, words: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(CLIENT)
    broker = cluster_access_of("there:9092", str(file))
    assert failure_reason(broker, complaint) == words.replace("FILE", str(file))
