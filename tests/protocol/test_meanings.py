"""Every field has a meaning, or its name is in the list of those that have none."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Final

from minibroker_protocol import messages
from minibroker_protocol.meanings import COORDINATOR_KEY, Meaning
from minibroker_protocol.messages.find_coordinator import FindCoordinatorResponse
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.schema import Array, Field, Struct, Versions
from minibroker_protocol.types import BOOLEAN

_NAMES: Final = """
    acceptable_recovery_lag acceptable_recovery_lag_legacy accepted_compression_types
    acknowledge_types acks acquisition_lock_timeout_ms api_key assignment assignment_epoch
    assignor_name authorized_operations batch_index batch_size broker_epoch candidate_directory_id
    client_software_name client_software_version cluster_authorized_operations committed_metadata
    compression_type config_operation config_source config_type controller_epoch coordinator_epoch
    cordoned_log_dirs count delivery_complete_count delivery_count delivery_state documentation
    duration_filter election_type endpoint_information_epoch endpoint_type entity_type
    expiry_time_period_ms expiry_timestamp expiry_timestamp_ms finalized_features_epoch group_epoch
    group_state group_type heartbeat_interval_ms incarnation_id isolation_level issue_timestamp
    issue_timestamp_ms iterations key_type lag last_caught_up_timestamp last_fetch_timestamp
    last_sequence last_timestamp leader_recovery_state listener log_append_time_ms log_dirs
    match_type max_bytes max_lifetime_ms max_records max_supported_version max_timestamp
    max_timestamp_ms max_version max_version_level max_wait_ms mechanism mechanisms
    member_assignment member_metadata member_type metadata metrics min_bytes min_supported_version
    min_version min_version_level node_type num_partitions offline_log_dirs offset_lag operation
    owner_principal_type partition_epoch partition_max_bytes partition_size pattern_type
    pattern_type_filter permission_type position previous_broker_epoch principal_type process_id
    producer_id_len protocol_data protocol_name protocol_type push_interval_ms rack rack_id reason
    rebalance_timeout_ms records renew_period_ms repartition_source_topics replica_directory_id
    replica_epoch replication_factor request_principal requested_metrics resource_pattern_type
    resource_type resource_type_filter resource_types response_partition_limit retention_time_ms
    security_protocol server_assignor session_epoch session_lifetime_ms session_timeout_ms
    share_acquire_mode share_session_epoch size source state_epoch state_filters states_filter
    status_code stores subscription_id subtopology_id successors task_offset_interval_ms
    telemetry_max_bytes timeout_ms timestamp token_requester_principal_type
    topic_authorized_operations topology_description_status topology_epoch total_bytes
    transaction_start_time_ms transaction_state transaction_timeout_ms transaction_version type
    types_filter unaligned_records unknown_state_filters upgrade_type usable_bytes user_data
    voter_directory_id zk_version
