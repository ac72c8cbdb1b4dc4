"""The pages of docs/reference: ``python -m minibroker.lab.reference PAGE`` writes one of them.

Owns the layout of the pages; every fact comes from the settings, APIs, personas, metrics, events
and operations themselves, and the page of fault rules from ``control.fault_reference``. It must
never read a running broker. Invariant: the committed pages are the output of this program, which
``make docs`` writes and a test compares. Kafka generates its configuration page from ``ConfigDef``
in the same way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from minibroker.broker.apis.base import ServedApi
from minibroker.broker.apis.control_requests import CONTROL_REQUESTS
from minibroker.broker.apis.registry import APIS, narrowed
from minibroker.broker.metadata.features import DESCRIPTIVE, FEATURES
from minibroker.broker.metrics.definitions import (
    GROUP_PARTITIONS_MAX,
    METRICS,
    SIZE_BUCKETS_BYTES,
    TIME_BUCKETS_NS,
    TOPIC_PARTITIONS_MAX,
    TOPICS_MAX,
    CloseReason,
    Metric,
    MetricKind,
)
from minibroker.broker.personas.persona import ALL, DELAYED, MUTED, NAMES, NONE, OWN, Persona, load
from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Setting
from minibroker.broker.settings.setting import KNOWN_UNSERVED, listener_name
from minibroker.broker.settings.topics import synonyms_of
from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)
from minibroker.lab.control import fault_reference
from minibroker.lab.control.operation import BODY_MAX_BYTES, ApiOperation, description
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.control.records import RECORDS_BODY_MAX_BYTES
from minibroker.lab.control.seed import SEED_BODY_MAX_BYTES
from minibroker.lab.control.server import CONNECTIONS_MAX
from minibroker_protocol import registry
from minibroker_protocol.errors import ErrorCode

_SETTINGS = """\
# Settings

This page is generated from `minibroker/broker/settings/`; change the definitions and run \
`make docs`.

Configure the broker with properties files (`--config server.properties`), environment variables \
or options (`--set num.partitions=3`). Options take precedence over the environment, which takes \
precedence over files, and later entries over earlier ones. `--profile kafka` uses Kafka's \
defaults where they differ; the column *Default* shows both. \
Listeners and the data directory have the same defaults in both profiles, so a test broker neither \
opens a port to the network nor leaves files behind.

`minibroker start` takes each setting from `MINIBROKER_` and its name in upper case, with `_` for \
`.`, `-` and `_` (`MINIBROKER_NUM_PARTITIONS=3`), and from the names that Kafka's image takes: \
`KAFKA_`, with `_` for `.`, `__` for `_` and `___` for `-`, also in names for one listener \
(`KAFKA_LISTENER_NAME_OUTSIDE_SASL_ENABLED_MECHANISMS`). `MINIBROKER_` takes precedence over \
`KAFKA_`. An unknown name with `MINIBROKER_` is rejected; one with `KAFKA_` only if it resembles a \
setting, because applications have such variables too: a warning lists the others. \
Variables that Kubernetes sets for a service named `minibroker` are ignored. \
Test brokers (`MiniBroker`) do not read the environment, except for `MINIBROKER_RUNTIME_PORTABLE`.

The broker rejects an unknown name and suggests the nearest valid one. Kafka settings that \
minibroker does not support cause one warning, so you can use a properties file written for Kafka. \
They are listed at the end of this page.

