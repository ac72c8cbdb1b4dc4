"""``minibroker configs``: describe and alter configs and quotas.

Owns this one command. Its options, output and exit codes are those of Kafka's ``kafka-configs.sh``,
so existing knowledge and scripts apply. It must never know which settings exist;
``quotas.command_lines`` validates the lines of a quota file, and the broker validates quotas.
Invariant: nothing is altered if a config to delete does not exist, or if anything in the command
line or the file is invalid.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
from click.core import ParameterSource

from minibroker.broker.quotas.command_lines import (
    BROKERS,
    CLIENT_METRICS,
    DEFAULTS,
    GROUPS,
    IPS,
    QUOTA_TYPES,
    TOPICS,
    TYPES,
    ArgumentMistake,
    Entities,
    QuotaFile,
    QuotaFileError,
    QuotaLine,
    check_keys,
    chosen,
    from_long_options,
    from_short_options,
    parse,
    parse_additions,
    parse_deletions,
    parse_quota,
    quota_text,
)
from minibroker.broker.quotas.types import CONNECTION_CREATION_RATE, value_text
from minibroker.cli import credentials
from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Command, examples
from minibroker.cli.output import CliError, ExitCode, InvalidUsage, emit, error_message, json_line
from minibroker.client import kafka_client
from minibroker.client.connection import PLAINTEXT, BootstrapServers
from minibroker.client.errors import BrokerError, ClientError, check
from minibroker.client.kafka_client import BROKER, GROUP, TOPIC, KafkaClient
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntryData,
)
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker_protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

SOURCES: Final = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "DYNAMIC_CLIENT_METRICS_CONFIG",
    "DYNAMIC_GROUP_CONFIG",
)
"""Names of config sources, by Kafka's numbers."""

OWN_SOURCES: Final = {
    TOPICS: "DYNAMIC_TOPIC_CONFIG",
    CLIENT_METRICS: "DYNAMIC_CLIENT_METRICS_CONFIG",
    GROUPS: "DYNAMIC_GROUP_CONFIG",
}
"""Source of configs that are set for one entity of a type other than brokers."""

LINES_MAX: Final = 500
"""Maximum number of lines of a quota file in one request."""

RESOURCE_TYPES: Final = {
    TOPICS: TOPIC,
    BROKERS: BROKER,
    CLIENT_METRICS: kafka_client.CLIENT_METRICS,
    GROUPS: GROUP,
}
QUOTA_TITLES: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
SET, DELETE = 0, 1
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
SHORT_NAMES: Final = {kind: kind.removesuffix("s") for kind in TYPES}
OPTIONS: Final = {**SHORT_NAMES, CLIENT_METRICS: CLIENT_METRICS}
"""Names of the short options."""

EXAMPLES = examples(
    "minibroker configs --entity-type topics --entity-name cats --describe",
    "minibroker configs --topic cats --alter --add-config cleanup.policy=[compact,delete]",
    "minibroker configs --broker-defaults --alter --add-config max.connections=100",
    "minibroker configs --group cat-lovers --alter --add-config share.auto.offset.reset=earliest",
    "minibroker configs --ip 127.0.0.1 --alter --add-config connection_creation_rate=10",
    "minibroker configs --user alice --alter --add-config 'SCRAM-SHA-512=[password=secret]'",
    "minibroker configs --ip 127.0.0.1 --alter --delete-config connection_creation_rate",
    "minibroker configs --alter --quota-file quotas.txt",
    after="""Each line of a quota file is the arguments of one alteration of quotas, such as
'--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1048576'; lines
that are blank or begin with # are ignored.

Exit codes: 0 done · 1 anything else, as in kafka-configs.sh""",
)

_SECRET: Final = re.compile(r"password|jaas\.config", re.IGNORECASE)
"""Words in the names of secret configs, and in values that set a SCRAM credential."""

_WITH_QUOTA_FILE: Final = {"bootstrap", "command_config", "alter", "quota_file"}

_LONG: Final = ("entity_type", "entity_name", "entity_default")

