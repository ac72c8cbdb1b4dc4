"""Validated, immutable settings from files, options and environment variables.

Owns the sources of values, their precedence, Kafka's three built-in config providers, how the name
of an environment variable becomes that of a setting, and the constraints between settings; it must
never open a socket or a data directory, or read the environment of the process: variables are an
argument.  Invariants: every `Settings` object is valid as a whole, so roles do not validate
settings again, although a file that a value names may still be invalid; no error of a provider
repeats a value, because most are secrets; no variable that starts with ``MINIBROKER_`` is ignored,
and one that starts with ``KAFKA_`` is ignored with a warning if it neither is nor resembles a
setting, because applications have such variables too, and Kubernetes sets some in each container
for a service with the name ``kafka``. Echoes ``KafkaConfig.validateValues``, the precedence of
``DynamicBrokerConfig``, ``KafkaDockerWrapper``, and ``EnvVarConfigProvider``,
``FileConfigProvider`` and ``DirectoryConfigProvider`` (KIP-297, KIP-421, KIP-887), which are
enabled without ``config.providers``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.personas.persona import DELAYED, Persona
from minibroker.broker.settings import definitions as d
from minibroker.broker.settings.listeners import (
    Listener,
    client_listeners,
    has_sasl,
    has_tls,
    listener_problems,
    security_protocol,
)
from minibroker.broker.settings.setting import (
    BROKER_SETTINGS,
    JAAS_EXAMPLE,
    LISTENER_PREFIX,
    MECHANISMS,
    BadValueError,
    Setting,
    broker_setting,
    is_unsupported_kafka_setting,
    listener_name,
    similar_names,
)

T = TypeVar("T")

PROFILES = ("laptop", "kafka")
DEFAULT_SOURCE = "default"
HIDDEN = "[hidden]"
"""Replaces sensitive values, as in Kafka."""
LEADER_AND_ISR = 4
"""The API key of LeaderAndIsr."""
SIMILARITY_MIN = 0.6
"""Least similarity of a name that is suggested."""

_REFERENCE: Final = re.compile(r"\$\{(env|file|directory):([^}]*)\}")


class SettingEntry(NamedTuple):
    """A name and an unparsed value, with their source: ``server.properties:12`` or ``--set``."""

    name: str
    value: str
    where: str


class ConfigError(Exception):
    """Invalid settings; ``problems`` lists each problem with its source and how to fix it."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return ConfigError, (self.problems,)


def unknown_name(name: str, valid_names: Iterable[str]) -> str:
    """Return "; did you mean …?" with the nearest valid name, or an empty text."""
    suggestions = similar_names(name, valid_names, count_max=1, similarity_min=SIMILARITY_MIN)
    return f"; did you mean {suggestions[0]}?" if suggestions else ""


def read_properties(path: Path | str) -> list[SettingEntry]:
    """Read a properties file with line numbers; raise `ConfigError` if it is unreadable."""
    import javaproperties  # The import takes 15 ms, which a start without a file avoids.

    path = Path(path)
    found: list[SettingEntry] = []
    line = 1
    try:
        with path.open(encoding="utf-8") as file:
            for entry in javaproperties.parse(file):
                if isinstance(entry, javaproperties.KeyValue):
                    found.append(SettingEntry(entry.key, entry.value, f"{path}:{line}"))
                line += entry.source.count("\n")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not text in UTF-8"]) from None
    except ValueError as error:
        raise ConfigError([f"{path}:{line}: {error}"]) from None
    return found


def read_pairs(pairs: Iterable[str], where: str = "--set") -> list[SettingEntry]:
    """Parse ``name=value`` texts; raise `ConfigError` if one has no equals sign."""
    found = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise ConfigError([f"{where} {pair}: must be name=value, e.g. num.partitions=3"])
        found.append(SettingEntry(name.strip(), value.strip(), where))
    return found


def resolve_references(value: str, environment: Mapping[str, str]) -> str:
    """Replace the references in ``value``.

    References are ``${env:NAME}``, ``${file:PATH:KEY}`` (a value of a properties file) and
    ``${directory:PATH:FILE}`` (the content of a file).  Raise
    BadValueError if the variable, the file or the key does not exist.
    """
    if "${" not in value:
        return value

    def found(match: re.Match[str]) -> str:
        kind, what = match.groups()
        if kind == "env":
            return _variable(what, environment)
        return _from_file(what) if kind == "file" else _from_directory(what)

    return _REFERENCE.sub(found, value)


