"""``minibroker topics``: list, create, describe and delete topics.

Owns these four commands. It must never know how a broker stores a topic. Invariant: every command
reports on each topic, and exits with 1 if the broker rejected any. Kafka's counterpart is
``kafka-topics.sh``.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.output import InvalidUsage, emit, error_message, json_line, note, table
from minibroker.client.connection import BootstrapServers
from minibroker.client.consumer import EARLIEST, LATEST, list_offsets
from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import TOPIC, KafkaClient
from minibroker_protocol.errors import ErrorCode
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
from minibroker_protocol.messages.metadata import MetadataResponseTopic
from minibroker_protocol.types import uuid_text

ADMIN_TIMEOUT_MS = 30_000
TOPIC_CONFIG_SOURCE = 1

app = CommandGroup("topics", help="List, create, describe and delete topics.", no_args_is_help=True)

names_argument = click.argument(
    "names", cls=Argument, nargs=-1, required=True, metavar="NAME...", about="The topics."
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
def create(
    names: Sequence[str],
    servers: BootstrapServers,
    partitions: int,
    replication_factor: int,
    config: Sequence[str],
    if_not_exists: bool,
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
            outcomes.append((f"topic {item.name}", item.error_code, item.error_message))
    report_each("created", outcomes)


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


@app.command("delete", epilog=examples("minibroker topics delete cats dogs"))
@names_argument
@bootstrap_option
def delete(names: Sequence[str], servers: BootstrapServers) -> None:
    """Delete topics and everything in them."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=ADMIN_TIMEOUT_MS,
    )
    with KafkaClient(*servers) as client:
        controller = client.metadata([]).controller_id
        results = client.send(request, DeleteTopicsResponse, controller).responses
    report_each(
        "deleted",
        [(f"topic {item.name}", item.error_code, item.error_message) for item in results],
    )


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


def report_each(done: str, outcomes: list[tuple[str, int, str | None]]) -> None:
    """Report all outcomes, then raise `BrokerError` for the first failure."""
    refusals = []
    for what, code, text in outcomes:
        if code:
            refusals.append(BrokerError(what, code, text))
        else:
            emit(f"{done} {what}")
    for refusal in refusals[1:]:
        note(f"minibroker: {error_message(refusal)}")
    if refusals:
        raise refusals[0]
