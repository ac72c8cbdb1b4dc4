"""Real clients and Kafka's own tools against listeners that want to know who connects."""
