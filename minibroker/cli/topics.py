"""``minibroker topics``: list, create, describe, alter and delete topics.

Owns these commands. It must never know how a broker stores a topic. Invariant: every command
reports on each topic, and exits with 1 if the broker rejected any. Kafka's counterpart is
``kafka-topics.sh``.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.completion import complete_topics
from minibroker.cli.output import InvalidUsage, emit, error_message, json_line, note, table
from minibroker.client.connection import BootstrapServers
from minibroker.client.consumer import EARLIEST, LATEST, list_offsets
from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import TOPIC, KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from minibroker_protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker_protocol.messages.metadata import MetadataResponseTopic
from minibroker_protocol.types import uuid_text

ADMIN_TIMEOUT_MS = 30_000
TOPIC_CONFIG_SOURCE = 1
DELETE = 1
"""The operation of IncrementalAlterConfigs that removes a setting."""

app = CommandGroup(
    "topics", help="List, create, describe, alter and delete topics.", no_args_is_help=True
)

names_argument = click.argument(
    "names",
    cls=Argument,
    nargs=-1,
    required=True,
    metavar="NAME...",
    about="The topics.",
    shell_complete=complete_topics,
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per topic."
)

LIST_EXAMPLES = examples(
    "minibroker topics list",
    "minibroker topics list --internal --json",
)
CREATE_EXAMPLES = examples(
    "minibroker topics create cats",
    "minibroker topics create cats --partitions 3 --config retention.ms=60000",
    "minibroker topics create cats dogs --if-not-exists",
)
ALTER_EXAMPLES = examples(
    "minibroker topics alter cats --partitions 6",
    "minibroker topics alter cats dogs --config retention.ms=60000 --delete-config segment.ms",
)


@app.command("list", epilog=LIST_EXAMPLES)
@bootstrap_option
@click.option("--internal", is_flag=True, help="Include internal topics.")
@click.option("--json", is_flag=True, help="Print one JSON object per line.")
def list_(servers: BootstrapServers, internal: bool, json: bool) -> None:
    """List topics and their numbers of partitions."""
    with KafkaClient(*servers) as client:
        topics = client.metadata().topics
    shown = sorted(
        (topic.name or "", len(topic.partitions))
        for topic in topics
        if internal or not topic.is_internal
    )
    if json:
        for name, partitions in shown:
            emit(json_line({"topic": name, "partitions": partitions}))
    elif shown:
        emit(table(("TOPIC", "PARTITIONS"), shown))
    else:
        note("no topics; create one with `minibroker topics create NAME`")


@app.command("create", epilog=CREATE_EXAMPLES)
@names_argument
@bootstrap_option
@click.option(
    "--partitions",
    default=-1,
    metavar="NUMBER",
    help="Number of partitions; -1 for the broker's default.",
)
@click.option(
    "--replication-factor",
    default=-1,
    metavar="NUMBER",
    help="Copies of each; -1 for the broker's default.",
)
@click.option(
    "--config",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topic; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Ignore topics that already exist.")
@json_option
def create(
    names: Sequence[str],
    servers: BootstrapServers,
    partitions: int,
    replication_factor: int,
    config: Sequence[str],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create topics."""
    configs = [read_pair(pair) for pair in config]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
            )
            for name in names
        ],
        timeout_ms=ADMIN_TIMEOUT_MS,
    )
    with KafkaClient(*servers) as client:
        controller = client.metadata([]).controller_id
        results = client.send(request, CreateTopicsResponse, controller).topics
    outcomes = []
    for item in results:
        if if_not_exists and item.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            note(f"topic {item.name} already exists")
        else:
            outcomes.append((item.name, item.error_code, item.error_message))
    report_each("created", "topic", outcomes, as_json=as_json)