Settings that can be changed while the broker runs are marked. Change them with \
`minibroker configs` or an admin client, for one broker or for all. A value for one broker takes \
precedence over a value for all brokers, which takes precedence over files and options.
"""


_TOPIC_CONFIGS = """\
Set these configs when you create a topic, or later with `minibroker configs`. A config that is \
not set has the value of the broker setting; if there are several, the first one that is set."""


def _setting_default(setting: Setting[Any]) -> str:
    if setting.default_text is not None:
        return setting.default_text
    text = f"`{setting.render(setting.default)}`" if setting.render(setting.default) else "empty"
    if setting.kafka_default not in (None, setting.default):
        text += f" (profile kafka: `{setting.render(setting.kafka_default)}`)"
    return text


def _setting_description(setting: Setting[Any]) -> str:
    text = setting.doc
    if setting.no_effect:
        text += f" Accepted, but has no effect: {setting.no_effect}."
    if setting.dynamic_at_listener:
        name = listener_name("<listener>", setting.name)
        text += f" *Can be renewed while the broker runs, as `{name}`.*"
    elif setting.dynamic:
        text += " *Can be changed while the broker runs.*"
    return text


def _setting_rows(settings: Iterable[Setting[Any]]) -> Iterator[str]:
    for setting in settings:
        valid = f"; {setting.valid.text}" if setting.valid else ""
        yield (
            f"| `{setting.name}` | {setting.type.title}{valid} | {_setting_default(setting)} | "
            f"{_setting_description(setting)} |"
        )


def _topic_rows(settings: Iterable[Setting[Any]]) -> Iterator[str]:
    for setting in settings:
        valid = f"; {setting.valid.text}" if setting.valid else ""
        synonyms = ", ".join(f"`{synonym.setting.name}`" for synonym in synonyms_of(setting))
        yield (
            f"| `{setting.name}` | {setting.type.title}{valid} | "
            f"{synonyms or _setting_default(setting)} | {_setting_description(setting)} |"
        )


def _settings() -> str:
    lines = [
        _SETTINGS,
        "## Broker settings",
        "",
        "| Name | Value | Default | Description |",
        "| --- | --- | --- | --- |",
        *_setting_rows(BROKER_SETTINGS.values()),
        "",
        "## Topic configs",
        "",
        _TOPIC_CONFIGS,
        "",
        "| Name | Value | Broker setting, or default | Description |",
        "| --- | --- | --- | --- |",
        *_topic_rows(TOPIC_SETTINGS.values()),
        "",
        "## Kafka settings that are not supported",
        "",
        *(f"- `{name}`" for name in sorted(KNOWN_UNSERVED)),
    ]
    return "\n".join(lines) + "\n"


_APIS = """\
# APIs

The APIs and versions that this broker serves, and the parts of each API that it does not serve.
Other APIs and versions are not advertised in ApiVersions; the broker closes the connection of a
client that requests them, as Kafka does.

| Key | API | Versions | Not served, and why |
| --- | --- | --- | --- |
"""


def _apis() -> str:
    return _APIS + "".join(_api_rows())


def _api_rows() -> Iterator[str]:
    for key, api in sorted(APIS.items()):
        left_out = "<br>".join(api.left_out)
        yield f"| {key} | {registry.schema(key).name} | {_served_versions(api)} | {left_out} |\n"


def _served_versions(api: ServedApi) -> str:
    (low, high), lowest = api.versions, api.served[0]
    if api.key in CONTROL_REQUESTS:
        return f"{low}–{high} (advertised only with ZooKeeper)"  # noqa: RUF001 - a range
    if lowest == low:
        return _range(low, high)
    return f"{lowest}–{high} (advertised from {low})"  # noqa: RUF001 - a range


_PERSONAS = """\
# Personas

With `persona=kafka-2.8` and so on, clients get the API versions, features and answers of a broker
of that version: `minibroker start --set persona=kafka-2.8`, or `MiniBroker(persona="kafka-2.8")` in
a test. A persona only narrows what this broker serves; the last section lists what it has and this
broker does not serve.

The facts were recorded from the brokers themselves with `python -m system_tests.personas`, which
starts each of them. Redpanda was not started; its facts were read in its public source. `-` in a
table means that the persona does not have the API, or none of its versions is served here.

All of these brokers close the connection when a client requests an unknown API or a version that
they do not have, except for ApiVersions.

