"""Settings: their definitions with default, scope and description, and the types of their values.

Owns the class `Setting`, the registers of all settings, the parsing and rendering of single values,
among them JAAS configurations (``module required name="value" …;``), and the error texts of invalid
ones; it must never know the values of a running broker (see `minibroker.broker.settings.settings`).
Invariants: the defaults of a setting are valid, checked when it is declared; for every type,
``parse(render(value)) == value``, so a value from DescribeConfigs can be used in a properties file;
no error repeats a value of a JAAS configuration, because most are secrets.  Echoes Kafka's
``ConfigDef.ConfigKey`` and ``ConfigDef.Type``, its validators, and ``JaasConfig``.
"""

from __future__ import annotations

import enum
import ipaddress
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

# ------------ Names that are no settings of this broker: Kafka's unsupported ones and mistyped ones
# Owns the list of Kafka settings that this broker does not support, so that a properties file
# written for Kafka causes one warning, while a misspelled name is rejected; and the measure of
# similarity of names: the share of both names' characters that are common and in the same order. It
# must never hold a value. Invariants: no unsupported name is also declared in ``definitions`` (a
# test checks this); names whose lengths differ too much are not compared, so a long name from a
# client costs nothing. Source: Kafka's configuration classes, 2.x to 4.x. Python's ``difflib``
# measures similarly, but importing it takes 7 ms, which every start of a broker would wait for.


def _names(prefix: str, suffixes: str) -> frozenset[str]:
    return frozenset(prefix + suffix for suffix in suffixes.split())


KNOWN_UNSERVED = frozenset().union(
    _names(
        "",
        """advertised.host.name advertised.port alter.config.policy.class.name
        alter.log.dirs.replication.quota.window.num
        alter.log.dirs.replication.quota.window.size.seconds
        auto.include.jmx.reporter auto.leader.rebalance.enable
        broker.heartbeat.interval.ms broker.id.generation.enable broker.session.timeout.ms
        client.quota.callback.class
        config.providers
        control.plane.listener.name create.topic.policy.class.name
        delete.records.purgatory.purge.interval.requests early.start.listeners
        eligible.leader.replicas.enable fetch.purgatory.purge.interval.requests
        host.name initial.broker.registration.timeout.ms
        inter.broker.protocol.version kafka.metrics.polling.interval.secs
        kafka.metrics.reporters leader.imbalance.check.interval.seconds
        leader.imbalance.per.broker.percentage
        metric.reporters metrics.num.samples
        metrics.recording.level metrics.sample.window.ms
        num.replica.alter.log.dirs.threads offsets.commit.required.acks
        offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec
        password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
        password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret
        port process.roles
        producer.purgatory.purge.interval.requests
        replication.quota.window.num
        replication.quota.window.size.seconds request.timeout.ms reserved.broker.max.id
        security.providers server.max.startup.time.ms
        socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
        transaction.state.log.load.buffer.size transaction.two.phase.commit.enable
        unclean.leader.election.interval.ms unstable.api.versions.enable
        unstable.feature.versions.enable""",
    ),
    _names("controlled.shutdown.", "enable max.retries retry.backoff.ms"),
    _names(
        "controller.",
        """performance.always.log.threshold.ms performance.sample.period.ms
        quorum.append.linger.ms quorum.auto.join.enable quorum.bootstrap.servers
        quorum.election.backoff.max.ms quorum.election.timeout.ms quorum.fetch.timeout.ms
        quorum.request.timeout.ms quorum.retry.backoff.ms quorum.voters
        socket.timeout.ms""",
    ),
    _names(
        "delegation.token.",
        "master.key",
    ),
    _names("group.coordinator.", "append.linger.ms new.enable threads"),
    _names(
        "group.share.",
        "assignors enable max.groups persister.class.name",
    ),
    _names(
        "log.",
        """dir.failure.timeout.ms flush.offset.checkpoint.interval.ms
        flush.start.offset.checkpoint.interval.ms initial.task.delay.ms
        message.downconversion.enable message.format.version
        message.timestamp.difference.max.ms roll.jitter.hours""",
    ),
    _names(
        "metadata.",
        """log.dir log.max.record.bytes.between.snapshots log.max.snapshot.interval.ms
        log.segment.bytes log.segment.min.bytes log.segment.ms max.idle.interval.ms
        max.retention.bytes max.retention.ms""",
    ),
    _names(
        "replica.",
        """fetch.backoff.ms fetch.max.bytes fetch.min.bytes fetch.response.max.bytes
        fetch.wait.max.ms high.watermark.checkpoint.interval.ms lag.time.max.ms selector.class
        socket.receive.buffer.bytes socket.timeout.ms""",
    ),
    _names(
        "sasl.",
        """client.callback.handler.class login.callback.handler.class login.class
        login.connect.timeout.ms login.read.timeout.ms
        login.refresh.buffer.seconds login.refresh.min.period.seconds login.refresh.window.factor
        login.refresh.window.jitter login.retry.backoff.max.ms login.retry.backoff.ms
        mechanism.controller.protocol mechanism.inter.broker.protocol
        oauthbearer.jwks.endpoint.refresh.ms oauthbearer.jwks.endpoint.retry.backoff.max.ms
        oauthbearer.jwks.endpoint.retry.backoff.ms oauthbearer.scope.claim.name
        oauthbearer.token.endpoint.url server.callback.handler.class""",
    ),
    _names(
        "share.coordinator.",
        """append.linger.ms cold.partition.snapshot.interval.ms load.buffer.size
        state.topic.compression.codec state.topic.min.isr state.topic.prune.interval.ms
        state.topic.replication.factor threads write.timeout.ms""",
    ),
    _names("share.fetch.", "max.fetch.records purgatory.purge.interval.requests"),
    _names(
        "ssl.",
        """cipher.suites endpoint.identification.algorithm
        engine.factory.class keymanager.algorithm keystore.password protocol provider
        secure.random.implementation trustmanager.algorithm truststore.password""",
    ),
    _names(
        "zookeeper.",
        """clientCnxnSocket max.in.flight.requests metadata.migration.enable
        metadata.migration.min.batch.size ssl.cipher.suites ssl.crl.enable ssl.enabled.protocols
        ssl.keystore.type ssl.ocsp.enable ssl.protocol ssl.truststore.password
        ssl.truststore.type""",
    ),
)

