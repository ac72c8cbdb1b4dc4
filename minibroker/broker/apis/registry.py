"""Registry of the served APIs by key; only these are advertised, if the settings allow it.

Checks that every advertised version has a schema. Invariant: exactly one module serves a key.
In Kafka: ``ApiKeys`` and the dispatch of ``KafkaApis.handle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from minibroker.broker.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_heartbeat,
    controlled_shutdown,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    stop_replica,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    update_metadata,
    write_txn_markers,
)
from minibroker.broker.apis.authorization.wrap import with_authorization_check
from minibroker.broker.apis.base import ServedApi, ServedVersions
from minibroker.broker.apis.control_requests import CONTROL_REQUESTS
from minibroker.broker.settings import Settings
from minibroker.broker.settings.definitions import ADVERTISE_CONTROLLER_REQUESTS, ZOOKEEPER_CONNECT
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
        add_offsets_to_txn.API,
        add_partitions_to_txn.API,
        alter_client_quotas.API,
        alter_configs.API,
        alter_partition_reassignments.API,
        alter_replica_log_dirs.API,
        alter_user_scram_credentials.API,
        api_versions.API,
        consumer_group_heartbeat.API,
        controlled_shutdown.API,
        create_acls.API,
        create_delegation_token.API,
        create_partitions.API,
        create_topics.API,
        delete_acls.API,
        delete_groups.API,
        delete_records.API,
        delete_topics.API,
        describe_acls.API,
        describe_client_quotas.API,
        describe_cluster.API,
        describe_configs.API,
        describe_delegation_token.API,
        describe_groups.API,
        describe_log_dirs.API,
        describe_producers.API,
        describe_quorum.API,
        describe_topic_partitions.API,
        describe_transactions.API,
        describe_user_scram_credentials.API,
        elect_leaders.API,
        end_txn.API,
        expire_delegation_token.API,
        fetch.API,
        find_coordinator.API,
        get_telemetry_subscriptions.API,
        heartbeat.API,
        incremental_alter_configs.API,
        init_producer_id.API,
        join_group.API,
        leader_and_isr.API,
        leave_group.API,
        list_config_resources.API,
        list_groups.API,
        list_offsets.API,
        list_partition_reassignments.API,
        list_transactions.API,
        metadata.API,
        offset_commit.API,
        offset_delete.API,
        offset_fetch.API,
        offset_for_leader_epoch.API,
        produce.API,
        push_telemetry.API,
        renew_delegation_token.API,
        sasl_authenticate.API,
        sasl_handshake.API,
        stop_replica.API,
        sync_group.API,
        txn_offset_commit.API,
        unregister_broker.API,
        update_features.API,
        update_metadata.API,
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
