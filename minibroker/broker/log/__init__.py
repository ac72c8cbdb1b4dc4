"""Partition logs on disk, in Kafka's own file formats.

Owns segment files, their indexes, producer state, recovery and retention. It must never know
sockets, event loops or requests: every call here is synchronous and is given the time. Its
invariant: what an append has returned is found again after the process is killed. Echoes Kafka's
``org.apache.kafka.storage.internals.log``.
"""
