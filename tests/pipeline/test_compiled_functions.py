from __future__ import annotations

from typing import Any

import numpy as np

from minibroker.pipeline.compiled_functions import compiled


def test_compiled_function_gives_the_result_of_the_plain_one() -> None:
    def added(values: Any, out: Any) -> int:
        total = 0
        for at in range(len(values)):
            total += values[at]
            out[at] = total
        return total

    values = np.array([3, -1, 2**40])
    plain, fast = np.zeros(3, np.int64), np.zeros(3, np.int64)
    assert compiled(added)(values, fast) == added(values, plain)
    assert fast.tolist() == plain.tolist()
