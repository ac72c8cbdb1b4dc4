"""The served APIs by key, and what one broker serves and advertises of them.

Checks that every advertised version has a schema, and owns how a persona narrows the registry.
Invariant: exactly one API serves a key; without a persona the registry is served as it is, and
with one, a version is served only if both have it. In Kafka: ``ApiKeys``, ``ApiVersionManager`` and
the dispatch of ``KafkaApis.handle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.broker.apis import (
    acls,
    api_versions,
    client_quotas,
    client_telemetry,
    cluster,
    configs,
    consumer_groups,
    control_requests,
    delegation_tokens,
    find_coordinator,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    partition_logs,
    produce,
    replicas,
    sasl,
    scram_credentials,
    share_fetch,
    share_groups,
    share_state,
    streams_groups,
    topics,
    transactions,
    write_txn_markers,
)
from minibroker.broker.apis.authorization.wrap import with_authorization_check
from minibroker.broker.apis.base import ServedApi, ServedVersions
from minibroker.broker.apis.control_requests import CONTROL_REQUESTS
from minibroker.broker.apis.fetch import API
from minibroker.broker.settings import (
    ADVERTISE_CONTROLLER_REQUESTS,
    PERSONA,
    ZOOKEEPER_CONNECT,
    Settings,
)
from minibroker_protocol import registry

if TYPE_CHECKING:
    from minibroker.broker.personas.persona import Persona


def collect(apis: Iterable[ServedApi]) -> Mapping[int, ServedApi]:
    """APIs by key. Raises ``ValueError`` if one serves versions that the protocol lacks."""
    found: dict[int, ServedApi] = {}
    for api in apis:
        if api.key in found:
            raise ValueError(f"{api.key.name} is served twice")
        low, high = api.served
        declared = registry.schema(api.key).valid_versions
        if not (declared.has(low) and declared.has(high)):
            raise ValueError(
                f"{api.key.name} serves versions {low} to {high}, the protocol declares {declared}"
            )
        found[api.key] = with_authorization_check(api)
    return found


APIS: Final[Mapping[int, ServedApi]] = collect(
    [
        *acls.APIS,
        api_versions.API,
        *client_quotas.APIS,
        *client_telemetry.APIS,
        *cluster.APIS,
        *configs.APIS,
        *consumer_groups.APIS,
        *control_requests.APIS,
        *delegation_tokens.APIS,
        API,
        find_coordinator.API,
        *group_offsets.APIS,
        *groups.APIS,
        *log_dirs.APIS,
        metadata.API,
        *partition_logs.APIS,
        produce.API,
        *replicas.APIS,
        *sasl.APIS,
        *scram_credentials.APIS,
        *share_fetch.APIS,
        *share_groups.APIS,
        *share_state.APIS,
        *streams_groups.APIS,
        *topics.APIS,
        *transactions.APIS,
        write_txn_markers.API,
    ]
)


def advertised(settings: Settings) -> ServedVersions:
    """Versions that ApiVersions lists.

    The requests of a controller to brokers, which no Kafka 4 has, are listed only where there may
    be another controller: clients that guess Kafka's version take them for a sign of an old broker.
    """
    everything = settings[ADVERTISE_CONTROLLER_REQUESTS] or settings[ZOOKEEPER_CONNECT] is not None
    return {
        api.key: api.versions
        for api in APIS.values()
        if everything or api.key not in CONTROL_REQUESTS
    }


class Serving(NamedTuple):
    """The served APIs by key, and the versions that ApiVersions lists."""

    apis: Mapping[int, ServedApi]
    advertised: ServedVersions


def serving(settings: Settings) -> Serving:
    """Return what a broker with these settings serves."""
    persona = settings[PERSONA]
    if persona is None:
        return Serving(APIS, advertised(settings))
    apis = narrowed(APIS, persona)
    return Serving(apis, {api.key: api.versions for api in apis.values()})


def served_versions(apis: Mapping[int, ServedApi]) -> dict[int, tuple[int, int]]:
    """The lowest and the highest version of each API that requests may have."""
    return {key: api.served for key, api in apis.items()}


def narrowed(apis: Mapping[int, ServedApi], persona: Persona) -> dict[int, ServedApi]:
    """Return the APIs that a persona has, each in the versions of both."""
    found = {}
    for key, api in apis.items():
        if key not in persona.versions:
            continue
        low, high = api.versions
        listed = max(low, persona.versions[key].low), min(high, persona.versions[key].high)
        served_from = max(listed[0], api.served[0])
        if served_from <= listed[1]:
            # Versions that are listed but not served have no schema; there may be none of them.
            starts_later = served_from if served_from > listed[0] else None
            found[key] = replace(api, versions=listed, served_from=starts_later)
    return found
