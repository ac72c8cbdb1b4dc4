from __future__ import annotations

from minibroker.lab.checker.client_history import ClientOperation, OperationKind


def test_line_of_an_operation_is_that_of_its_completion_if_there_is_one() -> None:
    operation = ClientOperation(0, 3, OperationKind.SEND, invoked_line=5)
    assert operation.line == 5
    operation.completed_line = 9
    assert operation.line == 9
