"""Settings in force: sources, references, precedence, errors, and files written for Kafka."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from minibroker.broker import settings as config
from minibroker.broker.settings import read_pairs, read_properties
from minibroker.broker.settings.setting import BROKER_SETTINGS, BadValueError
from minibroker.broker.settings.settings import (
    NOT_SETTINGS,
    ConfigError,
    SettingEntry,
    Settings,
    read_environment,
    resolve_references,
    setting_name,
)

# ---------------------------------------------------------------------------------------- settings


SHIPPED_WITH_KAFKA_3 = """\
# what config/server.properties of Kafka 3 sets
broker.id=0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""

SHIPPED_WITH_KAFKA_4 = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
log.dirs=/tmp/kraft-combined-logs
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.segment.bytes=1073741824
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def refusal(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=pairs)
    return str(caught.value)


def test_kafka_3_server_properties_are_accepted_without_a_warning(properties: Path) -> None:
    properties.write_text(SHIPPED_WITH_KAFKA_3)
    settings = Settings.from_sources(files=[properties])
    assert settings[config.NODE_ID] == 0
    assert settings[config.NUM_IO_THREADS] == 8
    assert settings.data_dir == "/tmp/kafka-logs"
    assert str(settings[config.ZOOKEEPER_CONNECT]) == "localhost:2181"
    assert settings.warnings == ()


def test_kafka_4_server_properties_open_only_the_client_listener(properties: Path) -> None:
    properties.write_text(SHIPPED_WITH_KAFKA_4)
    settings = Settings.from_sources(files=[properties])
    assert [str(listener) for listener in settings.client_listeners] == ["PLAINTEXT://:9092"]
    assert "process.roles" in settings.warnings[0]


def test_setting_of_unknown_listener_is_a_warning() -> None:
    pairs = ["listeners=PLAINTEXT://:9092", "listener.name.plaintext.max.connections=1"]
    pairs += ["listener.name.PLAINTEXT.max.connections=2", "listener.name.gone.max.connections=3"]
    [warning] = Settings.from_sources(pairs=pairs).warnings
    assert warning.startswith(
        "settings of unknown listeners have no effect: "
        "listener.name.PLAINTEXT.max.connections, listener.name.gone.max.connections (write"
    )


def test_default_settings_have_no_warnings() -> None:
    settings = Settings.from_sources()
    assert settings.warnings == ()
    assert settings.data_dir is None


def test_options_override_files_and_later_options_earlier_ones(properties: Path) -> None:
    properties.write_text("num.partitions=2\nnum.io.threads = 5\n")
    settings = Settings.from_sources(
        files=[properties], pairs=["num.partitions=3", "num.partitions=4"]
    )
    assert settings[config.NUM_PARTITIONS] == 4
    assert settings.where(config.NUM_PARTITIONS) == "--set"
    assert settings.where(config.NUM_IO_THREADS) == f"{properties}:2"
    assert settings.where(config.LISTENERS) == "default"
    assert not settings.is_given(config.LISTENERS)


def test_kafka_profile_has_kafka_defaults() -> None:
    laptop, kafka = Settings.from_sources(), Settings.from_sources(profile="kafka")
    read = (config.NUM_NETWORK_THREADS, config.NUM_IO_THREADS)
    assert [laptop[key] for key in read] == [1, 1]
    assert [kafka[key] for key in read] == [3, 8]
    assert kafka[config.GROUP_INITIAL_REBALANCE_DELAY_MS] == 3000
    assert kafka[config.NUM_PARTITIONS] == 1
    assert Settings.from_sources(pairs=["num.io.threads=1"], profile="kafka") != kafka


def test_unknown_profile_is_rejected() -> None:
    with pytest.raises(ConfigError, match="--profile big: must be one of laptop, kafka"):
        Settings.from_sources(profile="big")


def test_unknown_setting_is_rejected_with_nearest_name() -> None:
    assert refusal("num.io.thread=3") == (
        "num.io.thread (--set): there is no such setting; did you mean num.io.threads?"
    )
    assert refusal("colour=red").endswith("there is no such setting")