_KNOWN_PREFIXES = ("remote.", "rlmm.config.", "rsm.config.", "confluent.", "metrics.jmx.")


def is_unsupported_kafka_setting(name: str) -> bool:
    """Whether this is the name of a Kafka setting that this broker does not support.

    A name for one listener (``listener.name.internal.ssl.keystore.location``) is known if the
    setting after the prefix is known.  A SASL mechanism may precede the setting.
    """
    if name in KNOWN_UNSERVED or name.startswith(_KNOWN_PREFIXES):
        return True
    if not name.startswith(LISTENER_PREFIX):
        return False
    words = name.removeprefix(LISTENER_PREFIX).split(".")
    rests = (".".join(words[start:]) for start in range(1, len(words)))
    return any(rest in KNOWN_UNSERVED or rest in BROKER_SETTINGS for rest in rests)


def similar_names(
    name: str, names: Iterable[str], *, count_max: int, similarity_min: float
) -> list[str]:
    """Return the most similar names, the best first."""
    found = []
    for each in names:
        total = len(name) + len(each)
        if 2 * min(len(name), len(each)) < similarity_min * total:
            continue
        similarity = 2 * _common_characters(name, each) / total if total else 1.0
        if similarity >= similarity_min:
            found.append((similarity, each))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [each for _, each in found[:count_max]]


def _common_characters(first: str, second: str) -> int:
    """Return the length of the longest common subsequence."""
    before = [0] * (len(second) + 1)
    for character in first:
        row = [0]
        for at, other in enumerate(second):
            row.append(before[at] + 1 if character == other else max(row[at], before[at + 1]))
        before = row
    return before[-1]


