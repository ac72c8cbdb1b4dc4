"""A live broker for Spark's Kafka connector: its addresses, the job's credentials, its topic.

Owns the connector's options, the check before Spark starts whether the activity topic can be read,
and the messages for connection, authentication and authorization failures. It must never open a
connection: minibroker's own command checks the topic in a separate process, because a job can't
import the layers above it. Invariant: that check ends within ``PATIENCE_S``, whatever the peer
does; no secret is an option or an argument, because Spark writes options into plans, logs and
errors. Kafka's client reads secrets from the properties file itself, on the machine where it runs
(Kafka's ``FileConfigProvider``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.broker.security.client_properties import (
    CHECKS_HOST,
    JAAS,
    KEY_PASSWORD,
    KEYSTORE,
    KEYSTORE_TYPE,
    MECHANISM,
    PROTOCOL,
    TOKEN_URL,
    TRUSTSTORE,
    TRUSTSTORE_TYPE,
    ClientProperties,
    read_client_properties,
    tls_context,
)
from minibroker.broker.settings import ACTIVITY_ENABLE
from minibroker.broker.settings.settings import ConfigError, SettingEntry
from minibroker.lab.activity.events import TOPIC
from minibroker.pipeline.errors import BadInput
from minibroker.python_command import python_command

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

# Access ------------------------------------------------------------------------------------------

PROVIDERS: Final = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
TOKEN_HANDLER: Final = {
    "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
    "OAuthBearerLoginCallbackHandler"
}
"""Reads the OAuth token from the location in ``TOKEN_URL``."""

RESPONSE_TIMEOUT_S: Final = 20
"""Timeout of a request of Kafka's client: longer than the longest throttle of any quota."""
SILENCE_MAX_S: Final = 3 * RESPONSE_TIMEOUT_S
"""How long a broker may stay silent during a job before the job may fail: Kafka's clients retry a
request in this time. A job whose poll for records was not answered asks for offsets before it
fails, and so fails after twice this time at the latest.
"""
_TIMEOUTS: Final = {
    "request.timeout.ms": str(1000 * RESPONSE_TIMEOUT_S),
    "default.api.timeout.ms": str(1000 * SILENCE_MAX_S),
}
"""Timeouts of all Kafka clients; their defaults are minutes."""

OPTION: Final = "--command-config"
_FORBIDDEN_IN_PATH: Final = re.compile(r"[:}]")
"""Characters that end a path in a ``FileConfigProvider`` reference."""
_JAVA_KEY: Final = re.compile(rb"^-----BEGIN (ENCRYPTED )?PRIVATE KEY-----", re.MULTILINE)
"""The header of PKCS #8, the only key format that Kafka's Java client reads."""
_TO_PKCS8: Final = "openssl pkcs8 -topk8"
_STACK_TRACE: Final = "spark.sql.pyspark.jvmStacktrace.enabled"
_NOT_GIVEN: Final = SettingEntry("", "", "")


class ClusterAccess(NamedTuple):
    """Bootstrap addresses of a cluster, and the client's security settings if it needs any."""

    bootstrap: str
    client: ClientProperties | None = None

    def read_options(self) -> dict[str, str]:
        """Options for reading, where Kafka's clients do all retries."""
        return {
            **self._options({}),
            "fetchOffset.numRetries": "1",
            "kafkaConsumer.pollTimeoutMs": str(1000 * SILENCE_MAX_S),
        }

    def write_options(self) -> dict[str, str]:
        """Options for writing, where Kafka's producer does all retries."""
        within = str(1000 * SILENCE_MAX_S)
        return self._options({"max.block.ms": within, "delivery.timeout.ms": within})

    def _options(self, more: dict[str, str]) -> dict[str, str]:
        settings = {"bootstrap.servers": self.bootstrap, **_TIMEOUTS, **more}
        if self.client is not None:
            settings |= _settings(self.client)
        return {f"kafka.{name}": value for name, value in settings.items()}


def cluster_access_of(bootstrap: str, file: str | None) -> ClusterAccess:
    """Describe a broker, with the client settings of a properties file.

    Raises BadInput, which names the line and never a secret.
    """
    if file is None:
        return ClusterAccess(bootstrap)
    file = os.path.abspath(file)  # Kafka's client may run in another folder.
    try:
        client = read_client_properties(file)
        if client.has_tls:
            tls_context(client)
    except ConfigError as error:
        raise BadInput(str(error)) from None
    if _FORBIDDEN_IN_PATH.search(file):
        raise BadInput(
            f"{file}: Kafka's client cannot read a properties file whose path contains ':' or '}}':"
            " move or rename it"
        )
    if client.has_tls and KEYSTORE in client.given:
        _check_key_format(client)
    return ClusterAccess(bootstrap, client)