def _variable(name: str, environment: Mapping[str, str]) -> str:
    try:
        return environment[name]
    except KeyError:
        raise BadValueError(f"the environment has no variable {name}") from None


def _from_directory(what: str) -> str:
    directory, separator, name = what.rpartition(":")
    if not separator or "/" in name or name in {"", ".", ".."}:
        raise BadValueError(f"${{directory:{what}}} must be ${{directory:PATH:FILE}}")
    path = Path(directory, name)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadValueError(f"{path} is not text in UTF-8") from None


def _from_file(what: str) -> str:
    import javaproperties  # Imported only if a value refers to a file.

    path, separator, key = what.rpartition(":")
    if not separator:
        raise BadValueError(f"${{file:{what}}} must be ${{file:PATH:KEY}}")
    try:
        with Path(path).open(encoding="latin-1") as file:
            properties: Mapping[str, str] = javaproperties.load(file)
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadValueError(f"{path} is not a properties file: {error}") from None
    if key not in properties:
        raise BadValueError(f"{path} has no key {key}")
    return properties[key]


class Settings:
    """Values of all broker settings; ``settings[NUM_IO_THREADS]`` is an int.

    Picklable and immutable.  ``ignored`` are Kafka settings that this broker does not support.
    """

    __slots__ = ("_values", "_where", "ignored", "profile")

    def __init__(
        self,
        values: Mapping[str, Any],
        where: Mapping[str, str],
        ignored: tuple[SettingEntry, ...],
        profile: str,
    ) -> None:
        self._values = dict(values)
        self._where = dict(where)
        self.ignored = ignored
        self.profile = profile

    @classmethod
    def from_sources(
        cls,
        files: Iterable[Path | str] = (),
        pairs: Iterable[str] = (),
        profile: str = "laptop",
    ) -> Settings:
        """Read settings from properties files and ``name=value`` pairs.

        Later entries take precedence over earlier ones, and pairs over files.  Raise
        `ConfigError` with all problems.
        """
        given = [entry for file in files for entry in read_properties(file)]
        return cls.from_entries([*given, *read_pairs(pairs)], profile)

    @classmethod
    def from_entries(
        cls,
        entries: Iterable[SettingEntry],
        profile: str = "laptop",
        environment: Mapping[str, str] = os.environ,
        ignored: Iterable[SettingEntry] = (),
    ) -> Settings:
        """Create settings from entries in order of increasing precedence.

        ``environment`` contains the variables for ``${env:NAME}`` in values. ``ignored`` are
        entries that are mentioned as having no effect.
        """
        if profile not in PROFILES:
            raise ConfigError([f"--profile {profile}: must be one of {', '.join(PROFILES)}"])
        values = {name: _default(declared, profile) for name, declared in BROKER_SETTINGS.items()}
        where: dict[str, str] = {}
        without_effect = {entry.name: entry for entry in ignored}
        problems: list[str] = []
        for entry in {entry.name: entry for entry in entries}.values():
            declared = broker_setting(entry.name)
            if declared is not None:
                try:
                    values[entry.name] = declared.parse(
                        resolve_references(entry.value, environment)
                    )
                except BadValueError as error:
                    shown = entry._replace(value=HIDDEN) if declared.sensitive else entry
                    problems.append(_problem(shown, str(error)))
                where[entry.name] = entry.where
            elif is_unsupported_kafka_setting(entry.name):
                without_effect[entry.name] = entry
            else:
                suggestions = unknown_name(entry.name, BROKER_SETTINGS)
                problems.append(
                    f"{entry.name} ({entry.where}): there is no such setting{suggestions}"
                )
        if problems:
            raise ConfigError(problems)
        settings = cls(values, where, tuple(without_effect.values()), profile)
        settings._settle_synonyms()
        settings._settle_persona()
        problems = [*settings.problems(), *settings._start_problems()]
        if problems:
            raise ConfigError(problems)
        return settings

    def __getitem__(self, key: Setting[T]) -> T:
        value: T = self._values[key.name]
        return value

    def where(self, key: Setting[Any]) -> str:
        """Return the source of a value, e.g. ``server.properties:12`` or ``default``."""
        return self._where.get(key.name, DEFAULT_SOURCE)

    def is_given(self, key: Setting[Any]) -> bool:
        return key.name in self._where

    @property
    def given(self) -> tuple[str, ...]:
        """Return the names that were set, including listener prefixes."""
        return tuple(self._where)

    def text(self, name: str) -> str | None:
        """Return the value of a name as text; None if it has no value."""
        declared = broker_setting(name)
        value = self._values.get(name)
        return None if declared is None or value is None else declared.render(value)

    def _shown(self, name: str) -> str | None:
        declared = broker_setting(name)
        return HIDDEN if declared is not None and declared.sensitive else self.text(name)

    def value_at(self, name: str, otherwise: T) -> T:
        """Return the value set under this name for one listener, or ``otherwise``."""
        value: T = self._values.get(name, otherwise)
        return value

    def at_listener(self, listener: str, key: Setting[T], mechanism: str = "") -> T:
        """Return the most specific value for a listener, or for one of its mechanisms."""
        value = self.value_at(listener_name(listener, key.name), self[key])
        if mechanism:
            own = listener_name(listener, f"{mechanism.lower()}.{key.name}")
            value = self.value_at(own, value)
        return value

    def replaced(self, values: Mapping[str, Any], where: str) -> Settings:
        """Return a copy with other parsed values by name; ``where`` is their source."""
        return Settings(
            {**self._values, **values},
            {**self._where, **dict.fromkeys(values, where)},
            self.ignored,
            self.profile,
        )

    def with_actual_values(self, values: Mapping[str, Any]) -> Settings:
        """Return a copy with actual values by name, for example the bound port instead of 0."""
        return Settings({**self._values, **values}, self._where, self.ignored, self.profile)

    def problems(self) -> list[str]:
        """Check the constraints between settings that are valid separately."""
        return [self._problem_text(name, text) for name, text in _relations(self)]

    def _start_problems(self) -> list[str]:
        """Check constraints that apply only at startup; the config store may violate them."""
        relations = chain(_sharded_relations(self), _activity_relations(self))
        return [self._problem_text(name, text) for name, text in relations]

    def default(self, key: Setting[T]) -> T:
        """Return the default of a setting in this profile."""
        return _default(key, self.profile)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings to log at startup, at most two lines."""
        lines = []
        if self.ignored:
            names = ", ".join(sorted(entry.name for entry in self.ignored))
            lines.append(
                f"Kafka settings that this broker does not support have no effect: {names}"
            )
        if unknown := self._of_no_listener():
            lines.append(
                f"settings of unknown listeners have no effect: {', '.join(unknown)} (write the "
                f"listener's name in lower case)"
            )
        return tuple(lines)

    def _of_no_listener(self) -> list[str]:
        known = {listener.name.lower() for listener in self.client_listeners}
        prefix = LISTENER_PREFIX
        mine = [name for name in self.given if name.startswith(prefix)]
        return [name for name in mine if name.removeprefix(prefix).partition(".")[0] not in known]

    @property
    def client_listeners(self) -> tuple[Listener, ...]:
        """Return the listeners to open."""
        return client_listeners(self[d.LISTENERS], self[d.CONTROLLER_LISTENER_NAMES])

    def security_protocol(self, listener: str) -> str:
        """Return a listener's security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        protocols = self[d.LISTENER_SECURITY_PROTOCOL_MAP]
        return security_protocol(listener, dict(protocols))

    @property
    def data_dir(self) -> str | None:
        """Return the data directory; None for a temporary one."""
        dirs = self[d.LOG_DIRS]
        return dirs[0] if dirs else None

    @property
    def request_memory_bytes(self) -> int:
        """Return the size of the shared memory for requests (see `queued.max.request.bytes`)."""
        wanted = self[d.QUEUED_MAX_REQUEST_BYTES]
        return wanted if wanted > 0 else _largest_requests(self)

    def _settle_synonyms(self) -> None:
        """Copy the value of a synonym to the main setting."""
        broker_id = self[d.BROKER_ID]
        if broker_id is not None and broker_id >= 0 and not self.is_given(d.NODE_ID):
            self._values[d.NODE_ID.name] = broker_id
        if not self.is_given(d.LOG_DIRS) and self[d.LOG_DIR]:
            self._values[d.LOG_DIRS.name] = (self[d.LOG_DIR],)

    def _settle_persona(self) -> None:
        """Set what follows from the persona, unless it was given."""
        persona = self[d.PERSONA]
        for name, text in _implied_settings(persona).items() if persona else ():
            if name not in self._where:
                self._values[name] = BROKER_SETTINGS[name].parse(text)

    def _problem_text(self, name: str, text: str) -> str:
        value = self._shown(name)
        return _problem(
            SettingEntry(name, value or "", self._where.get(name, DEFAULT_SOURCE)), text
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings):
            return NotImplemented
        return self._values == other._values and self.profile == other.profile

    def __hash__(self) -> int:
        return hash((self.profile, tuple(self._where.items())))

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={self._shown(name)}" for name in self._where)
        return f"<Settings {self.profile}: {given or 'defaults'}>"