QuotaEntity: TypeAlias = frozenset[tuple[str, str | None]]
"""An entity in the protocol's form: pairs of type and name, None for the default."""


class InvalidOption(click.UsageError):
    """An unknown option, or an option without a value."""

    exit_code = ExitCode.REFUSED


class KafkaCommand(Command):
    """A command that records the order of its long entity options and fails only with 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            values, _, order = self.make_parser(ctx).parse_args(list(args))
            ctx.meta[__name__] = list(_occurrences(values, [param.name or "" for param in order]))
            return super().parse_args(ctx, args)
        except click.UsageError as mistake:
            raise InvalidOption(mistake.message, mistake.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ArgumentMistake as mistake:
            raise CliError(str(mistake)) from None
        except CliError as error:
            error.exit_code = ExitCode.REFUSED
            raise
        except ClientError as error:
            raise CliError(error_message(error)) from None


def _occurrences(values: dict[str, Any], order: list[str]) -> Iterator[tuple[str, str]]:
    taken = dict.fromkeys(_LONG, 0)
    for name in order:
        if name in taken:
            value = "" if name == "entity_default" else values[name][taken[name]]
            taken[name] += 1
            yield name, value


def _entity_options(function: Any) -> Any:
    for kind in reversed(DEFAULTS):
        short = SHORT_NAMES[kind]
        option = click.option(f"--{short}-defaults", is_flag=True, help=f"The default of {kind}.")
        function = option(function)
    for kind in reversed(TYPES):
        option = click.option(f"--{OPTIONS[kind]}", metavar="NAME", help=f"One of the {kind}.")
        function = option(function)
    return function


@click.command("configs", cls=KafkaCommand, epilog=EXAMPLES)
@bootstrap_option
@click.option("--zookeeper", metavar="URLS", help="Use this config store instead of a broker.")
@click.option("--describe", is_flag=True, help="List configs.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per config, quota or change."
)
@click.option("--alter", is_flag=True, help="Change configs.")
@click.option("--all", "everything", is_flag=True, help="With --describe: defaults too.")
@click.option("--add-config", metavar="K=V,K=[V,V]", help="With --alter: configs to set.")
@click.option(
    "--add-config-file", metavar="FILE", help="With --alter: a properties file of configs to set."
)
@click.option(
    "--quota-file", metavar="FILE", help="With --alter: apply all lines of a quota file, or none."
)
@click.option(
    "--delete-config",
    multiple=True,
    metavar="K,K",
    help="With --alter: names of configs to delete.",
)
@click.option("--entity-type", multiple=True, metavar="TYPE", help=", ".join(TYPES) + ".")
@click.option("--entity-name", multiple=True, metavar="NAME", help="Its name.")
@click.option(
    "--entity-default",
    count=True,
    show_default=False,
    help="The default of the type, in place of a name.",
)
@_entity_options
@click.pass_context
def configs(ctx: click.Context, /, servers: BootstrapServers, **given: Any) -> None:
    """Describe and alter configs and quotas as kafka-configs.sh does."""
    if given["describe"] == given["alter"]:
        raise InvalidUsage("Command must include exactly one action: --describe, --alter")
    if given["quota_file"] is not None:
        _apply_file(ctx, servers, given)
        return
    entities = chosen(
        from_long_options(ctx.meta[__name__]),
        from_short_options(
            {kind: given[OPTIONS[kind].replace("-", "_")] for kind in TYPES},
            {kind: given[f"{SHORT_NAMES[kind]}_defaults"] for kind in DEFAULTS},
        ),
        alter=given["alter"],
    )
    _check_hosts(entities)
    additions, deletions = _requested_configs(given)
    if given["zookeeper"] is not None:
        if given["as_json"]:
            raise InvalidUsage("--json goes with --bootstrap-server, not --zookeeper")
        if ctx.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE:
            raise InvalidUsage("Only one of --bootstrap-server or --zookeeper must be specified")
        if servers.security is not PLAINTEXT:
            raise InvalidUsage("--command-config goes with --bootstrap-server, not --zookeeper")
        _in_zookeeper(given, entities, additions, deletions)
        return
    with KafkaClient(*servers) as client:
        if given["alter"]:
            _alter(client, entities, additions, deletions, as_json=given["as_json"])
        elif given["as_json"]:
            for line in _described(client, entities, everything=given["everything"]):
                emit(json_line(line))
        else:
            _describe(client, entities, everything=given["everything"])


def _apply_file(ctx: click.Context, servers: BootstrapServers, given: dict[str, Any]) -> None:
    names = [param.name for param in ctx.command.params if param.name not in _WITH_QUOTA_FILE]
    beside = [name for name in names if name and given.get(name)]
    if beside or not given["alter"]:
        raise InvalidUsage(
            "--quota-file can only be combined with --alter and --bootstrap-server: its lines "
            "contain everything else"
        )
    file = _read_quota_file(given["quota_file"])
    with KafkaClient(*servers) as client:
        _apply_quota_file(client, file)


def _check_hosts(entities: Entities) -> None:
    if entities.types != (IPS,):
        return
    for name in filter(None, entities.names):
        try:
            socket.getaddrinfo(name, None)
        except (OSError, UnicodeError):
            raise InvalidUsage(
                f"The entity name for {IPS} must be a valid IP or resolvable host, but it is: "
                f"{name}"
            ) from None


def _in_zookeeper(
    given: dict[str, Any], entities: Entities, additions: dict[str, str], deletions: list[str]
) -> None:
    if given["everything"]:
        raise InvalidUsage("--bootstrap-server must be specified for --all")
    for kind in (CLIENT_METRICS, GROUPS):
        if kind in entities.types:
            raise InvalidUsage(f"--bootstrap-server must be specified for {kind}")
    from minibroker.cli import (
        zookeeper_configs as stored,  # Imports modules of the broker, and kazoo.
    )

    if given["alter"]:

        async def alter(store: Any) -> str:
            return await stored.alter(store, entities, additions, deletions)

        emit(stored.in_zookeeper(given["zookeeper"], alter))
        return

    async def describe(store: Any) -> list[str]:
        return await stored.describe(store, entities)

    for line in stored.in_zookeeper(given["zookeeper"], describe):
        emit(line)


def _requested_configs(given: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Parse the configs to set and to delete. Raises `InvalidUsage` if the action takes none."""
    text, file, deletions = given["add_config"], given["add_config_file"], given["delete_config"]
    if text is not None and file is not None:
        raise InvalidUsage("Only one of --add-config or --add-config-file must be specified")
    has_wishes = text is not None or file is not None or bool(deletions)
    if given["alter"] and not has_wishes:
        raise InvalidUsage(
            "At least one of --add-config, --add-config-file, or --delete-config must be "
            "specified with --alter"
        )
    if given["describe"] and has_wishes:
        raise InvalidUsage("--add-config, --add-config-file and --delete-config require --alter")
    if given["alter"] and given["everything"]:
        raise InvalidUsage("--all requires --describe")
    if text is not None and _SECRET.search(text):
        from minibroker.runtime.system import mask_arguments

        mask_arguments([text])
    additions = {} if text is None else parse_additions(text)
    if file is not None:
        from minibroker.broker.settings import ConfigError, read_properties

        try:
            additions = {entry.name: entry.value for entry in read_properties(file)}
        except ConfigError as error:
            raise InvalidUsage(f"--add-config-file {error}") from None
    check_keys(additions)
    return additions, parse_deletions(deletions)