"""
WITHOUT_MEANING: Final = frozenset(_NAMES.split())
"""Names of fields whose values name nothing: sizes, times, types, counts, contents."""

OTHERWISE: Final = {
    ("Listener", "name"): "name of a listener",
    ("LeaderEndpoint", "name"): "name of a listener",
    ("JoinGroupRequestProtocol", "name"): "name of an assignor",
    ("OpData", "key"): "type of a quota",
    ("OpData", "value"): "limit of a quota",
    ("ValueData", "key"): "type of a quota",
    ("ValueData", "value"): "limit of a quota",
    ("KeyValue", "key"): "name of a tag",
    ("KeyValue", "value"): "value of a tag",
    ("TopologyDescriptionNode", "name"): "name of a processor",
    ("CreatableTopicConfig", "value"): "configs of topics have no secrets",
    ("CreatableTopicConfigs", "value"): "configs of topics have no secrets",
    ("DescribeConfigsResourceResult", "value"): "null if the config is sensitive",
    ("DescribeConfigsSynonym", "value"): "null if the config is sensitive",
    ("AssignReplicasToDirsRequestDirectoryData", "id"): "id of a log directory",
    ("AssignReplicasToDirsResponseDirectoryData", "id"): "id of a log directory",
    ("TopicInfo", "partitions"): "number of partitions",
    ("Topology", "epoch"): "epoch of a topology",
    ("CopartitionGroup", "source_topics"): "positions in an array of topics",
    ("CopartitionGroup", "source_topic_regex"): "positions in an array of patterns",
}
"""Fields without a meaning whose names have one in other structs."""

SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|salt|hmac|credential|private|auth_bytes|token|request_data|response_data"
)
NOT_SECRET: Final = {
    "token_id": "names a delegation token; only its HMAC proves its possession",
    "token_requester_principal_name": "a principal",
    "token_requester_principal_type": "a type",
}


def structs() -> Iterator[type[Struct]]:
    for module in pkgutil.iter_modules(messages.__path__):
        found = vars(importlib.import_module(f"minibroker_protocol.messages.{module.name}"))
        yield from (
            each
            for each in found.values()
            if isinstance(each, type) and issubclass(each, Struct) and each.__fields__
        )


def valued_fields() -> Iterator[tuple[str, Field]]:
    """Fields that have values of their own, with the names of their structs."""
    for struct in structs():
        for item in struct.__fields__:
            kind = item.kind.element if isinstance(item.kind, Array) else item.kind
            if not isinstance(kind, type) and kind is not BOOLEAN:
                yield struct.__name__, item


def test_every_field_has_a_meaning_or_a_reason() -> None:
    plain = {
        (struct, item.name)
        for struct, item in valued_fields()
        if item.means is None and not item.secret
    }
    assert {name for _, name in plain} - WITHOUT_MEANING == {name for _, name in OTHERWISE}
    assert {each for each in plain if each[1] not in WITHOUT_MEANING} == set(OTHERWISE)


def test_fields_without_meaning_have_none_anywhere() -> None:
    marked = {item.name for _, item in valued_fields() if item.means or item.secret}
    assert not marked & WITHOUT_MEANING
    assert {item.name for _, item in valued_fields()} >= WITHOUT_MEANING


def test_fields_that_are_named_like_secrets_are_secret() -> None:
    found = {item.name for _, item in valued_fields() if SECRET_NAME.search(item.name)}
    marked = {item.name for _, item in valued_fields() if item.secret}
    assert found - marked == set(NOT_SECRET)
    assert marked - found == {"value"}
    [auth_bytes] = SaslAuthenticateRequest.__fields__
    assert auth_bytes.secret


def test_addresses_of_structs_have_host_and_port_of_one_kind() -> None:
    for struct in structs():
        means = [item.means for item in struct.__fields__]
        assert means.count(Meaning.HOST) == means.count(Meaning.PORT)
        assert means.count(Meaning.PEER_HOST) == means.count(Meaning.PEER_PORT)


def test_throttle_times_say_from_which_version_clients_obey_them() -> None:
    throttle_time, *_ = HeartbeatResponse.__fields__
    assert throttle_time.means is Meaning.THROTTLE_TIME
    assert throttle_time.obeyed == Versions.parse("2+")
    for _, item in valued_fields():
        assert (item.name == "throttle_time_ms") == (item.means is Meaning.THROTTLE_TIME)


def test_name_by_type_has_the_meaning_of_its_type() -> None:
    assert COORDINATOR_KEY.of(1) is Meaning.TRANSACTIONAL_ID
    assert len({COORDINATOR_KEY, COORDINATOR_KEY}) == 1  # As hashable as other meanings.
    assert COORDINATOR_KEY.of(None) is COORDINATOR_KEY.of(99) is Meaning.COORDINATOR_KEY
    kind = FindCoordinatorResponse.__fields__[-1].kind
    assert isinstance(kind, Array)
    assert isinstance(kind.element, type)
    assert kind.element.__fields__[0].means is COORDINATOR_KEY