def _default(declared: Setting[T], profile: str) -> T:
    kafka_default = declared.kafka_default
    return kafka_default if profile == "kafka" and kafka_default is not None else declared.default


def _problem(entry: SettingEntry, text: str) -> str:
    return f"{entry.name}={entry.value} ({entry.where}): {text}"


def _largest_requests(settings: Settings) -> int:
    """Return the bytes of one request of the maximum size per network processor."""
    return settings[d.SOCKET_REQUEST_MAX_BYTES] * settings[d.NUM_NETWORK_THREADS]


def _implied_settings(persona: Persona) -> Mapping[str, str]:
    """Return the values of settings that follow from a persona, by name."""
    mode = d.DELAY if persona.behaviour.throttled == DELAYED else d.MUTE
    return {**persona.defaults, d.QUOTA_THROTTLE_MODE.name: mode}


def _persona_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    persona = settings[d.PERSONA]
    if persona is None or LEADER_AND_ISR in persona.versions:
        return
    text = f"needs LeaderAndIsr and other requests of controllers, which persona={persona} does "
    text += "not have; set only one of the two"
    if settings[d.ADVERTISE_CONTROLLER_REQUESTS]:
        yield d.ADVERTISE_CONTROLLER_REQUESTS.name, text
    if settings[d.ZOOKEEPER_CONNECT] is not None:
        yield d.ZOOKEEPER_CONNECT.name, text