def test_invalid_value_reports_name_source_and_valid_values(properties: Path) -> None:
    properties.write_text("# a comment\n\nnum.io.threads=\\\n  none\n")
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(files=[properties])
    assert str(caught.value) == (
        f"num.io.threads=none ({properties}:3): must be a whole number (32 bits)"
    )
    assert refusal("num.io.threads=0") == "num.io.threads=0 (--set): must be between 1 and 64"


def test_all_problems_are_reported_at_once() -> None:
    assert len(refusal("num.io.threads=0", "foo.bar.baz=1", "listeners=x").splitlines()) == 3


def test_option_without_equals_sign_is_rejected() -> None:
    assert refusal("num.partitions") == (
        "--set num.partitions: must be name=value, e.g. num.partitions=3"
    )


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["broker.id=1", "node.id=2"], "broker.id=1 (--set): must agree with node.id=2"),
        (["log.dirs=/a,/b"], "log.dirs=/a,/b (--set): must be one directory"),
        (["listeners=SSL://h:1"], "has SSL, which uses TLS but has no certificate"),
        (["advertised.listeners=X://h:1"], "advertised.listeners=X://h:1 (--set): names X"),
        (
            ["group.min.session.timeout.ms=9000000"],
            "must not exceed group.max.session.timeout.ms=1800000",
        ),
        (
            [
                "queued.max.request.bytes=1000",
                "socket.request.max.bytes=501",
                "num.network.threads=2",
            ],
            "each of num.network.threads=2, which is 1002",
        ),
        (["queued.max.request.bytes=0"], "must be -1 or at least 1"),
    ],
)
def test_conflicting_settings_are_rejected(pairs: list[str], message: str) -> None:
    assert message in refusal(*pairs)


def test_request_memory_defaults_to_the_largest_request_of_each_processor() -> None:
    derived = Settings.from_sources(
        pairs=["socket.request.max.bytes=1000", "num.network.threads=2"]
    )
    assert derived.request_memory_bytes == 2000
    given = Settings.from_sources(
        pairs=["socket.request.max.bytes=1000", "queued.max.request.bytes=5000"]
    )
    assert given.request_memory_bytes == 5000


def test_older_setting_names_are_accepted() -> None:
    settings = Settings.from_sources(pairs=["broker.id=7", "log.dir=/data"])
    assert settings[config.NODE_ID] == 7
    assert settings.data_dir == "/data"
    assert Settings.from_sources(pairs=["broker.id=-1"])[config.NODE_ID] == 1
    assert Settings.from_sources(pairs=["log.dir=/a", "log.dirs=/b"]).data_dir == "/b"


def test_unsupported_listener_settings_are_ignored() -> None:
    settings = Settings.from_sources(
        pairs=[
            "listener.name.internal.ssl.keystore.password=k",
            "listener.name.internal.scram-sha-256.sasl.login.class=x",
            "listener.name.internal.message.max.bytes=5",
        ]
    )
    assert len(settings.ignored) == 3
    assert "no such setting" in refusal("listener.name.internal.colour=red")


def test_settings_and_config_errors_can_be_pickled() -> None:
    settings = Settings.from_sources(pairs=["num.partitions=3", "zookeeper.clientCnxnSocket=x"])
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert hash(copy) == hash(settings)
    assert copy.warnings == settings.warnings
    assert repr(copy) == "<Settings laptop: num.partitions=3>"
    error = pickle.loads(pickle.dumps(ConfigError(["a", "b"])))
    assert error.problems == ("a", "b")


def test_unreadable_file_is_rejected_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.properties: cannot be read: No such file"):
        read_properties(tmp_path / "missing.properties")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        read_properties(binary)
    broken = tmp_path / "broken"
    broken.write_text("a=1\nb=\\u12\n")
    with pytest.raises(ConfigError, match="broken:2: "):
        read_properties(broken)


# --------------------------------------------------------------------------------------- providers


