"""Clients that connect from a few addresses, send requests and disconnect, repeatedly.

Owns their connections, which depend only on a seed; other actors and the checks are in the tests.
Invariant: a rejected or disconnected client connects again.
"""

from __future__ import annotations

from random import Random
from typing import Final

import trio

from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.simulation.client import SimulatedClient
from tests.simulation.surroundings import LISTENER

HOSTS: Final = tuple(f"10.0.0.{number}" for number in range(6))
HELLO: Final = ApiVersionsRequest(client_software_name="me", client_software_version="1")


class ReconnectingClients:
    """State that all clients of one run share; each is a task in ``client`` until ``over``."""

    def __init__(self, broker: TaskBroker, seed: int) -> None:
        self.broker = broker
        self.random = Random(f"{seed} crowd")
        self.served = 0
        self.over = False

    async def client(self) -> None:
        random = Random(self.random.random())
        while not self.over:
            await trio.sleep(random.random())
            source = self.broker.sources[LISTENER]
            client = SimulatedClient(await source.connect(random.choice(HOSTS)))
            with trio.move_on_after(random.random() * 3):
                try:
                    while not self.over:
                        await client.ask(HELLO, 4)
                        self.served += 1
                        await trio.sleep(random.random())
                except StreamClosed:
                    pass
            client.close()