Relation = Callable[[Settings], Iterable[tuple[str, str]]]


def _identity_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    broker_id, node_id = settings[d.BROKER_ID], settings[d.NODE_ID]
    if broker_id is not None and broker_id >= 0 and broker_id != node_id:
        yield "broker.id", f"must agree with node.id={node_id}; set only one of the two"
    if len(settings[d.LOG_DIRS]) > 1:
        yield "log.dirs", "must be one directory; several are not supported"


def _listener_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    controllers = settings[d.CONTROLLER_LISTENER_NAMES]
    configured = settings[d.ADVERTISED_LISTENERS]
    advertised = client_listeners(configured or (), controllers)
    protocols = settings[d.LISTENER_SECURITY_PROTOCOL_MAP]
    return listener_problems(settings.client_listeners, advertised, dict(protocols))


def _security_relations(settings: Settings) -> Iterator[tuple[str, str]]:
    """Check the settings of each listener: (setting name, problem) pairs."""
    for listener in settings.client_listeners:
        if has_tls(settings.security_protocol(listener.name)):
            yield from _tls_problems(settings, listener.name)
        if has_sasl(settings.security_protocol(listener.name)):
            yield from _sasl_problems(settings, listener.name)


def _tls_problems(settings: Settings, listener: str) -> Iterator[tuple[str, str]]:
    file = settings.at_listener(listener, d.SSL_KEYSTORE_LOCATION)
    chain = settings.at_listener(listener, d.SSL_KEYSTORE_CERTIFICATE_CHAIN)
    key = settings.at_listener(listener, d.SSL_KEYSTORE_KEY)
    if file is None and not (chain and key):
        text = f"has {listener}, which uses TLS but has no certificate; set "
        text += f"{d.SSL_KEYSTORE_LOCATION.name} to a PEM file with key and certificate chain, or "
        text += "set both as texts in "
        text += f"{d.SSL_KEYSTORE_KEY.name} and {d.SSL_KEYSTORE_CERTIFICATE_CHAIN.name}"
        yield "listeners", text
    if file is not None and (chain or key):
        other = d.SSL_KEYSTORE_CERTIFICATE_CHAIN if chain else d.SSL_KEYSTORE_KEY
        yield _given_name(settings, listener, d.SSL_KEYSTORE_LOCATION), _conflict(other)
    trusted = settings.at_listener(listener, d.SSL_TRUSTSTORE_LOCATION)
    inline = settings.at_listener(listener, d.SSL_TRUSTSTORE_CERTIFICATES)
    if trusted is not None and inline:
        name = _given_name(settings, listener, d.SSL_TRUSTSTORE_LOCATION)
        yield name, _conflict(d.SSL_TRUSTSTORE_CERTIFICATES)
    wanted = settings.at_listener(listener, d.SSL_CLIENT_AUTH)
    if wanted != "none" and trusted is None and not inline:
        text = "needs certificate authorities for client certificates: set "
        text += f"{d.SSL_TRUSTSTORE_LOCATION.name} to a PEM file"
        yield _given_name(settings, listener, d.SSL_CLIENT_AUTH), text


