"""All operations of the control API of a broker.

Owns their order in the index, the OpenAPI description and the reference. Must never know what one
does: each feature is a module of its own, with its records and operations. The
invariant: ``OPERATIONS`` contains every operation, and each one is documented.
"""

from __future__ import annotations

from typing import Final

from minibroker.lab.control.actions import ACTION_OPERATIONS
from minibroker.lab.control.client_metrics import CLIENT_METRICS_OPERATIONS
from minibroker.lab.control.clock import CLOCK_OPERATIONS
from minibroker.lab.control.cluster import CLUSTER_OPERATIONS
from minibroker.lab.control.connections import CONNECTION_OPERATIONS
from minibroker.lab.control.console import CONSOLE_OPERATIONS, INDEX_OPERATIONS
from minibroker.lab.control.faults import FAULT_OPERATIONS
from minibroker.lab.control.groups import GROUP_OPERATIONS
from minibroker.lab.control.journal import JOURNAL_OPERATIONS
from minibroker.lab.control.lag import LAG_OPERATIONS
from minibroker.lab.control.namespaces import NAMESPACE_OPERATIONS
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.quotas import QUOTA_OPERATIONS
from minibroker.lab.control.records import RECORD_OPERATIONS
from minibroker.lab.control.security import SECURITY_OPERATIONS
from minibroker.lab.control.seed import SEED_OPERATIONS
from minibroker.lab.control.snapshots import SNAPSHOT_OPERATIONS
from minibroker.lab.control.topics import TOPIC_OPERATIONS

OPERATIONS: Final[tuple[ApiOperation, ...]] = (
    *INDEX_OPERATIONS,
    *CONSOLE_OPERATIONS,
    *CLUSTER_OPERATIONS,
    *RECORD_OPERATIONS,
    *TOPIC_OPERATIONS,
    *GROUP_OPERATIONS,
    *LAG_OPERATIONS,
    *CONNECTION_OPERATIONS,
    *CLIENT_METRICS_OPERATIONS,
    *QUOTA_OPERATIONS,
    *CLOCK_OPERATIONS,
    *FAULT_OPERATIONS,
    *ACTION_OPERATIONS,
    *SECURITY_OPERATIONS,
    *SNAPSHOT_OPERATIONS,
    *SEED_OPERATIONS,
    *JOURNAL_OPERATIONS,
    *NAMESPACE_OPERATIONS,
)
