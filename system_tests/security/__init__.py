"""Real clients and Kafka's own tools with listeners that authenticate."""
