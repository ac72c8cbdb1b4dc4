"""Cluster metadata: topics, partitions, brokers, configs, and the store that keeps them.

One process, the controller, changes it; every process has the same read-only image. Nothing here
knows sockets, processes or requests. Kafka's ``metadata`` module.
"""
