"""The cluster's facts: topics, partitions, brokers, configs, and the store that keeps them.

One process, the controller, changes them; every process holds the same read-only image.  Nothing
here knows of sockets, processes or requests.  Kafka's ``metadata`` module is the same thing.
"""