def _alter(
    client: KafkaClient,
    entities: Entities,
    additions: dict[str, str],
    deletions: list[str],
    *,
    as_json: bool,
) -> None:
    kind, name = entities.types[0], entities.names[0]
    if kind in RESOURCE_TYPES:
        _alter_resource(client, kind, name, additions, deletions)
    elif credentials.mechanisms_in(entities, additions, deletions):
        credentials.alter(client, name, additions, deletions)
    else:
        _alter_quotas(client, entities, additions, deletions)
    if as_json:
        emit(json_line({"entity": _entity_json(entities), "outcome": "altered"}))
    elif name:
        emit(f"Completed updating config for {SHORT_NAMES[kind]} {name}.")
    else:
        emit(f"Completed updating default config for {kind} in the cluster.")


def _check_present(deletions: list[str], present: Sequence[str]) -> None:
    missing = [name for name in deletions if name not in present]
    if missing:
        raise CliError(f"Invalid config(s): {','.join(missing)}")


def _alter_resource(
    client: KafkaClient, kind: str, name: str, additions: dict[str, str], deletions: list[str]
) -> None:
    found = _resource_configs(client, kind, name, everything=False)
    _check_present(deletions, [config.name for config in found])
    resource = AlterConfigsResource(
        resource_type=RESOURCE_TYPES[kind],
        resource_name=name,
        configs=[
            *(
                AlterableConfig(name=key, config_operation=SET, value=value)
                for key, value in additions.items()
            ),
            *(AlterableConfig(name=key, config_operation=DELETE, value="") for key in deletions),
        ],
    )
    reply = client.send(
        IncrementalAlterConfigsRequest(resources=[resource]),
        IncrementalAlterConfigsResponse,
        _broker(client, kind, name),
    )
    for answer in reply.responses:
        what = f"{SHORT_NAMES[kind]} {name}".rstrip()
        check(what, answer.error_code, answer.error_message)


