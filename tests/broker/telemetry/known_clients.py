"""Two clients that have pushed metrics."""

from __future__ import annotations

from minibroker.broker.telemetry import ClientInstances, MetricPoint, TelemetryProperties, select

NOW = 1_000_000
POINT = MetricPoint("records.total", (("a", "b"), ("topic", "t")), 7.0)


def client(name: str) -> TelemetryProperties:
    return TelemetryProperties(name, f"app-{name}", "java", "4.4.0", "10.0.0.1", "5000")


def known_clients() -> ClientInstances:
    """The clients 1 and 2, each with two points; the name of one is too long for a label."""
    made = ClientInstances(size_max_bytes=100)
    for name in ("1", "2"):
        made.add(name.encode(), client(name), (), select((), client(name)), NOW)
        made.ask(name.encode(), NOW)
        made.keep(name.encode(), [POINT, POINT._replace(name="x" * 500)])
    return made
