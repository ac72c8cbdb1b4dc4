"""The runtime of the roles: processes, channels, the clock, shared memory and worked time.

It must never know Kafka: no API, topic, group or quota is named below this package.
Its invariant: nothing passes between two roles but messages, file descriptors and the pages
mapped before the fork.
It echoes Kafka's `org.apache.kafka.common.utils.Time`, `MemoryPool` and `KafkaThread`.
"""