def _broker(client: KafkaClient, kind: str, name: str) -> int | None:
    """Choose the broker for a request: a broker's config is known only to that broker."""
    if kind != BROKERS or not name:
        return None
    known = [broker.node_id for broker in client.metadata([]).brokers]
    # Any broker rejects the id of a missing broker with Kafka's message.
    return int(name) if int(name) in known else None


def _resource_configs(
    client: KafkaClient, kind: str, name: str, *, everything: bool
) -> list[DescribeConfigsResourceResult]:
    """Describe the configs of one resource, by name: all, or those set for it."""
    broker = _broker(client, kind, name)
    configs = client.configs(RESOURCE_TYPES[kind], name, broker_id=broker)
    own = OWN_SOURCES.get(kind) or (
        "DYNAMIC_BROKER_CONFIG" if name else "DYNAMIC_DEFAULT_BROKER_CONFIG"
    )
    shown = (config for config in configs if everything or _source(config.config_source) == own)
    return sorted(shown, key=lambda config: config.name)


def _describe(client: KafkaClient, entities: Entities, *, everything: bool) -> None:
    kind = entities.types[0]
    if kind not in RESOURCE_TYPES:
        _describe_quotas(client, entities)
        for user, iterations in credentials.described(client, entities):
            infos = ", ".join(f"{name}=iterations={count}" for name, count in iterations.items())
            emit(f"SCRAM credential configs for user-principal '{user}' are {infos}")
        return
    if kind in (CLIENT_METRICS, GROUPS) and entities.names and not everything:
        (name,) = entities.names
        if name not in _all_names(client, kind):
            what = f"{SHORT_NAMES[kind]} '{name}'"
            emit(f"The {what} doesn't exist and doesn't have dynamic config.")
            return
    for name in entities.names or _all_names(client, kind):
        if name:
            emit(
                f"{'All' if everything else 'Dynamic'} configs for {SHORT_NAMES[kind]} {name} are:"
            )
        else:
            emit(f"Default configs for {kind} in the cluster are:")
        for config in _resource_configs(client, kind, name, everything=everything):
            emit(_config_line(config))


def _entity_json(entities: Entities) -> dict[str, str | None]:
    """Return names by type; None means the default of the type."""
    return {
        SHORT_NAMES[kind]: name or None
        for kind, name in zip(entities.types, entities.names, strict=True)
    }


