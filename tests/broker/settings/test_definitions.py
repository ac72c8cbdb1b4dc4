"""The table of broker settings: defaults, valid values, and that every row is read by the code."""

from __future__ import annotations

import pickle
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minibroker.broker import settings as config
from minibroker.broker.personas.persona import NAMES
from minibroker.broker.quotas.types import QuotaType
from minibroker.broker.settings import (
    BROKER_SETTINGS,
    ConfigError,
    Setting,
    Settings,
    definitions,
    topics,
)
from minibroker.broker.settings.definitions import (
    ACTIVITY_ENABLE,
    ACTIVITY_RETENTION_BYTES,
    ACTIVITY_SAMPLE,
    ADVERTISE_CONTROLLER_REQUESTS,
    AUTHORIZER_CLASS_NAME,
    CONNECTIONS_MAX_REAUTH_MS,
    CONTROLLER_QUOTA_WINDOW_NUM,
    FETCH_MAX_BYTES,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    JOURNAL_ENABLE,
    JOURNAL_MAX_BYTES,
    KAFKA_CONNECTIONS_MAX,
    KAFKA_CONNECTIONS_MAX_OVERRIDES,
    KAFKA_CONNECTIONS_MAX_PER_IP,
    LOG_CLEANER_BACKOFF_MS,
    LOG_CLEANER_THREADS,
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    MAX_REQUEST_PARTITION_SIZE_LIMIT,
    MESSAGE_MAX_BYTES,
    PERSONA,
    QUOTA_CONSUMER_DEFAULT,
    QUOTA_PRODUCER_DEFAULT,
    QUOTA_THROTTLE_MODE,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    SASL_JAAS_CONFIG,
    SASL_OAUTHBEARER_JWKS_ENDPOINT_URL,
    SSL_ENABLED_PROTOCOLS,
    SSL_KEYSTORE_KEY,
    SUPER_USERS,
    THREAD_COUNTS,
)
from minibroker.broker.settings.dynamic import problems
from minibroker.broker.settings.setting import (
    AUTHORIZERS,
    INT_MAX,
    LONG_MAX,
    BadValueError,
    HostLimit,
)
from minibroker.broker.settings.topics import synonyms_of

# ------------------------------------------------------------------------------------- definitions


PACKAGE = Path(__file__).parents[3] / "minibroker"
TABLES = ("definitions.py", "topics.py")


@cache
def words_read() -> frozenset[str]:
    """Return every name in the broker's source, except for the tables of settings."""
    texts = (
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if not (path.parent.name == "settings" and path.name in TABLES)
    )
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def constants(module: ModuleType) -> dict[str, Setting[Any]]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Setting)}


BROKER = constants(definitions)
TOPIC = constants(topics)


def refusal(*pairs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=pairs)
    return str(caught.value)


def acts(name: str, setting: Setting[Any]) -> bool:
    """Whether the code reads the setting, or what it is the default of: a quota, a topic config."""
    defaults_of_quotas = {kind.row.default_setting for kind in QuotaType}
    return (
        name in words_read()
        or setting.name in defaults_of_quotas
        or any(
            not topic.no_effect and topic_name in words_read()
            for topic_name, topic in TOPIC.items()
            if setting in [synonym.setting for synonym in synonyms_of(topic)]
        )
    )


def test_constant_is_named_after_its_setting() -> None:
    assert len(BROKER) == len(BROKER_SETTINGS)
    for name, setting in {**BROKER, **TOPIC}.items():
        assert name == setting.name.upper().replace(".", "_")


@pytest.mark.parametrize("name", BROKER)
def test_broker_setting_is_used_or_documents_no_effect(name: str) -> None:
    assert acts(name, BROKER[name]) != bool(BROKER[name].no_effect)


@pytest.mark.parametrize("name", [name for name in TOPIC if name not in BROKER])
def test_topic_config_is_used_or_documents_no_effect(name: str) -> None:
    assert (name in words_read()) != bool(TOPIC[name].no_effect)


def test_broker_synonym_of_topic_config_is_dynamic() -> None:
    stand_ins = [synonyms_of(topic)[0].setting for topic in TOPIC.values() if synonyms_of(topic)]
    assert stand_ins
    assert [setting.name for setting in stand_ins if not setting.dynamic] == []


# ------------------------------------------------------------------------------------------ access


