"""What a Kafka broker is and does, in Kafka's words: its roles, APIs, logs, groups and quotas."""