"""

_LISTS: Final[Mapping[str, str]] = {
    ALL: "all APIs",
    OWN: "the range of ApiVersions",
    NONE: "no APIs",
}
_THROTTLED: Final[Mapping[str, str]] = {
    DELAYED: "the response is delayed (`quota.throttle.mode=delay`)",
    MUTED: "the response comes at once, then the connection is muted (KIP-219)",
}


def _personas() -> str:
    personas = [load(name) for name in NAMES]
    parts = [_PERSONAS, "## Behaviour\n\n", *map(_behaviour, personas)]
    parts += ["## Versions\n\n", *_persona_versions(personas)]
    parts += ["\n## Versions that are not served\n\n", *map(_narrower, personas)]
    return "".join(parts)


def _behaviour(persona: Persona) -> str:
    behaviour = persona.behaviour
    facts = {
        "Unknown version of ApiVersions": (
            f"version 0 with UNSUPPORTED_VERSION and {_LISTS[behaviour.unknown_api_versions_lists]}"
        ),
        "Features": _features(persona),
        "A client above its quota": _THROTTLED[behaviour.throttled],
        "A topic in the Metadata response to the request that creates it": _error_name(
            behaviour.new_topic_error, "no error"
        ),
        "A batch of an unknown producer in the middle of its sequence": _error_name(
            behaviour.unknown_producer_error, "accepted"
        ),
        "A new cluster id": _cluster_id(behaviour.cluster_id_prefix),
    }
    lines = [f"### `{persona.name}`\n", f"Source: {persona.source}.\n"]
    lines += [f"- {what}: {text}." for what, text in facts.items()]
    if persona.defaults:
        values = ", ".join(f"`{name}={value}`" for name, value in persona.defaults.items())
        lines.append(f"- Defaults: {values}.")
    return "\n".join(lines) + "\n\n"


def _features(persona: Persona) -> str:
    if persona.features is None:
        return "none, in no version of ApiVersions"
    shown = DESCRIPTIVE | {feature.name for feature in FEATURES}
    levels = {**dict.fromkeys(persona.features.supported, 0), **persona.features.finalized}
    texts = [
        f"{name} {level}" if name in shown else f"{name} {level} (not served)"
        for name, level in sorted(levels.items())
    ]
    return ", ".join(texts) if texts else "an empty list with an epoch"


def _error_name(code: int, none: str) -> str:
    return ErrorCode(code).name if code else none


def _cluster_id(prefix: str) -> str:
    return f"`{prefix}` and a UUID" if prefix else "22 characters of base64"


def _persona_versions(personas: list[Persona]) -> Iterator[str]:
    served = [narrowed(APIS, persona) for persona in personas]
    yield f"| API | {' | '.join(persona.name for persona in personas)} |\n"
    yield f"| --- |{' --- |' * len(personas)}\n"
    for key in sorted(set().union(*served)):
        cells = [_range(*apis[key].versions) if key in apis else "-" for apis in served]
        yield f"| {registry.schema(key).name} | {' | '.join(cells)} |\n"


def _range(low: int, high: int) -> str:
    return f"{low}–{high}" if low < high else f"{low}"  # noqa: RUF001 - a range


def _narrower(persona: Persona) -> str:
    """What the persona has and this broker does not serve."""
    served = narrowed(APIS, persona)
    texts = []
    for key, (low, high) in sorted(persona.versions.items()):
        name = registry.schema(key).name
        if key not in served:
            texts.append(f"{name} {_range(low, high)}")
            continue
        from_, to = served[key].served
        if low < from_:
            texts.append(f"{name} {_range(low, from_ - 1)}")
        if high > to:
            texts.append(f"{name} {_range(to + 1, high)}")
    return f"- `{persona.name}`: {', '.join(texts) if texts else 'none'}.\n"


_METRICS = """\
# Metrics

<!-- Written by `make docs`; don't edit. -->

`GET /metrics` of the control API answers in Prometheus' text format for the whole broker, all its
processes together. Names, labels and meanings are stable.

- A histogram `x` has the usual series `x_bucket{le=…}`, `x_sum` and `x_count`.
- `api` is Kafka's name of the request, e.g. `Produce`; requests with an api key that Kafka doesn't
  have are `unknown`. An API shows up with its first request.
- `process` is a role and an index, e.g. `processor-0`, `worker-1`.
- `topic` and `partition`: at most %(logs)d logs are shown one by one; the sizes of the rest are
  summed under topic `(other)`, partition `-1`. Each process counts bytes and records of at most
  %(topics)d topics one by one, and of the rest as topic `(other)`; a topic's counters end with it.
