"""DescribeCluster (API key 60): the brokers and the cluster's id.

Versions 0 to 2, all in the compact encoding.

What changed:
  1  request adds endpoint_type; response adds endpoint_type
  2  request adds include_fenced_brokers; response adds is_fenced
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, NULLABLE_STRING, STRING


class DescribeClusterRequest(Message, api_key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = field(BOOLEAN)
    endpoint_type: int = field(INT8, versions="1+", default=1)
    include_fenced_brokers: bool = field(BOOLEAN, versions="2+")


class DescribeClusterBroker(Struct):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    rack: str | None = field(NULLABLE_STRING, default=None)
    is_fenced: bool = field(BOOLEAN, versions="2+")


class DescribeClusterResponse(Message, api_key=60, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    endpoint_type: int = field(INT8, versions="1+", default=1)
    cluster_id: str = field(STRING, means=Meaning.CLUSTER)
    controller_id: int = field(INT32, means=Meaning.BROKER, default=-1)
    brokers: list[DescribeClusterBroker] = field(array(DescribeClusterBroker))
    cluster_authorized_operations: int = field(INT32, default=-0x80000000)
