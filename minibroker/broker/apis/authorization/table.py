"""Table of the authorization check of each API.

The checks are in the other modules of this package. Invariant: every served API has an entry, also
if it requires no authorization, so no API is left open by oversight. In Kafka each handler method
of ``KafkaApis`` starts with its own check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.apis.authorization import (
    cluster,
    groups,
    operations,
    records,
    tokens,
    topics,
    transactions,
)
from minibroker.broker.apis.authorization.authorizer_check import AuthorizationCheck, allow_all
from minibroker_protocol.registry import ApiKey

CHECKS: Final[Mapping[ApiKey, AuthorizationCheck]] = {
    ApiKey.PRODUCE: records.produce,
    ApiKey.FETCH: records.fetch,
    ApiKey.LIST_OFFSETS: records.list_offsets,
    ApiKey.METADATA: topics.metadata,
    ApiKey.LEADER_AND_ISR: cluster.leader_and_isr,
    ApiKey.STOP_REPLICA: cluster.stop_replica,
    ApiKey.UPDATE_METADATA: cluster.update_metadata,
    ApiKey.CONTROLLED_SHUTDOWN: cluster.controlled_shutdown,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_FETCH: groups.offset_fetch,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.SASL_HANDSHAKE: allow_all,
    ApiKey.API_VERSIONS: allow_all,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: records.delete_records,
    ApiKey.INIT_PRODUCER_ID: records.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: records.offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.END_TXN: transactions.end_txn,
    ApiKey.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    ApiKey.WRITE_TXN_MARKERS: records.write_txn_markers,
    ApiKey.DESCRIBE_PRODUCERS: records.describe_producers,
    ApiKey.DESCRIBE_ACLS: cluster.describe_acls,
    ApiKey.CREATE_ACLS: cluster.create_acls,
    ApiKey.DELETE_ACLS: cluster.delete_acls,
    ApiKey.DESCRIBE_CONFIGS: cluster.describe_configs,
    ApiKey.ALTER_CONFIGS: cluster.alter_configs,
    ApiKey.SASL_AUTHENTICATE: allow_all,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: cluster.incremental_alter_configs,
    ApiKey.OFFSET_DELETE: groups.offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster.describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: cluster.alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster.describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster.alter_user_scram_credentials,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: allow_all,
    ApiKey.ALTER_REPLICA_LOG_DIRS: operations.alter_replica_log_dirs,
    ApiKey.CREATE_DELEGATION_TOKEN: tokens.create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: allow_all,
    ApiKey.EXPIRE_DELEGATION_TOKEN: allow_all,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: tokens.describe_delegation_token,
    ApiKey.DESCRIBE_LOG_DIRS: operations.describe_log_dirs,
    ApiKey.ELECT_LEADERS: operations.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: operations.alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: operations.list_partition_reassignments,
    ApiKey.DESCRIBE_QUORUM: operations.describe_quorum,
    ApiKey.UPDATE_FEATURES: operations.update_features,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: allow_all,
    ApiKey.PUSH_TELEMETRY: allow_all,
    ApiKey.UNREGISTER_BROKER: operations.unregister_broker,
    ApiKey.LIST_CONFIG_RESOURCES: operations.list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
}