def _described(
    client: KafkaClient, entities: Entities, *, everything: bool
) -> Iterator[dict[str, object]]:
    """Yield one object for each config, or for each entity with quotas or credentials."""
    kind = entities.types[0]
    if kind not in RESOURCE_TYPES:
        for entry in _quotas(client, entities):
            yield {
                "entity": {part.entity_type: part.entity_name for part in entry.entity},
                "quotas": {value.key: value.value for value in entry.values},
            }
        for user, iterations in credentials.described(client, entities):
            yield {"entity": {"user": user}, "credentials": iterations}
        return
    for name in entities.names or _all_names(client, kind):
        for config in _resource_configs(client, kind, name, everything=everything):
            yield {
                "entity": {SHORT_NAMES[kind]: name or None},
                "name": config.name,
                "value": config.value,
                "sensitive": config.is_sensitive,
                "source": _source(config.config_source),
                "synonyms": [
                    {"name": each.name, "value": each.value, "source": _source(each.source)}
                    for each in config.synonyms
                ],
            }


def _all_names(client: KafkaClient, kind: str) -> list[str]:
    if kind in (CLIENT_METRICS, GROUPS):
        request = ListConfigResourcesRequest(resource_types=[RESOURCE_TYPES[kind]])
        reply = client.send(request, ListConfigResourcesResponse)
        check(f"configs of {kind}", reply.error_code)
        configured = {resource.resource_name for resource in reply.config_resources}
        groups = client.groups() if kind == GROUPS else []
        return sorted(configured | {group.group_id for group in groups})
    cluster = client.metadata()
    if kind == TOPICS:
        return sorted(topic.name or "" for topic in cluster.topics)
    return [*(str(broker.node_id) for broker in cluster.brokers), ""]


def _config_line(config: DescribeConfigsResourceResult) -> str:
    synonyms = ", ".join(
        f"{_source(synonym.source)}:{synonym.name}={_or_null(synonym.value)}"
        for synonym in config.synonyms
    )
    sensitive = "true" if config.is_sensitive else "false"
    return f"  {config.name}={_or_null(config.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _source(number: int) -> str:
    return SOURCES[number] if 0 <= number < len(SOURCES) else SOURCES[0]


def _or_null(value: str | None) -> str:
    return "null" if value is None else value


def _quotas(client: KafkaClient, entities: Entities) -> list[EntryData]:
    """Describe quotas of entities with exactly these types; a type without a name matches any."""
    components = []
    for position, kind in enumerate(entities.types):
        name = entities.names[position] if position < len(entities.names) else None
        match_type = SPECIFIED if name is None else EXACT if name else DEFAULT
        component = ComponentData(
            entity_type=QUOTA_TYPES[kind], match_type=match_type, match=name or None
        )
        components.append(component)
    return _send_describe_quotas(client, components, strict=True)


def _send_describe_quotas(
    client: KafkaClient, components: list[ComponentData], *, strict: bool
) -> list[EntryData]:
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    reply = client.send(request, DescribeClientQuotasResponse)
    check("quotas", reply.error_code, reply.error_message)
    return reply.entries or []


def _quota_entity(entities: Entities) -> QuotaEntity:
    pairs = zip(*entities, strict=True)
    return frozenset((QUOTA_TYPES[kind], name or None) for kind, name in pairs)


def _quota_change(
    entities: Entities, additions: Mapping[str, float], deletions: Sequence[str]
) -> AlterClientQuotasRequestEntryData:
    return AlterClientQuotasRequestEntryData(
        entity=[
            EntityData(entity_type=kind, entity_name=name) for kind, name in _quota_entity(entities)
        ],
        ops=[
            *(OpData(key=key, value=value, remove=False) for key, value in additions.items()),
            *(OpData(key=key, value=0.0, remove=True) for key in deletions),
        ],
    )


def _describe_quotas(client: KafkaClient, entities: Entities) -> None:
    for entry in _quotas(client, entities):
        names = {part.entity_type: part.entity_name for part in entry.entity}
        who = ", ".join(
            f"the default {title}" if names[kind] is None else f"{title} '{names[kind]}'"
            for kind, title in QUOTA_TITLES.items()
            if kind in names
        )
        values = ", ".join(f"{value.key}={quota_text(value.value)}" for value in entry.values)
        emit(f"Quota configs for {who} are {values}")