ENVIRONMENT = {"PASSWORD": "wonder=land", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ("${env:PASSWORD}", "wonder=land"),
        ('user_alice="${env:PASSWORD}";', 'user_alice="wonder=land";'),
        ("${env:EMPTY}", ""),
        ("${other:PASSWORD}", "${other:PASSWORD}"),
        ("$PASSWORD", "$PASSWORD"),
    ],
)
def test_resolve_replaces_variables(value: str, expected: str) -> None:
    assert resolve_references(value, ENVIRONMENT) == expected


def test_resolve_reads_a_key_of_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("other=1\nkey.password = s3cret\n")
    assert resolve_references(f"${{file:{path}:key.password}}", {}) == "s3cret"


def test_resolve_directory_reference_returns_file_content(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3crét\n", encoding="utf-8")
    assert resolve_references(f"<${{directory:{tmp_path}:password}}>", {}) == "<s3crét\n>"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("${env:MISSING}", "the environment has no variable MISSING"),
        ("${file:nowhere}", "must be"),
        ("${directory:nowhere}", "must be"),
        ("${directory:/tmp:../etc/passwd}", "must be"),
        ("${directory:/tmp:..}", "must be"),
        ("${directory:/tmp:}", "must be"),
        ("${directory:/no/such:key}", "/no/such/key cannot be read: No such file"),
        ("${file:/no/such/file:key}", "/no/such/file cannot be read: No such file"),
    ],
)
def test_resolve_missing_value_names_it(value: str, problem: str) -> None:
    with pytest.raises(BadValueError, match=problem):
        resolve_references(value, ENVIRONMENT)


def test_resolve_of_a_missing_key_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("other=s3cret\n")
    with pytest.raises(BadValueError, match=r"secrets\.properties has no key key$"):
        resolve_references(f"${{file:{path}:key}}", {})


def test_settings_resolve_values_and_report_missing_ones() -> None:
    pairs = read_pairs(["num.partitions=${env:COUNT}"])
    settings = Settings.from_entries(pairs, environment={"COUNT": "7"})
    assert settings.text("num.partitions") == "7"
    with pytest.raises(ConfigError, match=r"num\.partitions.*no variable COUNT"):
        Settings.from_entries(pairs, environment={})


# ------------------------------------------------------------------------------ security_relations


TLS_LISTENER = "listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"


def tls_problem(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=[TLS_LISTENER, *pairs])
    [text] = caught.value.problems
    return text


def test_tls_listener_without_certificate_is_rejected() -> None:
    text = tls_problem()
    assert text.startswith("listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0 (--set):")
    assert "ssl.keystore.location" in text
    Settings.from_sources(pairs=[TLS_LISTENER, "ssl.keystore.location=/k.pem"])
    Settings.from_sources(pairs=[TLS_LISTENER, "listener.name.ssl.ssl.keystore.location=/k.pem"])
    inline = ["ssl.keystore.key=k", "ssl.keystore.certificate.chain=c"]
    Settings.from_sources(pairs=[TLS_LISTENER, *inline])
    assert "SSL" in tls_problem("ssl.keystore.key=k")


def test_keystore_file_and_inline_key_together_are_rejected() -> None:
    text = tls_problem("ssl.keystore.location=/k.pem", "ssl.keystore.key=secret")
    assert text.startswith("ssl.keystore.location=/k.pem (--set): conflicts with ssl.keystore.key")
    text = tls_problem(
        "ssl.keystore.location=/k.pem",
        "listener.name.ssl.ssl.truststore.location=/t.pem",
        "ssl.truststore.certificates=c",
    )
    assert text.startswith("listener.name.ssl.ssl.truststore.location=/t.pem")


@pytest.mark.parametrize("wanted", ["requested", "required"])
def test_client_auth_without_truststore_is_rejected(wanted: str) -> None:
    text = tls_problem("ssl.keystore.location=/k.pem", f"ssl.client.auth={wanted}")
    assert text.startswith(f"ssl.client.auth={wanted} (--set): needs certificate authorities")


def test_client_auth_without_tls_listener_is_accepted() -> None:
    Settings.from_sources(pairs=["ssl.client.auth=required"])