def test_authorizer_is_unset_by_default_and_unknown_class_rejected() -> None:
    assert not Settings.from_sources()[AUTHORIZER_CLASS_NAME]
    for name in AUTHORIZERS:
        settings = Settings.from_sources(pairs=[f"authorizer.class.name={name}"])
        assert settings[AUTHORIZER_CLASS_NAME] == name
    with pytest.raises(ConfigError, match="must be empty or one of"):
        Settings.from_sources(pairs=["authorizer.class.name=org.example.Mine"])


def test_super_users_are_parsed_as_principals() -> None:
    settings = Settings.from_sources(pairs=["super.users=User:CN=a,O=b; User:root;"])
    assert settings[SUPER_USERS] == ("User:CN=a,O=b", "User:root")
    assert settings.text("super.users") == "User:CN=a,O=b;User:root"
    with pytest.raises(ConfigError, match="a principal is KIND:NAME"):
        Settings.from_sources(pairs=["super.users=root"])


# ---------------------------------------------------------------------------------------- activity


@pytest.mark.parametrize("profile", ["laptop", "kafka"])
def test_activity_is_disabled_by_default(profile: str) -> None:
    settings = Settings.from_sources(profile=profile)
    assert not settings[ACTIVITY_ENABLE]
    assert settings[ACTIVITY_SAMPLE] == 1.0
    assert settings[ACTIVITY_RETENTION_BYTES] == 1 << 29


@pytest.mark.parametrize("share", ["0", "-0.5", "1.01"])
def test_activity_sample_outside_of_range_is_rejected(share: str) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        Settings.from_sources(pairs=[f"activity.sample={share}"])


ENABLED = "activity.enable=true"


def test_arrow_without_pyarrow_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ConfigError, match=r"pip install 'minibroker\[activity\]', or set it to json"
    ):
        Settings.from_sources(pairs=[ENABLED])
    for pairs in ([], [ENABLED, "activity.format=json"]):
        Settings.from_sources(pairs=pairs)


def test_unknown_activity_format_is_rejected() -> None:
    with pytest.raises(ConfigError, match="arrow, json"):
        Settings.from_sources(pairs=["activity.format=avro"])


# ------------------------------------------------------------------------------------------- admin


def test_page_of_partitions_has_kafkas_default_limit() -> None:
    assert Settings.from_sources()[MAX_REQUEST_PARTITION_SIZE_LIMIT] == 2000


def test_controller_requests_are_not_advertised_by_default() -> None:
    assert not Settings.from_sources()[ADVERTISE_CONTROLLER_REQUESTS]


def test_page_without_partitions_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"max\.request\.partition\.size\.limit"):
        Settings.from_sources(pairs=["max.request.partition.size.limit=0"])


# ----------------------------------------------------------------------------------------- cleaner


CLEANER_DEFAULTS = {
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.io.buffer.load.factor": "0.9",
    "log.cleaner.backoff.ms": "15000",
    "log.cleaner.min.cleanable.ratio": "0.5",
    "log.cleaner.delete.retention.ms": "86400000",
    "log.cleaner.min.compaction.lag.ms": "0",
    "log.cleaner.max.compaction.lag.ms": "9223372036854775807",
}


@pytest.mark.parametrize("name", CLEANER_DEFAULTS)
def test_default_of_cleaner_is_that_of_kafka(name: str) -> None:
    setting = BROKER_SETTINGS[name]
    assert setting.render(setting.default) == CLEANER_DEFAULTS[name]


def test_values_of_cleaner_are_checked() -> None:
    assert Settings.from_sources()[LOG_CLEANER_BACKOFF_MS] == 15_000
    with pytest.raises(BadValueError):
        LOG_CLEANER_THREADS.parse("-1")


# -------------------------------------------------------------------------------------- connection


def test_connections_are_unlimited_by_default() -> None:
    settings = Settings.from_sources()
    for unlimited in (MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IP, MAX_CONNECTION_CREATION_RATE):
        assert settings[unlimited] == INT_MAX
    assert settings[MAX_CONNECTIONS_PER_IP_OVERRIDES] == ()


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("127.0.0.1:5", [("127.0.0.1", 5)]),
        ("localhost:1, 10.0.0.1:0,", [("localhost", 1), ("10.0.0.1", 0)]),
        ("::1:7", [("::1", 7)]),
        ("[fe80::1%eth0]:7", [("fe80::1%eth0", 7)]),
        ("", []),
    ],
)
def test_overrides_are_split_at_the_last_colon(text: str, limits: list[tuple[str, int]]) -> None:
    found = MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(text)
    assert found == tuple(HostLimit(host, count) for host, count in limits)
    assert (
        MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(MAX_CONNECTIONS_PER_IP_OVERRIDES.render(found))
        == found
    )