def _sasl_problems(settings: Settings, listener: str) -> Iterator[tuple[str, str]]:
    mechanisms = settings.at_listener(listener, d.SASL_ENABLED_MECHANISMS)
    name = _given_name(settings, listener, d.SASL_ENABLED_MECHANISMS)
    if not mechanisms:
        text = f"must name mechanisms for the listener {listener}: {', '.join(MECHANISMS)}"
        yield name, text
    entry = settings.at_listener(listener, d.SASL_JAAS_CONFIG, "PLAIN")
    if "PLAIN" in mechanisms and (entry is None or not entry.users):
        own = listener_name(listener, f"plain.{d.SASL_JAAS_CONFIG.name}")
        yield name, f"has PLAIN, but {listener} has no users; set {own} to {JAAS_EXAMPLE}"


def _conflict(other: Setting[Any]) -> str:
    return f"conflicts with {other.name}; set only one of them"


def _given_name(settings: Settings, listener: str, key: Setting[Any]) -> str:
    """Return the name under which the value for a listener was set."""
    own = listener_name(listener, key.name)
    return own if own in settings.given else key.name


def _bound_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    low, high = settings[d.GROUP_MIN_SESSION_TIMEOUT_MS], settings[d.GROUP_MAX_SESSION_TIMEOUT_MS]
    if low > high:
        yield "group.min.session.timeout.ms", f"must not exceed group.max.session.timeout.ms={high}"
    largest, processors = settings[d.SOCKET_REQUEST_MAX_BYTES], settings[d.NUM_NETWORK_THREADS]
    needed = _largest_requests(settings)
    if settings.request_memory_bytes < needed:
        problem = f"must hold one request of socket.request.max.bytes={largest} for each of "
        problem += f"num.network.threads={processors}, which is {needed}; raise it or lower those"
        yield "queued.max.request.bytes", problem


def _group_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    for time, least, most in (
        (
            d.GROUP_CONSUMER_SESSION_TIMEOUT_MS,
            d.GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS,
            d.GROUP_CONSUMER_MAX_SESSION_TIMEOUT_MS,
        ),
        (
            d.GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS,
            d.GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS,
            d.GROUP_CONSUMER_MAX_HEARTBEAT_INTERVAL_MS,
        ),
        (
            d.GROUP_CONSUMER_ASSIGNMENT_INTERVAL_MS,
            d.GROUP_CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS,
            d.GROUP_CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS,
        ),
        (
            d.GROUP_SHARE_SESSION_TIMEOUT_MS,
            d.GROUP_SHARE_MIN_SESSION_TIMEOUT_MS,
            d.GROUP_SHARE_MAX_SESSION_TIMEOUT_MS,
        ),
        (
            d.GROUP_SHARE_HEARTBEAT_INTERVAL_MS,
            d.GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS,
            d.GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS,
        ),
        (
            d.GROUP_STREAMS_SESSION_TIMEOUT_MS,
            d.GROUP_STREAMS_MIN_SESSION_TIMEOUT_MS,
            d.GROUP_STREAMS_MAX_SESSION_TIMEOUT_MS,
        ),
        (
            d.GROUP_STREAMS_HEARTBEAT_INTERVAL_MS,
            d.GROUP_STREAMS_MIN_HEARTBEAT_INTERVAL_MS,
            d.GROUP_STREAMS_MAX_HEARTBEAT_INTERVAL_MS,
        ),
        (
            d.GROUP_SHARE_RECORD_LOCK_DURATION_MS,
            d.GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS,
            d.GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS,
        ),
    ):
        if settings[time] < settings[least]:
            yield time.name, f"must be at least {least.name}={settings[least]}"
        if settings[time] > settings[most]:
            yield time.name, f"must not exceed {most.name}={settings[most]}"
    for session, heartbeat in (
        (d.GROUP_CONSUMER_SESSION_TIMEOUT_MS, d.GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS),
        (d.GROUP_SHARE_SESSION_TIMEOUT_MS, d.GROUP_SHARE_HEARTBEAT_INTERVAL_MS),
        (d.GROUP_STREAMS_SESSION_TIMEOUT_MS, d.GROUP_STREAMS_HEARTBEAT_INTERVAL_MS),
    ):
        if settings[session] <= settings[heartbeat]:
            yield session.name, f"must exceed {heartbeat.name}={settings[heartbeat]}"