def variable_of(name: str) -> str:
    """The variable of a setting by the rule of Kafka's image."""
    return name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def test_each_setting_has_a_variable_by_the_rule_of_kafka_s_image_and_a_plain_one() -> None:
    for name in BROKER_SETTINGS:
        assert setting_name(variable_of(name)) == name
        assert setting_name(name.replace(".", "_").replace("-", "_").upper()) == name


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        (
            "LISTENER_NAME_SASL__SSL_SCRAM___SHA___512_SASL_JAAS_CONFIG",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
        ),
        ("CONTROLLER_QUORUM_VOTERS", "controller.quorum.voters"),
        ("ZOOKEEPER_CLIENTCNXNSOCKET", "zookeeper.clientcnxnsocket"),
    ],
)
def test_name_that_is_not_in_the_table_follows_the_rule(variable: str, name: str) -> None:
    assert setting_name(variable) == name


def test_own_variable_takes_precedence_over_that_of_kafka() -> None:
    found = read_environment(
        {"MINIBROKER_NUM_PARTITIONS": "3", "KAFKA_NUM_PARTITIONS": "2", "PATH": "/bin"}
    )
    assert found.entries == [
        SettingEntry("num.partitions", "2", "$KAFKA_NUM_PARTITIONS"),
        SettingEntry("num.partitions", "3", "$MINIBROKER_NUM_PARTITIONS"),
    ]
    assert found.ignored == []


def test_mistyped_variables_are_all_rejected_with_the_nearest_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"MINIBROKER_NUM_PARTITION": "3", "KAFKA_LOG_RETENTION_M": "2"})
    problem = "{} (${}): there is no such setting; did you mean {}?"
    assert caught.value.problems == (
        problem.format("log.retention.m", "KAFKA_LOG_RETENTION_M", "log.retention.ms"),
        problem.format("num.partition", "MINIBROKER_NUM_PARTITION", "num.partitions"),
    )


def test_own_variable_that_resembles_nothing_is_rejected_too() -> None:
    with pytest.raises(ConfigError, match=r"colour \(\$MINIBROKER_COLOUR\): there is no such"):
        read_environment({"MINIBROKER_COLOUR": "red"})


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("MINIBROKER_DATA_DIR", "; pass the option --data-dir"),
        ("MINIBROKER_SEDE", "; did you mean MINIBROKER_SEED?"),
    ],
)
def test_variable_of_no_setting_is_rejected_with_the_option_or_variable_that_exists(
    variable: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({variable: "9092"}, {"--data-dir"})
    (problem,) = caught.value.problems
    assert problem.endswith(advice)


def test_variables_of_a_service_of_kubernetes_are_no_settings() -> None:
    links = {
        "MINIBROKER_PORT": "tcp://10.0.0.1:9092",
        "MINIBROKER_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "MINIBROKER_PORT_9092_TCP_ADDR": "10.0.0.1",
        "MINIBROKER_SERVICE_HOST": "10.0.0.1",
        "MINIBROKER_SERVICE_PORT": "9092",
        "MINIBROKER_SERVICE_PORT_CONTROL": "8080",
    }
    assert read_environment(links) == ([], [])


def test_kafka_variables_of_other_programs_are_ignored_with_a_warning() -> None:
    others = {
        "KAFKA_BOOTSTRAP_SERVERS": "k:9092",
        "KAFKA_PORT_9092_TCP_PROTO": "tcp",
        "KAFKA_SERVICE_HOST": "10.0.0.1",
    }
    found = read_environment(others | dict.fromkeys(NOT_SETTINGS, "x"))
    assert found.entries == []
    assert [entry.name for entry in found.ignored] == sorted(others)
    settings = Settings.from_entries([], ignored=found.ignored)
    assert all(name in settings.warnings[0] for name in others)


def test_settings_that_only_kafka_has_are_ignored_as_in_a_file() -> None:
    found = read_environment({"KAFKA_PROCESS_ROLES": "broker,controller"})
    settings = Settings.from_entries(found.entries)
    assert [entry.name for entry in settings.ignored] == ["process.roles"]
