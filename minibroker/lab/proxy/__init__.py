"""A proxy in front of a Kafka cluster, with the broker's fault rules."""
