"""Metrics, conditions and log lines of a running broker.

Owns the numbers each process counts, how they are merged and shown, and the format of a
log line. Knows nothing of sockets, channels or how a role works: roles hand it plain numbers.
Everything it keeps is bounded, whatever clients send. Echoes Kafka's ``RequestMetrics``,
``BrokerTopicMetrics`` and the JMX names of its monitoring page.
"""
