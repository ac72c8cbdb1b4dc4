"""One attack as a process of its own: ``python -m system_tests.attack.attacker NAME …``.

Owns which attacks there are. The invariant: the process ends by itself at its deadline, and its
last line is a JSON object with what it did.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from system_tests.attack.attacks import batches, connections, descriptors, frames, sasl, tls
from system_tests.attack.targets import Target

Attack = Callable[[Target, str, float], Counter[str]]

ATTACKS: Final[dict[str, tuple[Attack, int]]] = {
    "frames": (frames.attack, 1),
    "batches": (batches.attack, 3),
    "connections": (connections.attack, 1),
    "descriptors": (descriptors.attack, 1),
    "tls": (tls.attack, 8),
    "sasl": (sasl.attack, 8),
}
"""Each attack, and in how many threads it runs: more than one if it waits for answers."""

NICE: Final = 5
"""Attackers leave the processors to the broker and to honest clients, which are to be measured."""


def main(name: str, seed: str, seconds: str, target: str) -> None:
    os.nice(NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    deadline = time.monotonic() + float(seconds)
    attack, threads = ATTACKS[name]
    with ThreadPoolExecutor(threads) as pool:
        running = [
            pool.submit(attack, Target.decoded(target), f"{seed} {number}", deadline)
            for number in range(threads)
        ]
        print(json.dumps(sum((each.result() for each in running), Counter[str]())))


if __name__ == "__main__":
    main(*sys.argv[1:])