def _check_key_format(client: ClientProperties) -> None:
    entry = client.given[KEYSTORE]
    if not _JAVA_KEY.search(Path(entry.value).read_bytes()):
        raise BadInput(
            f"{entry.where}: the key in {KEYSTORE} is not in PKCS #8 format, the only one that"
            f" Kafka's Java client reads: convert it with `{_TO_PKCS8} -nocrypt -in {entry.value}`,"
            " and append the certificates"
        )


def _settings(client: ClientProperties) -> dict[str, str]:
    """Settings of Kafka's client. It expects Java keystores unless the type is set to PEM."""
    found = {PROTOCOL: client.protocol}
    if client.has_tls:
        found |= _of_tls(client)
    if client.mechanism is not None:
        found |= {MECHANISM: client.mechanism, JAAS: _in_file(client, JAAS), **PROVIDERS}
    if client.token_file is not None:
        found |= {TOKEN_URL: client.token_file.absolute().as_uri(), **TOKEN_HANDLER}
    if client.token_endpoint is not None:
        found |= {TOKEN_URL: client.token_endpoint, **TOKEN_HANDLER}
    return found


def _of_tls(client: ClientProperties) -> dict[str, str]:
    found = {} if client.checks_host else {CHECKS_HOST: ""}
    trusted = client.trusted
    if trusted is not None:
        found |= {TRUSTSTORE_TYPE: "PEM", trusted.name: trusted.value}
        if trusted.name == TRUSTSTORE:
            found[TRUSTSTORE] = os.path.abspath(trusted.value)
    if KEYSTORE in client.given:
        found |= {
            KEYSTORE_TYPE: "PEM",
            KEYSTORE: os.path.abspath(client.given[KEYSTORE].value),
        }
        if client.given.get(KEY_PASSWORD, _NOT_GIVEN).value:
            found |= {KEY_PASSWORD: _in_file(client, KEY_PASSWORD), **PROVIDERS}
    return found


def _in_file(client: ClientProperties, name: str) -> str:
    """A reference to a value that Kafka's client reads from the properties file itself."""
    return f"${{file:{client.file}:{name}}}"


# Error messages ---------------------------------------------------------------------------------


class _KnownFailure(NamedTuple):
    """An error pattern, and the setting that most likely causes it."""

    seen: re.Pattern[str]
    setting: str
    """Named in the message with its line if the file sets it."""
    remedy: str
    guess: str = ""
    """Added if no properties file was given, as security settings may not be the cause."""


_KNOWN_FAILURES: Final = (
    _KnownFailure(re.compile(r"No (subject alternative|name matching).*"), CHECKS_HOST,
          "use a host name in --from that the broker's certificate contains, or set"
          f" {CHECKS_HOST} to an empty value"),
    _KnownFailure(re.compile(r"PKIX path \w+ failed|unable to find valid certification path"),
          TRUSTSTORE,
          f"the broker's certificate is not trusted; check {TRUSTSTORE}"),
    _KnownFailure(re.compile(r"Received fatal alert: \w*certificate\w*"
                             r"|alert (\w+ )?certificate[\w ]*"), KEYSTORE,
          f"the broker requires a client certificate that it trusts; check {KEYSTORE}"),
    _KnownFailure(re.compile(r"\w+ SecretKeyFactory not available"), KEYSTORE,
          f"this Java cannot decrypt the key; encrypt it with `{_TO_PKCS8} -v1 PBE-SHA1-3DES`"),
    _KnownFailure(re.compile(r"Failed to load PEM SSL keystore"), KEYSTORE,
          f"Java cannot read {KEYSTORE}; it must contain a PKCS #8 key, then its certificates"),
    _KnownFailure(re.compile(r"Client SASL mechanism .*"), MECHANISM,
          f"choose a different {MECHANISM}"),
    _KnownFailure(re.compile(r"(?<=SaslAuthenticationException: ).*"), JAAS, f"check {JAAS}"),
    _KnownFailure(re.compile(r"(?<=SASL_AUTHENTICATION_FAILED: ).*"), JAAS, f"check {JAAS}"),
    _KnownFailure(re.compile(r"(UNSUPPORTED_SASL_MECHANISM|ILLEGAL_SASL_STATE): .*"), MECHANISM,
          f"choose a different {MECHANISM} or {PROTOCOL}"),
    _KnownFailure(re.compile(r"Not authorized to access \w+.*|TOPIC_AUTHORIZATION_FAILED"), JAAS,
          f"its principal needs ACLs: to read {TOPIC}, and to write to the topic of"
          " --alerts-to"),
    _KnownFailure(re.compile(r"(?<=TimeoutException: )(?!Call\().*|timed out(?= at \d+ after)"
                     r"|no answer .*in (time|[\d.]+ s)|cannot be reached \(.*timed out\)"),
          PROTOCOL,
          "check that the broker is running, that all its advertised addresses can be"
          f" reached from here, and that {PROTOCOL} matches the port in --from",
          ": it may not be running, or an address that it advertises cannot be reached from here"),
)  # fmt: skip
"""Matched against the errors of Kafka's client and of minibroker; the first match counts."""


