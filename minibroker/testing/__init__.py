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
    from minibroker.testing.broker import AsyncMiniBroker as AsyncMiniBroker
    from minibroker.testing.broker import BrokerNamespace as BrokerNamespace
    from minibroker.testing.broker import BrokerSnapshot as BrokerSnapshot
    from minibroker.testing.broker import MiniBroker as MiniBroker
    from minibroker.testing.broker import SharedBrokerError as SharedBrokerError
    from minibroker.testing.control import ControlError as ControlError
    from minibroker.testing.faults import FaultNeverFired as FaultNeverFired
    from minibroker.testing.histories import Consumers as Consumers
    from minibroker.testing.histories import HistorySettings as HistorySettings
    from minibroker.testing.histories import HistoryWriter as HistoryWriter
    from minibroker.testing.histories import IsolationLevel as IsolationLevel
    from minibroker.testing.histories import check as check
    from minibroker.testing.journal import DidNotHappen as DidNotHappen
    from minibroker.testing.lease import BrokerStartError as BrokerStartError
    from minibroker.testing.proxy import MiniProxy as MiniProxy
    from minibroker.testing.proxy import ProxyNotStarted as ProxyNotStarted
    from minibroker.testing.verdicts import ClientMisbehaved as ClientMisbehaved
    from minibroker.testing.verdicts import JournalIncomplete as JournalIncomplete
    from minibroker.testing.verdicts import assert_well_behaved as assert_well_behaved
    from minibroker.testing.workload import run_workload as run_workload

_HOMES = {
    "AsyncMiniBroker": "broker",
    "BrokerNamespace": "broker",
    "BrokerSnapshot": "broker",
    "MiniBroker": "broker",
    "SharedBrokerError": "broker",
    "ControlError": "control",
    "FaultNeverFired": "faults",
    "DidNotHappen": "journal",
    "BrokerStartError": "lease",
    "Consumers": "histories",
    "HistorySettings": "histories",
    "HistoryWriter": "histories",
    "IsolationLevel": "histories",
    "check": "histories",
    "ClientMisbehaved": "verdicts",
    "JournalIncomplete": "verdicts",
    "assert_well_behaved": "verdicts",
    "MiniProxy": "proxy",
    "ProxyNotStarted": "proxy",
    "run_workload": "workload",
}

__all__ = [
    "AsyncMiniBroker",
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
    "assert_well_behaved",
    "check",
    "run_workload",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
