"""Brokers for tests: ``from minibroker.testing import MiniBroker``, and a pytest plugin.

Owns what a test may hold in its hands; it must never know how a broker works inside, and imports
nothing of it into the test's process. Invariant: a broker started here ends with the process that
started it, however that process ends. Kafka's counterpart is ``kafka-clients-test``'s cluster kit.
"""

from __future__ import annotations

from minibroker.testing.broker import AsyncMiniBroker as AsyncMiniBroker
from minibroker.testing.broker import MiniBroker as MiniBroker
from minibroker.testing.control import ControlError as ControlError
from minibroker.testing.lease import BrokerStartError as BrokerStartError
