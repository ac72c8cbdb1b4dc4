"""Records for client metrics in the control API (KIP-714).

Owns only the records, and the operation that returns them; must never know how metrics are pushed.
The invariant: every response is plain, immutable data.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Protocol

from minibroker.lab.control.schema import Doc


class ClientMetricPoint(NamedTuple):
    """The newest value of a metric that a client has pushed."""

    name: Annotated[str, Doc("As the client names it, e.g. `org.apache.kafka.producer.…`.")]
    attributes: Annotated[str, Doc("`key=value` of each attribute, with commas between them.")]
    value: Annotated[float | None, Doc("Null if it is not a finite number.")]


class ClientMetricsInstance(NamedTuple):
    """A client instance that has asked for its subscription."""

    client_instance_id: str
    client_id: str
    software_name: str
    software_version: str
    host: str
    subscription_id: int
    metrics: Annotated[tuple[str, ...], Doc("Prefixes of the metrics that it is to push.")]
    interval_ms: Annotated[int, Doc("The interval of its pushes.")]
    seen_ago_ms: Annotated[int, Doc("When its last request arrived.")]
    pushes: Annotated[int, Doc("Accepted pushes.")]
    last_error: Annotated[str, Doc("The error of its last request, or `NONE`.")]
    last_problem: Annotated[
        str, Doc("Why the metrics of its last push could not be read, or empty.")
    ]
    points: tuple[ClientMetricPoint, ...]


class ClientMetricsView(NamedTuple):
    """The client instances, the one that was seen last at the end."""

    instances: tuple[ClientMetricsInstance, ...]


class ClientMetricsBackend(Protocol):
    """The part of a running broker that knows client metrics."""

    async def client_metrics(self) -> ClientMetricsView:
        """Return the client instances and their newest metrics."""