@pytest.mark.parametrize(
    "text", ["127.0.0.0#:100", "127.0.0.1", ":5", "h:-1", "h:x", "h:9999999999"]
)
def test_host_override_with_invalid_entry_is_rejected(text: str) -> None:
    with pytest.raises(BadValueError, match="has the entry"):
        MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(text)


def test_redpanda_limits_are_unset_by_default() -> None:
    settings = Settings.from_sources()
    assert settings[KAFKA_CONNECTIONS_MAX] is None
    assert settings[KAFKA_CONNECTIONS_MAX_PER_IP] is None
    assert KAFKA_CONNECTIONS_MAX.parse("0") == 0
    assert KAFKA_CONNECTIONS_MAX_OVERRIDES.parse("10.0.0.1:3") == (HostLimit("10.0.0.1", 3),)


@pytest.mark.parametrize("text", ["localhost:3", "10.0.0.1:1,10.0.0.1:2", "10.0.0.1"])
def test_redpanda_override_with_host_name_or_duplicate_is_rejected(text: str) -> None:
    with pytest.raises(BadValueError):
        KAFKA_CONNECTIONS_MAX_OVERRIDES.parse(text)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (["max.connections.per.ip=0"], "max.connections.per.ip.overrides"),
        (["inter.broker.listener.name=INTERNAL"], "PLAINTEXT"),
    ],
)
def test_connection_limits_that_reject_everything_are_rejected(
    pairs: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        Settings.from_sources(pairs=pairs)


def test_zero_connections_per_ip_is_accepted_with_overrides() -> None:
    pairs = ["max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.1:5"]
    assert Settings.from_sources(pairs=pairs)[MAX_CONNECTIONS_PER_IP] == 0


@pytest.mark.parametrize(
    "limit",
    [
        "max.connections=5",
        "listener.name.plaintext.max.connections=5",
        "max.connections.per.ip=5",
        "max.connections.per.ip.overrides=127.0.0.1:5",
        "max.connection.creation.rate=5",
    ],
)
def test_single_acceptor_limit_in_sharded_mode_is_rejected(limit: str) -> None:
    name = limit.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{name}=.* \(--set\): not with .*acceptor.mode=single"):
        Settings.from_sources(pairs=["acceptor.mode=sharded", limit])
    Settings.from_sources(pairs=["acceptor.mode=single", limit])


def test_default_and_redpanda_limits_in_sharded_mode_are_accepted() -> None:
    pairs = ["acceptor.mode=sharded", "max.connections=2147483647", "kafka_connections_max=3"]
    assert Settings.from_sources(pairs=pairs)[KAFKA_CONNECTIONS_MAX] == 3


def test_stored_limit_in_sharded_mode_does_not_block_other_changes() -> None:
    started = Settings.from_sources(pairs=["acceptor.mode=sharded"])
    assert list(problems(started, {"max.connections": "5", "kafka_connections_max": "3"})) == []


# ------------------------------------------------------------------------------------------- fetch


def test_fetch_settings_have_kafkas_defaults() -> None:
    settings = Settings.from_sources()
    assert settings[FETCH_MAX_BYTES] == 55 * 1024 * 1024
    assert settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS] == 1000


def test_negative_number_of_session_slots_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"max\.incremental\.fetch\.session\.cache\.slots"):
        Settings.from_sources(pairs=["max.incremental.fetch.session.cache.slots=-1"])


# ------------------------------------------------------------------------------------------- group


def test_group_defaults_match_kafka_except_initial_rebalance_delay() -> None:
    for profile, delay_ms in (("laptop", 100), ("kafka", 3000)):
        settings = Settings.from_sources(profile=profile)
        assert settings[config.GROUP_INITIAL_REBALANCE_DELAY_MS] == delay_ms
        assert settings[config.GROUP_MIN_SESSION_TIMEOUT_MS] == 6_000
        assert settings[config.GROUP_MAX_SESSION_TIMEOUT_MS] == 1_800_000
        assert settings[config.OFFSETS_TOPIC_NUM_PARTITIONS] == 50
        assert settings[config.OFFSETS_RETENTION_MINUTES] == 10_080
        assert settings[config.OFFSET_METADATA_MAX_BYTES] == 4096