def _streams_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    replicas, most = d.GROUP_STREAMS_NUM_STANDBY_REPLICAS, d.GROUP_STREAMS_MAX_STANDBY_REPLICAS
    if settings[replicas] > settings[most]:
        yield replicas.name, f"must not exceed {most.name}={settings[most]}"
    time, least = (
        d.GROUP_STREAMS_TASK_OFFSET_INTERVAL_MS,
        d.GROUP_STREAMS_MIN_TASK_OFFSET_INTERVAL_MS,
    )
    if settings[time] < settings[least]:
        yield time.name, f"must be at least {least.name}={settings[least]}"


def _connection_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    overrides = d.MAX_CONNECTIONS_PER_IP_OVERRIDES
    if settings[d.MAX_CONNECTIONS_PER_IP] == 0 and not settings[overrides]:
        problem = f"rejects every connection; set limits for allowed hosts in {overrides.name}"
        yield d.MAX_CONNECTIONS_PER_IP.name, problem
    name = settings[d.INTER_BROKER_LISTENER_NAME]
    names = [listener.name for listener in settings.client_listeners]
    if name is not None and name.upper() not in names:
        yield d.INTER_BROKER_LISTENER_NAME.name, f"must be one of listeners: {', '.join(names)}"


def _sharded_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    if settings[d.ACCEPTOR_MODE] != d.SHARDED:
        return
    for name in settings.given:
        declared = broker_setting(name)
        if declared in d.ONE_ACCEPTOR_ONLY and settings.value_at(name, None) != declared.default:
            yield name, f"not with acceptor.mode={d.SHARDED}: {d.SHARDED_ADVICE}"


def _activity_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    if not settings[d.ACTIVITY_ENABLE] or settings[d.ACTIVITY_FORMAT] != d.FORMAT_ARROW:
        return
    from importlib.util import find_spec  # Not loaded by brokers without activity.

    if find_spec("pyarrow") is None:
        problem = f"{d.FORMAT_ARROW} needs pyarrow, which is not installed: pip install "
        problem += f"'minibroker[activity]', or set it to {d.FORMAT_JSON}"
        yield d.ACTIVITY_FORMAT.name, problem


def _zookeeper_relations(settings: Settings) -> Iterable[tuple[str, str]]:
    has_user = settings[d.ZOOKEEPER_DIGEST_USERNAME] is not None
    if has_user != (settings[d.ZOOKEEPER_DIGEST_PASSWORD] is not None):
        yield "zookeeper.digest.username", "must be given together with zookeeper.digest.password"
    with_tls = settings[d.ZOOKEEPER_SSL_CLIENT_ENABLE]
    has_certificate = with_tls and settings[d.ZOOKEEPER_SSL_KEYSTORE_LOCATION] is not None
    if settings[d.ZOOKEEPER_SET_ACL] and not (has_user or has_certificate):
        problem = "needs credentials for the ACLs: set zookeeper.digest.username and "
        problem += "zookeeper.digest.password, or TLS with zookeeper.ssl.keystore.location"
        yield "zookeeper.set.acl", problem


