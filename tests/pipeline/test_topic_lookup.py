"""The check of a live broker before Spark starts: errors if it is unreachable, parsed answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from minibroker.pipeline import topic_lookup
from minibroker.pipeline.cluster_access import ClusterAccess, cluster_access_of
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.topic_lookup import failure_reason, find_activity_topic
from minibroker.python_command import python_command

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

    monkeypatch.setattr(topic_lookup, "python_command", impatient_command)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        asked = (
            rf"^request to {address} failed \(no answer to API_VERSIONS in time\): it may not be"
        )
        with pytest.raises(BadInput, match=asked):
            find_activity_topic(ClusterAccess(address))


def test_lookup_exceeding_timeout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_lookup, "PATIENCE_S", 1.0)
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