T = TypeVar("T")
U = TypeVar("U")

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Kind(enum.IntEnum):
    """The type tags of DescribeConfigs responses (KIP-569), with Kafka's numbers."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class BadValueError(Exception):
    """An invalid value; the message describes the valid ones."""


@dataclass(frozen=True)
class SettingType(Generic[T]):
    """A type: its tag in the protocol, its name in the docs, and its parser and renderer."""

    kind: Kind
    title: str
    parse: Callable[[str], T]
    render: Callable[[T], str]


@dataclass(frozen=True)
class Valid(Generic[T]):
    """A constraint on values of a type; ``text`` completes the sentence "must be …"."""

    text: str
    check: Callable[[T], bool]


def at_least(minimum: float) -> Valid[float]:
    """Require a value of at least ``minimum``."""
    return Valid(f"at least {minimum}", lambda value: value >= minimum)


def between(minimum: float, maximum: float) -> Valid[float]:
    """Require a value within the bounds, inclusive."""
    return Valid(f"between {minimum} and {maximum}", lambda value: minimum <= value <= maximum)


def one_of(*allowed: str) -> Valid[str]:
    """Require one of these values; case matters."""
    return Valid(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def some_of(*allowed: str) -> Valid[tuple[str, ...]]:
    """Require a non-empty list of these values."""
    text = f"a list of {', '.join(allowed)}"
    return Valid(text, lambda value: bool(value) and all(item in allowed for item in value))


def any_valid(*options: Valid[Any]) -> Valid[Any]:
    """Require that at least one of these constraints is met."""
    text = " or ".join(option.text for option in options)
    return Valid(text, lambda value: any(option.check(value) for option in options))


def equals(wanted: object) -> Valid[Any]:
    """Require exactly this value."""
    return Valid(str(wanted), lambda value: value == wanted)


def _whole_number(title: str, bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", text) or len(text) > 20:
            raise BadValueError(f"must be a whole number ({title})")
        value = int(text)
        if not -limit <= value < limit:
            raise BadValueError(f"must be between {-limit} and {limit - 1} ({title})")
        return value

    return parse


def _parse_double(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadValueError("must be a number") from None
    if not math.isfinite(value):
        raise BadValueError("must be a finite number")
    return value


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise BadValueError("must be true or false")
    return lowered == "true"


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


INT = SettingType(Kind.INT, "int", _whole_number("32 bits", 32), str)
SHORT = SettingType(Kind.SHORT, "short", _whole_number("16 bits", 16), str)
LONG = SettingType(Kind.LONG, "long", _whole_number("64 bits", 64), str)
DOUBLE = SettingType(Kind.DOUBLE, "double", _parse_double, str)
BOOLEAN = SettingType(
    Kind.BOOLEAN, "boolean", _parse_boolean, lambda value: "true" if value else "false"
)
STRING: SettingType[str] = SettingType(Kind.STRING, "string", str, str)
PASSWORD: SettingType[str] = SettingType(Kind.PASSWORD, "password", str, str)
"""A text that is hidden from all output."""

LIST: SettingType[tuple[str, ...]] = SettingType(Kind.LIST, "list", _parse_list, ",".join)


def optional(inner: SettingType[U]) -> SettingType[U | None]:
    """Extend ``inner`` by None, which is written as the empty text."""

    def parse(text: str) -> U | None:
        return inner.parse(text) if text else None

    def render(value: U | None) -> str:
        return "" if value is None else inner.render(value)

    return SettingType(inner.kind, inner.title, parse, render)


class HostPort(NamedTuple):
    """An address to listen on or connect to; port 0 selects a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_HOST = r"\[[0-9a-fA-F:.%]+\]|[0-9a-zA-Z\-%._]*"
_HOST_PORT = re.compile(rf"(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})")


def parse_host_port(text: str) -> HostPort:
    """Parse ``host:port`` (an IPv6 host in brackets, an empty host for all interfaces)."""
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        raise BadValueError("must be host:port, an IPv6 host in brackets, e.g. 127.0.0.1:8080")
    port = int(match["port"])
    if port > 65535:
        raise BadValueError(
            f"has port {port}; a port is between 0 and 65535 (0 selects a free one)"
        )
    return HostPort(match["host"].strip("[]"), port)


