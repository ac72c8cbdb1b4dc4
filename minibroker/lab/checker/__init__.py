"""Finds anomalies in histories of Kafka clients, as Jepsen's Kafka workload defines them."""
