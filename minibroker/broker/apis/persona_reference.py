"""Reference page of the personas, generated from their facts and the registry.

Every fact comes from the personas and the APIs themselves. Invariant: the committed page equals the
output of this module (``make docs``, and a test).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from minibroker.broker.apis.registry import APIS, narrowed
from minibroker.broker.metadata.features import DESCRIPTIVE, FEATURES
from minibroker.broker.personas.persona import ALL, DELAYED, MUTED, NAMES, NONE, OWN, Persona, load
from minibroker_protocol import registry
from minibroker_protocol.errors import ErrorCode

_INTRODUCTION = """\
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


def page() -> str:
    """The whole page as Markdown."""
    personas = [load(name) for name in NAMES]
    parts = [_INTRODUCTION, "## Behaviour\n\n", *map(_behaviour, personas)]
    parts += ["## Versions\n\n", *_versions(personas)]
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
        "A topic in the Metadata response to the request that creates it": _error(
            behaviour.new_topic_error, "no error"
        ),
        "A batch of an unknown producer in the middle of its sequence": _error(
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


def _error(code: int, none: str) -> str:
    return ErrorCode(code).name if code else none


def _cluster_id(prefix: str) -> str:
    return f"`{prefix}` and a UUID" if prefix else "22 characters of base64"


def _versions(personas: list[Persona]) -> Iterator[str]:
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


if __name__ == "__main__":
    sys.stdout.write(page())
