"""Brokers for tests: ``from minibroker.testing import MiniBroker``, and a pytest plugin.

Owns the public interface of tests. It must never know a broker's internals, and imports nothing of
the broker into the test's process. Names are imported on first use, because pytest loads the
plugin, and so this package, in every run. Invariant: a broker started here ends with the process
that started it, however that process ends. Kafka's own tests have ``KafkaClusterTestKit``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.client.control import ControlError
    from minibroker.testing.broker import (
        AsyncMiniBroker,
        BrokerNamespace,
        BrokerSnapshot,
        MiniBroker,
        SharedBrokerError,
    )
    from minibroker.testing.failures import BrokerFailed
    from minibroker.testing.faults import FaultNeverFired
    from minibroker.testing.histories import (
        Consumers,
        HistorySettings,
        HistoryWriter,
        IsolationLevel,
        check,
    )
    from minibroker.testing.journal import DidNotHappen
    from minibroker.testing.lease import BrokerStartError
    from minibroker.testing.messages import TooManyMessages, TopicMessage, WaitTimedOut
    from minibroker.testing.proxy import MiniProxy, ProxyNotStarted
    from minibroker.testing.verdicts import (
        ClientMisbehaved,
        JournalIncomplete,
        assert_well_behaved,
    )
    from minibroker.testing.workload import run_workload

_HOMES = {
    "AsyncMiniBroker": "testing.broker",
    "BrokerNamespace": "testing.broker",
    "BrokerSnapshot": "testing.broker",
    "MiniBroker": "testing.broker",
    "SharedBrokerError": "testing.broker",
    "BrokerFailed": "testing.failures",
    "ControlError": "client.control",
    "FaultNeverFired": "testing.faults",
    "DidNotHappen": "testing.journal",
    "BrokerStartError": "testing.lease",
    "TopicMessage": "testing.messages",
    "TooManyMessages": "testing.messages",
    "WaitTimedOut": "testing.messages",
    "Consumers": "testing.histories",
    "HistorySettings": "testing.histories",
    "HistoryWriter": "testing.histories",
    "IsolationLevel": "testing.histories",
    "check": "testing.histories",
    "ClientMisbehaved": "testing.verdicts",
    "JournalIncomplete": "testing.verdicts",
    "assert_well_behaved": "testing.verdicts",
    "MiniProxy": "testing.proxy",
    "ProxyNotStarted": "testing.proxy",
    "run_workload": "testing.workload",
}

__all__ = [
    "AsyncMiniBroker",
    "BrokerFailed",
    "BrokerNamespace",
    "BrokerSnapshot",
    "BrokerStartError",
    "ClientMisbehaved",
    "Consumers",
    "ControlError",
    "DidNotHappen",
    "FaultNeverFired",
    "HistorySettings",
    "HistoryWriter",
    "IsolationLevel",
    "JournalIncomplete",
    "MiniBroker",
    "MiniProxy",
    "ProxyNotStarted",
    "SharedBrokerError",
    "TooManyMessages",
    "TopicMessage",
    "WaitTimedOut",
    "assert_well_behaved",
    "check",
    "run_workload",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minibroker.platforms import refusal

    if (reason := refusal()) is not None:
        raise ImportError(reason)
    return getattr(import_module(f"minibroker.{_HOMES[name]}"), name)