PLAINTEXT_PREFIX: Final = "PLAINTEXT://"


def parse_plaintext_listener(text: str) -> HostPort:
    """Parse ``host:port`` or ``PLAINTEXT://host:port``, for programs that serve plaintext only."""
    try:
        return parse_host_port(text.removeprefix(PLAINTEXT_PREFIX))
    except BadValueError as error:
        raise BadValueError(f"{error}, and may start with {PLAINTEXT_PREFIX}") from None


HOST_PORT = SettingType(Kind.STRING, "host:port", parse_host_port, str)

DEFAULT_ZOOKEEPER_PORT = 2181


class ConnectString(NamedTuple):
    """ZooKeeper servers, and the chroot ("" for the root)."""

    servers: tuple[HostPort, ...]
    chroot: str

    def __str__(self) -> str:
        return ",".join(map(str, self.servers)) + self.chroot


def parse_connect_string(text: str) -> ConnectString:
    """Parse ``host:port,host:port/chroot``; the default port is 2181."""
    hosts, slash, chroot = text.partition("/")
    servers = []
    for host in (part.strip() for part in hosts.split(",")):
        with_port = host if re.search(r":[0-9]+$", host) else f"{host}:{DEFAULT_ZOOKEEPER_PORT}"
        server = parse_host_port(with_port)
        if not server.host or not server.port:
            raise BadValueError("must be host:port,host:port/chroot, e.g. localhost:2181/kafka")
        servers.append(server)
    parts = chroot.rstrip("/").split("/")
    if chroot.strip("/") and any(part in ("", ".", "..") for part in parts):
        raise BadValueError(f"has the chroot {slash}{chroot}, which is not a path")
    return ConnectString(tuple(servers), "/" + "/".join(parts) if chroot.strip("/") else "")


CONNECT_STRING = SettingType(Kind.STRING, "host:port,…/chroot", parse_connect_string, str)


_LIMITED_HOST = re.compile(r"[0-9A-Za-z:%._-]+")


class HostLimit(NamedTuple):
    """Maximum number of connections of one host, e.g. ``127.0.0.1:200``."""

    host: str
    connections: int

    def __str__(self) -> str:
        return f"{self.host}:{self.connections}"


def _parse_limits(text: str) -> tuple[HostLimit, ...]:
    return tuple(_parse_limit(entry.strip()) for entry in text.split(",") if entry.strip())


def _parse_limit(entry: str) -> HostLimit:
    # Split at the last colon, because an IPv6 address contains colons.
    host, _, count = entry.rpartition(":")
    host = host.strip().strip("[]")
    if not _LIMITED_HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,10}", count.strip()):
        raise BadValueError(f"has the entry '{entry}'; an entry is host:number, e.g. 127.0.0.1:200")
    if int(count) > INT_MAX:
        raise BadValueError(f"has the entry '{entry}', whose number exceeds {INT_MAX}")
    return HostLimit(host, int(count))


def _render_limits(limits: tuple[HostLimit, ...]) -> str:
    return ",".join(map(str, limits))


HOST_LIMITS = SettingType(Kind.STRING, "list of host:number", _parse_limits, _render_limits)


def _parse_ip_limits(text: str) -> tuple[HostLimit, ...]:
    limits = _parse_limits(text)
    for host, _ in limits:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise BadValueError(f"has the host '{host}', which is not an IP address") from None
        if sum(host == limit.host for limit in limits) > 1:
            raise BadValueError(f"names {host} twice")
    return limits


IP_LIMITS = SettingType(Kind.STRING, "list of ip:number", _parse_ip_limits, _render_limits)

AUTHORIZERS = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)


def _parse_authorizer(text: str) -> str:
    if text and text not in AUTHORIZERS:
        raise BadValueError(f"must be empty or one of {', '.join(AUTHORIZERS)}")
    return text


def _parse_principals(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(";") if part.strip())
    for principal in found:
        kind, _, name = principal.partition(":")
        if not (kind and name):
            raise BadValueError(f"has '{principal}'; a principal is KIND:NAME, e.g. User:alice")
    return found