@app.command("describe", epilog=examples("minibroker topics describe cats"))
@names_argument
@bootstrap_option
@click.option("--json", is_flag=True, help="Print one JSON object per partition.")
def describe(names: Sequence[str], servers: BootstrapServers, json: bool) -> None:
    """Show partitions, their leaders and offsets, and the settings given to a topic."""
    with KafkaClient(*servers) as client:
        for name in names:
            topic = client.topic(name)
            rows = partition_rows(client, topic)
            if json:
                for row in rows:
                    keys = ("partition", "leader", "replicas", "isr", "start", "end")
                    which = {"topic": name, "topic_id": uuid_text(topic.topic_id)}
                    emit(json_line(which | dict(zip(keys, row, strict=True))))
                continue
            overrides = topic_configs(client, name)
            settings = ", ".join(f"{key}={value}" for key, value in overrides) or "none of its own"
            emit(f"topic {name}, settings: {settings}")
            emit(table(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END"), rows))


@app.command("alter", epilog=ALTER_EXAMPLES)
@names_argument
@bootstrap_option
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="New number of partitions, larger than before.",
)
@click.option(
    "--config", multiple=True, metavar="NAME=VALUE", help="A setting to set; may be repeated."
)
@click.option(
    "--delete-config", multiple=True, metavar="NAME", help="A setting to delete; may be repeated."
)
@json_option
def alter(
    names: Sequence[str],
    servers: BootstrapServers,
    partitions: int | None,
    config: Sequence[str],
    delete_config: Sequence[str],
    as_json: bool,
) -> None:
    """Add partitions to topics, and change their settings; all of it, or nothing."""
    changes = [
        *(AlterableConfig(name=name, value=value) for name, value in map(read_pair, config)),
        *(AlterableConfig(name=name, config_operation=DELETE) for name in delete_config),
    ]
    if partitions is None and not changes:
        raise InvalidUsage("say what to alter: --partitions, --config or --delete-config")
    outcomes = []
    with KafkaClient(*servers) as client:
        for name in names:
            _alter(client, name, partitions, changes, validate_only=True)
        for name in names:
            _alter(client, name, partitions, changes, validate_only=False)
            outcomes.append((name, 0, None))
    report_each("altered", "topic", outcomes, as_json=as_json)


def _alter(
    client: KafkaClient,
    name: str,
    partitions: int | None,
    changes: list[AlterableConfig],
    *,
    validate_only: bool,
) -> None:
    controller = client.metadata([]).controller_id
    if partitions is not None:
        topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        create_partitions = CreatePartitionsRequest(
            topics=[topic], timeout_ms=ADMIN_TIMEOUT_MS, validate_only=validate_only
        )
        (result,) = client.send(create_partitions, CreatePartitionsResponse, controller).results
        check(f"topic {name}", result.error_code, result.error_message)
    if changes:
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)
        alter_configs = IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=validate_only
        )
        (answer,) = client.send(
            alter_configs, IncrementalAlterConfigsResponse, controller
        ).responses
        check(f"topic {name}", answer.error_code, answer.error_message)


@app.command("delete", epilog=examples("minibroker topics delete cats dogs"))
@names_argument
@bootstrap_option
@json_option
def delete(names: Sequence[str], servers: BootstrapServers, as_json: bool) -> None:
    """Delete topics and everything in them."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=ADMIN_TIMEOUT_MS,
    )
    with KafkaClient(*servers) as client:
        controller = client.metadata([]).controller_id
        results = client.send(request, DeleteTopicsResponse, controller).responses
    outcomes = [(item.name or "", item.error_code, item.error_message) for item in results]
    report_each("deleted", "topic", outcomes, as_json=as_json)


def read_pair(pair: str) -> tuple[str, str]:
    """Split ``name=value``. Raises `InvalidUsage` without an equals sign."""
    name, separator, value = pair.partition("=")
    if not separator or not name:
        raise InvalidUsage(f"--config {pair}: must be NAME=VALUE, e.g. retention.ms=60000")
    return name, value


def partition_rows(client: KafkaClient, topic: MetadataResponseTopic) -> list[tuple[object, ...]]:
    """One row for each partition: leader, replicas, ISR, start and end offset."""
    starts = list_offsets(client, topic, EARLIEST)
    ends = list_offsets(client, topic, LATEST)
    return [
        (
            item.partition_index,
            item.leader_id,
            ",".join(map(str, item.replica_nodes)),
            ",".join(map(str, item.isr_nodes)),
            starts[item.partition_index],
            ends[item.partition_index],
        )
        for item in topic.partitions
    ]


def topic_configs(client: KafkaClient, name: str) -> list[tuple[str, str | None]]:
    """Fetch the configs set for this topic, without defaults."""
    return sorted(
        (item.name, item.value)
        for item in client.configs(TOPIC, name)
        if item.config_source == TOPIC_CONFIG_SOURCE
    )


def report_each(
    done: str, kind: str, outcomes: Sequence[tuple[str, int, str | None]], *, as_json: bool
) -> None:
    """Report all outcomes, then raise `BrokerError` for the first failure."""
    refusals = []
    for name, code, text in outcomes:
        if code:
            refusals.append(BrokerError(f"{kind} {name}", code, text))
        if as_json:
            error = {"error": ErrorCode(code).name, "message": text} if code else {}
            emit(json_line({kind: name, "outcome": "rejected" if code else done, **error}))
        elif not code:
            emit(f"{done} {kind} {name}")
    for refusal in refusals[1:]:
        note(f"minibroker: {error_message(refusal)}")
    if refusals:
        raise refusals[0]
