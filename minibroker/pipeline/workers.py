"""What a task does to the process that it runs in, which Spark keeps for the tasks after it.

Owns nothing but a worker's garbage collector; it must never know what tasks do. Invariant: what a
task computes is the same without it. Spark's daemon of Python workers has all garbage collected
after each task, and goes through every object of every library for that.
"""

from __future__ import annotations

import gc


def settle_in() -> None:
    """Lets the collector pass over what is loaded by now: a twentieth of a second a task.

    To be called as a task begins, when the garbage of the one before it is gone.
    """
    gc.freeze()