def _alter_quotas(
    client: KafkaClient, entities: Entities, additions: dict[str, str], deletions: list[str]
) -> None:
    unknown = [key for key in (*additions, *deletions) if key != CONNECTION_CREATION_RATE]
    if entities.types == (IPS,) and unknown:
        raise InvalidUsage(
            f"Only connection quota configs can be added for '{IPS}' using --bootstrap-server. "
            f"Unexpected config names: {','.join(unknown)}"
        )
    values = {key: parse_quota(key, text) for key, text in additions.items()}
    present = [value.key for entry in _quotas(client, entities)[:1] for value in entry.values]
    _check_present(deletions, present)
    entry = _quota_change(entities, values, deletions)
    reply = client.send(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    for answer in reply.entries:
        check("quotas", answer.error_code, answer.error_message)


def _read_quota_file(path: str) -> QuotaFile:
    """Read the file. Raises `InvalidUsage` if it is invalid."""
    try:
        found = parse(Path(path).read_text("utf-8"), path)
    except OSError as error:
        raise InvalidUsage(f"--quota-file {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"--quota-file {path}: not UTF-8 ({error})") from None
    except QuotaFileError as error:
        raise InvalidUsage(str(error)) from None
    if not found.lines:
        raise InvalidUsage(f"--quota-file {path}: contains no --alter line")
    return found


def _apply_quota_file(client: KafkaClient, file: QuotaFile) -> None:
    """Apply all lines of the file if the broker accepts every one.

    Nothing is changed before the broker has validated every line, and every change is printed.
    Kafka's script applies such lines one by one.
    """
    _check_deletions(client, file)
    batches = list(_batches(file.lines))
    for batch in batches:
        for line, refused in _alter_lines(client, batch, validate_only=True):
            if refused:
                raise CliError(f"{file.name}:{line.number}: {refused}; nothing was changed")
    done = 0
    for batch in batches:
        refusals = []
        for line, refused in _alter_lines(client, batch, validate_only=False):
            if refused:
                refusals.append(f"{file.name}:{line.number}: {refused}")
                continue
            emit(f"{line.who}: {', '.join(_changes(line))}")
            done += 1
        if refusals:
            changed = f"{done} of {len(file.lines)} lines were applied, as listed above"
            raise CliError("\n".join([*refusals, changed]))
    emit(f"Applied {done} line{'s' * (done > 1)} of {file.name}.")


def _changes(line: QuotaLine) -> Iterator[str]:
    for key, value in line.additions.items():
        yield f"{key}={value_text(key, value)}"
    for key in line.deletions:
        yield f"no {key}"


def _batches(lines: tuple[QuotaLine, ...]) -> Iterator[list[QuotaLine]]:
    """Split lines into requests; no request has an entity twice, because order matters."""
    batch: dict[QuotaEntity, QuotaLine] = {}
    for line in lines:
        entity = _quota_entity(line.entities)
        if entity in batch or len(batch) == LINES_MAX:
            yield list(batch.values())
            batch = {}
        batch[entity] = line
    yield list(batch.values())


def _check_deletions(client: KafkaClient, file: QuotaFile) -> None:
    if not any(line.deletions for line in file.lines):
        return
    present = {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key for value in entry.values
        }
        for entry in _send_describe_quotas(client, [], strict=False)
    }
    for line in file.lines:
        keys = present.setdefault(_quota_entity(line.entities), set())
        missing = [key for key in line.deletions if key not in keys]
        if missing:
            raise CliError(
                f"{file.name}:{line.number}: {line.who} has no {', '.join(missing)} to delete; "
                "nothing was changed"
            )
        keys.update(line.additions)
        keys.difference_update(line.deletions)


def _alter_lines(
    client: KafkaClient, lines: list[QuotaLine], *, validate_only: bool
) -> list[tuple[QuotaLine, str]]:
    """Send lines in one request; return each with the error of its rejection, or an empty text."""
    entries = [_quota_change(line.entities, line.additions, line.deletions) for line in lines]
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    answers = client.send(request, AlterClientQuotasResponse).entries
    found = []
    for line, answer in zip(lines, answers, strict=True):
        rejection = BrokerError(line.who, answer.error_code, answer.error_message)
        text = error_message(rejection).rstrip(".") if answer.error_code else ""
        found.append((line, text))
    return found