AUTHORIZER = SettingType(Kind.CLASS, "class name", _parse_authorizer, STRING.render)
PRINCIPALS = SettingType(
    Kind.STRING, "principals, separated by semicolons", _parse_principals, ";".join
)


def _parse_store_type(text: str) -> str:
    if text.upper() in ("JKS", "PKCS12"):
        raise BadValueError(
            "must be PEM; convert a Java store: keytool -importkeystore -srckeystore FILE "
            "-destkeystore store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 "
            "-out store.pem -nodes"
        )
    if text.upper() != "PEM":
        raise BadValueError("must be PEM")
    return "PEM"


STORE_TYPE = SettingType(Kind.STRING, "PEM", _parse_store_type, str)

_FILE: Final = "file:"

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The supported SASL mechanisms."""


def _parse_file_url(text: str) -> str:
    path = text.removeprefix(_FILE).removeprefix("//")
    if not text.startswith(_FILE) or not path.startswith("/"):
        raise BadValueError("must be a file, e.g. file:///etc/minibroker/jwks.json")
    return path


def _parse_mechanisms(text: str) -> tuple[str, ...]:
    found = LIST.parse(text)
    for name in found:
        if name not in MECHANISMS:
            raise BadValueError(f"has {name}; the supported mechanisms are {', '.join(MECHANISMS)}")
    return found


MECHANISM_LIST = SettingType(Kind.LIST, "list", _parse_mechanisms, LIST.render)
FILE_URL = SettingType(Kind.STRING, "file:///…", _parse_file_url, lambda path: f"{_FILE}//{path}")


JAAS_EXAMPLE: Final = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
)
_JAAS_FLAGS: Final = ("required", "requisite", "sufficient", "optional")

_JAAS_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<word>[^\s="';]+)|(?P<mark>[=;]))""", re.DOTALL
)


class JaasEntry(NamedTuple):
    """One login module with its options."""

    module: str
    flag: str
    options: tuple[tuple[str, str], ...]

    @property
    def module_name(self) -> str:
        """The class without its package."""
        return self.module.rpartition(".")[2]

    @property
    def users(self) -> dict[str, str]:
        """Passwords by user name, from options such as ``user_alice="secret"``."""
        return {
            name.removeprefix("user_"): value
            for name, value in self.options
            if name.startswith("user_")
        }


def parse_jaas(text: str) -> JaasEntry:
    """Parse a text with exactly one login module; raise `BadValueError`."""
    tokens = list(_jaas_tokens(text))
    if len(tokens) < 3 or tokens[-1] != ";" or tokens[1].lower() not in _JAAS_FLAGS:
        raise BadValueError(f"must be a JAAS line with one login module, e.g. {JAAS_EXAMPLE}")
    module, flag, *rest = tokens[:-1]
    if ";" in rest:
        raise BadValueError("must have one login module; use a separate setting for each mechanism")
    options: dict[str, str] = {}
    for at in range(0, len(rest), 3):
        name, *pair = rest[at : at + 3]
        if len(pair) != 2 or pair[0] != "=" or "=" in (name, pair[1]):
            raise BadValueError(f'must have options as name="value"; the {at // 3 + 1}. has none')
        options[_unquoted(name)] = _unquoted(pair[1])
    return JaasEntry(_unquoted(module), flag.lower(), tuple(options.items()))


def _jaas_tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _JAAS_TOKEN.match(text, at)
        if match is None:
            raise BadValueError(f"must be a JAAS line, e.g. {JAAS_EXAMPLE}; a quote is not closed")
        found.append(match.group().strip())
        at = match.end()
    return found


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.DOTALL) if token[0] == '"' else token


