"""Registry of the served APIs by key; only these are advertised, if the settings allow it.

Checks that every advertised version has a schema. Invariant: exactly one module serves a key.
In Kafka: ``ApiKeys`` and the dispatch of ``KafkaApis.handle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from minibroker.broker.apis import (
    acls,
    api_versions,
    client_quotas,
    client_telemetry,
    cluster,
    configs,
    control_requests,
    delegation_tokens,
    fetch,
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
    topics,
    transactions,
    write_txn_markers,
)
from minibroker.broker.apis.authorization.wrap import with_authorization_check
from minibroker.broker.apis.base import ServedApi, ServedVersions
from minibroker.broker.apis.control_requests import CONTROL_REQUESTS
from minibroker.broker.settings import ADVERTISE_CONTROLLER_REQUESTS, ZOOKEEPER_CONNECT, Settings
from minibroker_protocol import registry


def collect(apis: Iterable[ServedApi]) -> Mapping[int, ServedApi]:
    """APIs by key. Raises ``ValueError`` if one serves versions that the protocol lacks."""
    found: dict[int, ServedApi] = {}
    for api in apis:
        if api.key in found:
            raise ValueError(f"{api.key.name} is served twice")
        low, high = api.versions if api.served_from is None else (api.served_from, api.versions[1])
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
        *control_requests.APIS,
        *delegation_tokens.APIS,
        fetch.API,
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
