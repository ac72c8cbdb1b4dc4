"""The reasons for which connections end, as metrics, logs and connection events name them.

Owns the names. It must never know how a connection is closed. Invariant: the set is complete and
bounded, so a reason can be the label of a metric. Kafka logs reasons as texts.
"""

from __future__ import annotations

from enum import StrEnum


class CloseReason(StrEnum):
    """Why a connection ended: the whole set, so that the label stays bounded."""

    CLIENT_CLOSED = "client_closed"
    CLIENT_RESET = "client_reset"
    IDLE = "idle"
    FRAME_TOO_LARGE = "frame_too_large"
    BAD_FRAME = "bad_frame"
    BAD_REQUEST = "bad_request"
    UNSUPPORTED_VERSION = "unsupported_version"
    PARTIAL_REQUEST = "partial_request"
    SLOW_CLIENT = "slow_client"
    LIMIT = "limit"
    MAX_CONNECTIONS = "max_connections"
    PER_IP = "max_connections_per_ip"
    IP_RATE = "ip_connection_creation_rate"
    DROPPED = "kafka_connections_max"
    DROPPED_PER_IP = "kafka_connections_max_per_ip"
    TLS_FAILED = "tls_failed"
    AUTHENTICATION_FAILED = "authentication_failed"
    SESSION_EXPIRED = "session_expired"
    ACKS_ZERO_ERROR = "acks_zero_error"
    RECORDS_GONE = "records_gone"
    RECORDS_UNREADABLE = "records_unreadable"
    PEER_LOST = "peer_lost"
    STOPPING = "stopping"
    RESET = "reset"
    SNAPSHOT_RESTORED = "snapshot_restored"
    FAULT_RULE = "fault_rule"
    PROCESS_DIED = "process_died"
    INTERNAL_ERROR = "internal_error"
