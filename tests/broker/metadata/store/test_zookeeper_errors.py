"""ZooKeeper's errors: which operation was at fault, and in which words it is said."""

from __future__ import annotations

import pytest
from kazoo import exceptions as zk

from minibroker.broker.metadata.store.tree import (
    Create,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    StoreError,
)
from minibroker.broker.metadata.store.zookeeper_errors import failed_operation_error, to_store_error


def test_successful_transaction_yields_no_error() -> None:
    assert failed_operation_error([Create("/a")], ["/a"]) is None


def test_failing_operation_is_identified_among_rolled_back_ones() -> None:
    operations: list[Operation] = [Create("/a"), Create("/b/c"), Set("/d", b"")]
    answers = [zk.RolledBackError(), zk.NoNodeError(), zk.RuntimeInconsistency()]
    error = failed_operation_error(operations, answers)
    assert isinstance(error, NoNodeError)
    assert str(error) == "/b: does not exist"


def test_existing_node_error_names_the_node() -> None:
    error = failed_operation_error([Create("/b/c")], [zk.NodeExistsError()])
    assert isinstance(error, NodeExistsError)
    assert error.path == "/b/c"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (zk.NoAuthError(), "zookeeper.digest.username"),
        (zk.UnimplementedError(), "3.6 or newer"),
        (zk.DataInconsistency(), "ZooKeeper answered DataInconsistency"),
    ],
)
def test_other_zookeeper_errors_become_explained_store_errors(error: Exception, said: str) -> None:
    found = to_store_error(error, "/a")
    assert type(found) is StoreError
    assert said in str(found)