# ----------------------------------------------------------------------------------------- journal


def test_journal_by_default_is_off() -> None:
    settings = Settings.from_sources()
    assert settings[JOURNAL_ENABLE] is False
    assert settings[JOURNAL_MAX_BYTES] == 64 * 1024 * 1024


def test_journal_memory_below_the_minimum_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"journal\.max\.bytes"):
        Settings.from_sources(pairs=["journal.max.bytes=1000"])


# ----------------------------------------------------------------------------------------- persona


@pytest.mark.parametrize("name", NAMES)
def test_persona_of_settings_is_shown_by_its_name(name: str) -> None:
    settings = pickle.loads(pickle.dumps(Settings.from_sources(pairs=[f"persona={name}"])))
    persona = settings[PERSONA]
    assert persona is not None
    assert settings.text("persona") == persona.name == name


def test_no_persona_changes_nothing() -> None:
    assert Settings.from_sources()[PERSONA] is None
    assert Settings.from_sources(pairs=["persona="])[PERSONA] is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka-2.9", "; did you mean kafka-2.0 or kafka-2.4 or kafka-2.8?"),
        ("redpnda", "; did you mean redpanda?"),
        ("x", ""),
    ],
)
def test_unknown_persona_is_refused_with_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_sources(pairs=[f"persona={name}"])
    text = f"persona={name} (--set): must be one of {', '.join(NAMES)}{hint}"
    assert str(caught.value) == text


@pytest.mark.parametrize(("name", "mode"), [("kafka-1.1", "delay"), ("kafka-2.0", "mute")])
def test_throttle_mode_follows_from_the_persona(name: str, mode: str) -> None:
    settings = Settings.from_sources(pairs=[f"persona={name}"])
    assert settings[QUOTA_THROTTLE_MODE] == mode
    assert not settings.is_given(QUOTA_THROTTLE_MODE)


def test_defaults_follow_from_the_persona_unless_they_are_set() -> None:
    settings = Settings.from_sources(pairs=["persona=kafka-1.1", "message.max.bytes=5"])
    assert settings[MESSAGE_MAX_BYTES] == 5
    assert settings[GROUP_MAX_SESSION_TIMEOUT_MS] == 300_000


@pytest.mark.parametrize("pair", ["advertise.controller.requests=true", "zookeeper.connect=zk:1"])
def test_persona_without_controllers_requests_contradicts_what_needs_them(pair: str) -> None:
    Settings.from_sources(pairs=["persona=kafka-2.8", pair])
    with pytest.raises(ConfigError, match=r"LeaderAndIsr .* persona=kafka-4\.0 does not have"):
        Settings.from_sources(pairs=["persona=kafka-4.0", pair])


# ------------------------------------------------------------------------------------------- quota


def test_quota_defaults_match_kafka() -> None:
    settings = Settings.from_sources()
    assert settings[QUOTA_WINDOW_NUM] == settings[CONTROLLER_QUOTA_WINDOW_NUM] == 11
    assert settings[QUOTA_WINDOW_SIZE_SECONDS] == 1
    assert settings[QUOTA_PRODUCER_DEFAULT] == settings[QUOTA_CONSUMER_DEFAULT] == LONG_MAX
    assert settings[QUOTA_THROTTLE_MODE] == "mute"


@pytest.mark.parametrize("setting", [QUOTA_PRODUCER_DEFAULT, QUOTA_CONSUMER_DEFAULT])
def test_deprecated_setting_is_documented_as_deprecated(setting: object) -> None:
    assert getattr(setting, "doc").startswith("Deprecated")  # noqa: B009 - any setting will do