- `group`: the %(commits)d partitions whose offsets were committed last are shown.
- `reason` is one of %(reasons)s.
- Times are bucketed at %(times)s seconds, sizes at %(sizes)s bytes.
- Counters go on when a process is killed and started again; what it counted after its last
  scrape is lost. When the controller itself is killed, the counts of other processes' earlier
  lives are forgotten; Prometheus' `rate()` takes that for the restart that it is.
"""


def _metrics() -> str:
    return (
        _METRICS
        % {
            "logs": TOPIC_PARTITIONS_MAX,
            "topics": TOPICS_MAX,
            "commits": GROUP_PARTITIONS_MAX,
            "reasons": ", ".join(f"`{reason.value}`" for reason in CloseReason),
            "times": ", ".join(f"{bound / 1e9:g}" for bound in TIME_BUCKETS_NS),
            "sizes": ", ".join(str(bound) for bound in SIZE_BUCKETS_BYTES),
        }
        + "\n"
        + "\n".join(_metric_rows())
        + "\n"
    )


def _metric_rows() -> Iterator[str]:
    yield "| Name | Type | Labels | Meaning | In Kafka |"
    yield "| --- | --- | --- | --- | --- |"
    for metric in METRICS:
        yield _metric_row(metric)


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kind = _METRIC_KINDS[metric.kind]
    return f"| `{metric.name}` | {kind} | {labels} | {metric.meaning} | {metric.jmx} |"


_METRIC_KINDS = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}


_ACTIVITY: Final = f"""\
# Activity events

<!-- Written by `make docs`; don't edit. -->

With `activity.enable=true`, the broker writes an event for every request and every change of a
connection to the topic `{TOPIC}`. This page describes version {VERSION} of the schema.

With `activity.format=arrow`, the value of a record is an Apache Arrow IPC stream with one batch of
up to 1,000 events. It has all fields as columns in this order, null where a field does not apply;
a quota check has a column for each of its fields, such as `produce.rate`. With
`activity.format=json`, the value is a JSON object with one event, and fields that do not apply are
omitted. The tables of the pipeline have the columns of the JSON objects.
"""


def _activity() -> str:
    return "\n".join(
        [
            _ACTIVITY,
            *_event_section(
                "Fields of all events", (f for f in FIELDS if f.kinds == frozenset(ActivityKind))
            ),
            *_event_section(
                "Fields of requests and connections",
                (f for f in FIELDS if f.kinds == {ActivityKind.REQUEST, ActivityKind.CONNECTION}),
            ),
            *(line for kind in ActivityKind for line in _event_section(*_of_one(kind))),
            *_event_section("Quota checks", CHECK_FIELDS),
        ]
    )


def _of_one(kind: ActivityKind) -> tuple[str, Iterable[ActivityField]]:
    return f"Fields of `{kind}` events only", (f for f in FIELDS if f.kinds == {kind})


def _event_section(title: str, fields: Iterable[ActivityField]) -> list[str]:
    return [f"## {title}", "", *_event_table(fields), ""]


def _event_table(fields: Iterable[ActivityField]) -> Iterator[str]:
    yield "| Field | Type | Unit | Meaning |"
    yield "| --- | --- | --- | --- |"
    for field in fields:
        kind = "quota check" if field.type is ActivityType.CHECK else field.type.value
        yield f"| `{field.name}` | {kind} | {field.unit} | {field.meaning} |"


_CONTROL_API: Final = """\
# Control API

<!-- Written by `make docs`; don't edit. -->

Inspect and control a running broker over HTTP. `minibroker start` prints the address
(`control_url`), by default a free port of the loopback interface; the setting `control.listener`
selects another one. A browser shows [the console](../guides/console.md) there;
`GET /openapi.json` describes the API for programs.

- Request and response bodies are JSON. A body has at most %(body)d bytes, one with records
  %(records)d, a seed %(seed)d.
- Names in paths are percent-encoded: group `a/b?` is `/v1/groups/a%%2Fb%%3F`. Many clients remove
  `.` and `..` from paths; such groups are `/v1/groups/?group_id=..`.
- Keys and values of records are text, or base64 in the field with that suffix. The broker itself
  produces and reads them: no quota, fault rule, listener or credential applies, and no group
  changes. Waits are in real time, also if the clock is frozen.
