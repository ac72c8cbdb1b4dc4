"""A small synchronous Kafka client for the command line and for tests.

`KafkaClient` finds brokers and sends them one request at a time; `RecordProducer`, `Fetcher` and
`ConsumerCoordinator` use it. `Control` calls the control API. It must never import the broker,
print, or exit.
"""