@pytest.mark.parametrize("pair", ["quota.throttle.mode=wait", "quota.window.num=0"])
def test_invalid_quota_config_is_rejected(pair: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Settings.from_sources(pairs=[pair])


# -------------------------------------------------------------------------------------------- sasl


SASL = "listeners=SASL_PLAINTEXT://127.0.0.1:0"


def test_most_specific_listener_and_mechanism_prefix_wins() -> None:
    name = CONNECTIONS_MAX_REAUTH_MS.name
    settings = Settings.from_sources(
        pairs=[
            f"{name}=1",
            f"listener.name.a.{name}=2",
            f"listener.name.a.scram-sha-256.{name}=3",
        ]
    )
    asked = [("A", "SCRAM-SHA-256"), ("A", "PLAIN"), ("A", ""), ("B", "PLAIN")]
    found = [settings.at_listener(at, CONNECTIONS_MAX_REAUTH_MS, how) for at, how in asked]
    assert found == [3, 2, 2, 1]
    ignored = Settings.from_sources(pairs=[f"listener.name.a.gssapi.{name}=3"]).ignored
    assert [entry.name for entry in ignored] == [f"listener.name.a.gssapi.{name}"]


def test_sasl_listener_without_mechanisms_or_plain_users_is_rejected() -> None:
    assert "sasl.enabled.mechanisms= (default): must name mechanisms" in refusal(SASL)
    assert "has GSSAPI; the supported mechanisms are PLAIN" in refusal(
        "sasl.enabled.mechanisms=GSSAPI"
    )
    text = refusal(SASL, "sasl.enabled.mechanisms=PLAIN")
    assert "set listener.name.sasl_plaintext.plain.sasl.jaas.config to org.apache" in text
    Settings.from_sources(pairs=[SASL, "sasl.enabled.mechanisms=SCRAM-SHA-512"])


def test_jaas_password_is_not_in_error_or_repr() -> None:
    name = f"listener.name.a.plain.{SASL_JAAS_CONFIG.name}"
    text = refusal(f"{name}=hunter2")
    assert f"{name}=[hidden] (--set): must be a JAAS line" in text
    settings = Settings.from_sources(pairs=[f'{name}=M required user_a="hunter2";'])
    assert "hunter2" not in repr(settings)


def test_jwks_url_that_is_not_a_file_is_rejected() -> None:
    name = SASL_OAUTHBEARER_JWKS_ENDPOINT_URL.name
    assert "must be a file" in refusal(f"{name}=https://example.test/jwks")
    settings = Settings.from_sources(pairs=[f"{name}=file:///etc/keys.json"])
    assert settings[SASL_OAUTHBEARER_JWKS_ENDPOINT_URL] == "/etc/keys.json"
    assert settings.text(name) == "file:///etc/keys.json"


# ---------------------------------------------------------------------------------------- security


@pytest.mark.parametrize("name", ["ssl.keystore.type", "ssl.truststore.type"])
@pytest.mark.parametrize("form", ["JKS", "pkcs12"])
def test_java_keystore_is_rejected_with_conversion_commands(name: str, form: str) -> None:
    text = refusal(f"{name}={form}")
    assert name in text
    assert "keytool -importkeystore" in text
    assert "openssl pkcs12" in text
    Settings.from_sources(pairs=[f"{name}=pem"])


def test_tls_before_1_2_is_rejected() -> None:
    assert "must be a list of TLSv1.2, TLSv1.3" in refusal("ssl.enabled.protocols=TLSv1.1")
    settings = Settings.from_sources(
        pairs=["listener.name.outside.ssl.enabled.protocols=TLSv1.3"],
    )
    assert settings.at_listener("OUTSIDE", SSL_ENABLED_PROTOCOLS) == ("TLSv1.3",)
    assert settings.at_listener("INSIDE", SSL_ENABLED_PROTOCOLS) == ("TLSv1.2", "TLSv1.3")


def test_keystore_key_is_not_in_repr() -> None:
    settings = Settings.from_sources(pairs=["listener.name.a.ssl.keystore.key=topsecret"])
    assert "topsecret" not in repr(settings)
    assert SSL_KEYSTORE_KEY.sensitive


# ------------------------------------------------------------------------------------- transaction


def test_transaction_defaults_match_kafka() -> None:
    for profile, replicas, in_sync in (("laptop", 1, 1), ("kafka", 3, 2)):
        settings = Settings.from_sources(profile=profile)
        assert settings[config.TRANSACTION_STATE_LOG_NUM_PARTITIONS] == 50
        assert settings[config.TRANSACTION_STATE_LOG_SEGMENT_BYTES] == 104_857_600
        assert settings[config.TRANSACTION_STATE_LOG_REPLICATION_FACTOR] == replicas
        assert settings[config.TRANSACTION_STATE_LOG_MIN_ISR] == in_sync
        assert settings[config.TRANSACTION_MAX_TIMEOUT_MS] == 900_000
        assert settings[config.TRANSACTIONAL_ID_EXPIRATION_MS] == 604_800_000
        abort = config.TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS
        assert settings[abort] == 10_000
        remove = config.TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS
        assert settings[remove] == 3_600_000


# --------------------------------------------------------------------------------------- zookeeper


ZOOKEEPER = "zookeeper.connect=localhost"
USER = "zookeeper.digest.username=us"
USER_PASSWORD = "zookeeper.digest.password=secret"


@pytest.mark.parametrize("profile", ["laptop", "kafka"])
def test_zookeeper_defaults_match_kafka(profile: str) -> None:
    settings = Settings.from_sources(profile=profile)
    assert settings[config.ZOOKEEPER_CONNECT] is None
    assert settings[config.ZOOKEEPER_SESSION_TIMEOUT_MS] == 18_000
    assert settings[config.ZOOKEEPER_CONNECTION_TIMEOUT_MS] is None
    assert settings[config.ZOOKEEPER_SET_ACL] is False
    assert settings[config.ZOOKEEPER_SSL_CLIENT_ENABLE] is False
    assert settings[config.ZOOKEEPER_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM] == "HTTPS"


@pytest.mark.parametrize("text", ["", ":2181", "a:0", "a:99999", "a:1,,b:1", "a/x//y", "a/../b"])
def test_invalid_connect_string_is_rejected(text: str) -> None:
    if not text:
        assert Settings.from_sources(pairs=["zookeeper.connect="])[config.ZOOKEEPER_CONNECT] is None
        return
    with pytest.raises(ConfigError, match=r"zookeeper\.connect="):
        Settings.from_sources(pairs=[f"zookeeper.connect={text}"])


@pytest.mark.parametrize("alone", [USER, USER_PASSWORD])
def test_digest_user_without_password_is_rejected(alone: str) -> None:
    with pytest.raises(ConfigError, match="must be given together") as caught:
        Settings.from_sources(pairs=[ZOOKEEPER, alone])
    assert "secret" not in str(caught.value)


def test_zookeeper_acl_without_credentials_is_rejected() -> None:
    wanted = [ZOOKEEPER, "zookeeper.set.acl=true"]
    with pytest.raises(ConfigError, match="needs credentials"):
        Settings.from_sources(pairs=wanted)
    with pytest.raises(ConfigError, match="needs credentials"):
        Settings.from_sources(pairs=[*wanted, "zookeeper.ssl.keystore.location=/k.pem"])
    Settings.from_sources(pairs=[*wanted, USER, USER_PASSWORD])
    tls = ["zookeeper.ssl.client.enable=true", "zookeeper.ssl.keystore.location=/k.pem"]
    Settings.from_sources(pairs=[*wanted, *tls])


def test_digest_password_is_not_in_repr() -> None:
    settings = Settings.from_sources(pairs=[ZOOKEEPER, USER, USER_PASSWORD])
    assert settings[config.ZOOKEEPER_DIGEST_PASSWORD] == "secret"
    assert config.ZOOKEEPER_DIGEST_PASSWORD.sensitive
    assert "secret" not in repr(settings)


# ------------------------------------------------------------------------------------- ineffective


_NAMES = list(BROKER_SETTINGS)
WITHOUT_EFFECT = [
    BROKER_SETTINGS[name] for name in _NAMES[_NAMES.index("compression.gzip.level") :]
]
"""The last part of the table: settings that Kafka can change while it runs."""


@pytest.mark.parametrize("setting", WITHOUT_EFFECT, ids=repr)
def test_setting_can_be_changed_and_says_why_it_has_no_effect(setting: Setting[object]) -> None:
    assert setting.dynamic
    assert setting.no_effect
    assert BROKER_SETTINGS[setting.name] is setting


@pytest.mark.parametrize(
    ("name", "invalid"),
    [
        ("num.replica.fetchers", "0"),
        ("compression.gzip.level", "0"),
        ("compression.zstd.level", "23"),
        ("log.local.retention.ms", "-3"),
        ("leader.replication.throttled.rate", "-1"),
        ("log.preallocate", "yes"),
    ],
)
def test_invalid_value_is_rejected_as_by_kafka(name: str, invalid: str) -> None:
    with pytest.raises(BadValueError):
        BROKER_SETTINGS[name].parse(invalid)


def test_numbers_of_threads_are_settings() -> None:
    assert BROKER_SETTINGS.keys() >= THREAD_COUNTS