_RELATIONS: tuple[Relation, ...] = (
    _identity_relations,
    _listener_relations,
    _security_relations,
    _bound_relations,
    _group_relations,
    _streams_relations,
    _connection_relations,
    _zookeeper_relations,
    _persona_relations,
)


def _relations(settings: Settings) -> Iterable[tuple[str, str]]:
    """Check all constraints between settings: (name, problem) pairs."""
    for relation in _RELATIONS:
        yield from relation(settings)


OWN: Final = "MINIBROKER_"
KAFKA: Final = "KAFKA_"

NOT_SETTINGS: Final = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
        "MINIBROKER_BOOTSTRAP_SERVER",
        "MINIBROKER_COMMAND_CONFIG",
        "MINIBROKER_CONTROL",
        "MINIBROKER_SEED",
    }
)
"""Variables for options of commands, and those that Kafka's image does not take for settings."""

_SERVICE_LINK: Final = re.compile(
    r"MINIBROKER_(SERVICE_(HOST|PORT\w*)|PORT_[0-9]+_(TCP|UDP|SCTP)\w*)=.*"
    r"|MINIBROKER_PORT=(tcp|udp|sctp)://.*"
)
"""What Kubernetes puts into containers if there is a service named ``minibroker``."""

TYPING_ERROR: Final = 0.85
"""Least similarity to a setting at which a variable that starts with ``KAFKA_`` is rejected."""


class EnvironmentSettings(NamedTuple):
    """``entries`` are in order of increasing precedence; ``ignored`` ones name no setting."""

    entries: list[SettingEntry]
    ignored: list[SettingEntry]


def read_environment(
    variables: Mapping[str, str], options: Container[str] = ()
) -> EnvironmentSettings:
    """The settings that variables name; those with ``MINIBROKER_`` take precedence.

    Raises ``ConfigError`` with all variables that were meant to be settings and are not: with the
    nearest name, or with the option of this name if ``options`` has it.
    """
    entries: list[SettingEntry] = []
    ignored: list[SettingEntry] = []
    problems: list[str] = []
    for prefix in (KAFKA, OWN):
        for variable, value in sorted(variables.items()):
            if not variable.startswith(prefix) or variable in NOT_SETTINGS:
                continue
            if _SERVICE_LINK.fullmatch(f"{variable}={value}"):
                continue
            name = setting_name(variable.removeprefix(prefix))
            if broker_setting(name) is not None or is_unsupported_kafka_setting(name):
                entries.append(SettingEntry(name, value, f"${variable}"))
            elif prefix == OWN or _resembles_setting(name):
                suggestion = _advice(name, options)
                problems.append(f"{name} (${variable}): there is no such setting{suggestion}")
            else:
                ignored.append(SettingEntry(variable, value, f"${variable}"))
    if problems:
        raise ConfigError(problems)
    return EnvironmentSettings(entries, ignored)


def _advice(name: str, options: Container[str]) -> str:
    """Return what a variable that names no setting may have been meant for."""
    option = f"--{name.replace('.', '-')}"
    if option in options:
        return f"; pass the option {option}"
    # Names of variables that are for options, such as MINIBROKER_SEED.
    others = {
        setting_name(each.removeprefix(OWN)): each for each in NOT_SETTINGS if each.startswith(OWN)
    }
    (nearest,) = similar_names(
        name, [*BROKER_SETTINGS, *others], count_max=1, similarity_min=SIMILARITY_MIN
    ) or ("",)
    return f"; did you mean {others.get(nearest, nearest)}?" if nearest else ""


def setting_name(variable: str) -> str:
    """The setting of a variable without its prefix.

    Three underscores stand for a hyphen, two for an underscore and one for a period, as in Kafka's
    image. One underscore may stand for each of them where this names a setting.
    """
    name = variable.lower().replace("___", "-").replace("__", "\0")
    name = name.replace("_", ".").replace("\0", "_")
    return name if broker_setting(name) is not None else _BY_VARIABLE.get(variable, name)


def _resembles_setting(name: str) -> bool:
    return bool(similar_names(name, BROKER_SETTINGS, count_max=1, similarity_min=TYPING_ERROR))


_BY_VARIABLE: Final = {
    "".join(letter if letter.isalnum() else "_" for letter in name).upper(): name
    for name in BROKER_SETTINGS
}
"""Settings by their names in upper case with underscores only."""
