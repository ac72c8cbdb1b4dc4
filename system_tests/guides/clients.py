"""The reader's own program: ``python -m system_tests.guides.clients KIND GROUP TOPIC CLIENT_ID``.

Owns one member of a group, which polls until it is ended. KIND is ``classic``, ``consumer``
(KIP-848) or ``share``; ``produce`` sends one record instead. It must never know what a page does
with it. Invariant: the member polls without a pause longer than a tenth of a second, so that it
follows what the broker answers.
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer


def main() -> None:
    kind, group, topic, client_id = sys.argv[1:]
    server = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")
    config = {"bootstrap.servers": server, "client.id": client_id}
    if kind == "produce":
        producer = Producer(config)
        producer.produce(topic, b"one")
        sys.exit(producer.flush(60))
    config["group.id"] = group
    if kind == "share":
        sharing = ShareConsumer({**config, "share.acknowledgement.mode": "explicit"})
        sharing.subscribe([topic])
        while True:
            for message in sharing.poll(0.1):
                sharing.acknowledge(message, AcknowledgeType.ACCEPT)
            sharing.commit_sync()
    consumer = Consumer({**config, "group.protocol": kind, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.1)


if __name__ == "__main__":
    main()