- At most %(connections)d connections are open. At the limit, the one idle for longest is closed.
- An error is `{"error": {"code", "message", "hint", "fields": [{"path", "message"}]}}`: `code` is
  Kafka's name of the error where it has one, `message` and `hint` end with a full stop or another
  sign, and `hint` may be empty. `fields` lists every invalid field of a body.
- All times are from the broker's clock, which `POST /v1/clock` changes.
- By default the API listens on loopback only, and has no authentication. If `control.listener` is
  another address, requests need a token: `control.token`, or one that is created at each start.
  `control_url` contains it; curl and browsers send it from there, other programs as
  `Authorization: Bearer TOKEN`. `GET /v1/health` and the token issuer, `/v1/oauth/…`, need none
  where OAuth clients use them. With an empty `control.token`, everyone who can connect may do
  everything.
- Requests are rejected whose `Host` isn't an IP address, `localhost` or a name of the broker, and
  those that web pages of other sites send (`Origin`, `Sec-Fetch-Site`), except for links.

```sh
curl $control_url/v1/health
curl $control_url/v1/clock -d '{"advance_ms": 11000}'
curl $control_url/v1/topics/orders/records -d '{"records": [{"key": "7", "value": "paid"}]}'
curl "$control_url/v1/topics/orders/records?wait=1"
curl "$control_url/v1/groups/billing?state=Stable&members=2&lag=0"
curl -X POST $control_url/v1/reset
```
"""


def _control_api() -> str:
    introduction = _CONTROL_API % {
        "body": BODY_MAX_BYTES,
        "records": RECORDS_BODY_MAX_BYTES,
        "seed": SEED_BODY_MAX_BYTES,
        "connections": CONNECTIONS_MAX,
    }
    schemas = description(OPERATIONS)["components"]["schemas"]
    lines = [*_operations(), "", "## Shapes", ""]
    for name in sorted(schemas):
        lines += _shape(name, schemas[name])
    return introduction + "\n" + "\n".join(lines).rstrip() + "\n"


def _operations() -> Iterator[str]:
    yield "| Request | Description | Body | Response | Errors |"
    yield "| --- | --- | --- | --- | --- |"
    for operation in OPERATIONS:
        yield _operation_row(operation)
    for operation in OPERATIONS:
        if operation.example is not None:
            yield ""
            form = ", sent as a form" if operation.form else ""
            yield f"Example of a body for `{operation.method} {operation.path}`{form}:"
            yield ""
            yield f"    {json.dumps(operation.example)}"


def _operation_row(operation: ApiOperation) -> str:
    body = f"[{operation.body.__name__}]" if operation.body else ""
    answer = operation.answer
    shown = f"[{answer.__name__}]" if isinstance(answer, type) else answer or "nothing"
    errors = "; ".join(f"{status}: {why}" for status, why in sorted(operation.errors.items()))
    if operation.body:
        errors = f"400: the body is invalid; {errors}".removesuffix("; ")
    return (
        f"| `{operation.method} {operation.path}` | {operation.summary} | {_link(body)} "
        f"| {operation.status}, {_link(shown)} | {errors} |"
    )


def _link(text: str) -> str:
    return f"{text}(#{text[1:-1].lower()})" if text.startswith("[") else text


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield schema["description"]
    yield ""
    yield "| Field | Type | Meaning |"
    yield "| --- | --- | --- |"
    for field, inner in schema["properties"].items():
        optional = "" if field in schema["required"] else ", optional"
        yield f"| `{field}` | {_type(inner)}{optional} | {inner.get('description', '')} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _link(f"[{name}]")
    if "anyOf" in schema:
        return " or ".join(_type(inner) for inner in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "type" not in schema:
        return "any value"
    kind: str = schema["type"]
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        return f"object of {_type(schema['additionalProperties'])}"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return kind


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings": _settings,
    "control-api": _control_api,
    "metrics": _metrics,
    "apis": _apis,
    "activity": _activity,
    "faults": fault_reference.page,
    "personas": _personas,
}
"""Name of a page, and what writes it as Markdown."""

if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