def _quoted(value: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def render_jaas(entry: JaasEntry) -> str:
    """Render a login module as text."""
    options = "".join(f" {name}={_quoted(value)}" for name, value in entry.options)
    return f"{entry.module} {entry.flag}{options};"


JAAS: SettingType[JaasEntry] = SettingType(Kind.PASSWORD, "JAAS line", parse_jaas, render_jaas)


class Scope(enum.Enum):
    """The type of resource that a setting applies to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"


LISTENER_PREFIX = "listener.name."

_REGISTERS: dict[Scope, dict[str, Setting[Any]]] = {scope: {} for scope in Scope}

BROKER_SETTINGS = _REGISTERS[Scope.BROKER]
"""All broker settings by name, in the order of the reference."""

TOPIC_SETTINGS = _REGISTERS[Scope.TOPIC]
"""All topic settings by name, in the order of the reference."""

GROUP_SETTINGS = _REGISTERS[Scope.GROUP]
"""All group configs by name, in the order of the reference; declared in ``groups``."""

CLIENT_METRICS_SETTINGS = _REGISTERS[Scope.CLIENT_METRICS]
"""All client metrics configs by name; declared in ``client_metrics``."""


@dataclass(frozen=True, eq=False)
class Setting(Generic[T]):
    """A setting, which is also the key for reading its value: one row of a table.

    A default of None is set at startup; the reference then shows ``default_text``.
    ``kafka_default`` is the default with ``--profile kafka``, None if it is the same.
    ``no_effect`` is the reason why the broker accepts and reports a value but does not use it;
    empty for all other settings.
    ``dynamic`` settings can be changed while the broker runs, for one broker or for all.
    ``per_listener`` settings can be set for one listener, as ``listener.name.<listener>.<name>``.
    ``per_mechanism`` settings can be set for one SASL mechanism of a listener; the mechanism's name
    precedes the setting's.  ``dynamic_at_listener`` settings can be changed while the broker runs,
    but only for one listener of one broker; they are ``dynamic``, too. ``per_broker`` settings
    cannot be changed for all brokers.
    """

    name: str
    type: SettingType[T]
    default: T
    valid: Valid[Any] | None = None
    _: KW_ONLY
    doc: str
    scope: Scope = Scope.BROKER
    kafka_default: T | None = None
    no_effect: str = ""
    default_text: str | None = None
    dynamic: bool = False
    per_listener: bool = False
    per_mechanism: bool = False
    dynamic_at_listener: bool = False
    per_broker: bool = False

    def __post_init__(self) -> None:
        """Check the defaults, and add the setting to its register."""
        for value in (self.default, self.kafka_default):
            if self.valid is not None and value is not None and not self.valid.check(value):
                raise ValueError(f"{self.name}: the default {value!r} is not {self.valid.text}")
        register = _REGISTERS[self.scope]
        if self.name in register:
            raise ValueError(f"{self.name} is declared twice")
        if self.dynamic_at_listener:
            object.__setattr__(self, "dynamic", True)
        register[self.name] = self

    @property
    def sensitive(self) -> bool:
        """Whether values are hidden from all output."""
        return self.type.kind is Kind.PASSWORD

    def parse(self, text: str) -> T:
        """Parse ``text``; raise `BadValueError` with the valid values."""
        value = self.type.parse(text.strip())
        if self.valid is not None and value is not None and not self.valid.check(value):
            raise BadValueError(f"must be {self.valid.text}")
        return value

    def render(self, value: T) -> str:
        return self.type.render(value)

    def __repr__(self) -> str:
        return f"<Setting {self.name}>"


def listener_name(listener: str, name: str) -> str:
    """Return the name of a setting for one listener: ``listener.name.internal.max.connections``."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def broker_setting(name: str) -> Setting[Any] | None:
    """Find a broker setting by its name, with or without a listener prefix; None if unknown."""
    if name in BROKER_SETTINGS:
        return BROKER_SETTINGS[name]
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, _, base = name.removeprefix(LISTENER_PREFIX).partition(".")
    declared = BROKER_SETTINGS.get(base)
    if declared is not None:
        return declared if declared.per_listener else None
    mechanism, _, base = base.partition(".")
    declared = BROKER_SETTINGS.get(base)
    is_one = declared is not None and declared.per_mechanism and mechanism.upper() in MECHANISMS
    return declared if is_one else None