def why(spark: SparkSession, error: PySparkException, broker: ClusterAccess) -> str:
    """Explain Spark's error about a broker that could not be read or written."""
    before = str(spark.conf.get(_STACK_TRACE))
    spark.conf.set(_STACK_TRACE, "true")  # The text contains the cause only with this.
    try:
        text = str(error)
    finally:
        spark.conf.set(_STACK_TRACE, before)
    return explain(text, broker) or str(error)


def explain(text: str, broker: ClusterAccess) -> str | None:
    """Explain an error about a broker, with the setting that fixes it; None if it is unknown."""
    for sign in _KNOWN_FAILURES:
        found = sign.seen.search(text)
        if found is not None:
            return _failure_text(broker, sign, found[0])
    return None


def _failure_text(broker: ClusterAccess, sign: _KnownFailure, seen: str) -> str:
    seen = seen.partition(" SQLSTATE: ")[0]  # Spark's suffix, without information.
    reason = f"request to {broker.bootstrap} failed ({seen.strip()})"
    if broker.client is None:
        return (
            f"{reason}{sign.guess}; if it requires TLS or SASL, pass the client's security settings"
            f" with {OPTION} FILE"
        )
    entry = broker.client.given.get(sign.setting)
    where = broker.client.file if entry is None else entry.where
    return f"{where}: {reason}: {sign.remedy}"


# The topic ---------------------------------------------------------------------------------------

PATIENCE_S: Final = 45.0
"""The command itself gives up after ten seconds without an answer from an address."""
_ERROR_PREFIX: Final = "minibroker: "
"""The prefix of each line of the command's errors."""
_COMMAND_OPTION: Final = "--bootstrap-server"
_NO_TOPIC: Final = "UNKNOWN_TOPIC_OR_PARTITION"


class ReachableTopic(NamedTuple):
    """The broker's description of the topic."""

    id: str
    starts: dict[int, int]
    """The first available offset of each partition."""


def find_activity_topic(broker: ClusterAccess) -> ReachableTopic:
    """Describe the activity topic. Raises BadInput if it can't be reached, read or found."""
    # JSON output omits the topic's configs, which need an additional permission.
    program = "from minibroker.cli import main; main()"
    command = python_command(program, "topics", "describe", TOPIC, "--json")
    command += ["-b", broker.bootstrap]
    if broker.client is not None:
        command += [OPTION, str(broker.client.file)]
    try:
        asked = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInput(failure_reason(broker, f"no answer in {PATIENCE_S:g} s")) from None
    if asked.returncode:
        raise BadInput(failure_reason(broker, asked.stderr))
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    return ReachableTopic(rows[0]["topic_id"], {row["partition"]: row["start"] for row in rows})


def failure_reason(broker: ClusterAccess, complaint: str) -> str:
    """Explain the command's error in terms of the job's options."""
    if _NO_TOPIC in complaint:
        return (
            f"{broker.bootstrap} has no topic {TOPIC}, because it records no activity: start the"
            f" broker with --set {ACTIVITY_ENABLE.name}=true"
        )
    message = complaint.strip().removeprefix(_ERROR_PREFIX).replace(_COMMAND_OPTION, "--from")
    return explain(message, broker) or message
